"""Drafts inside vLLM: requests are found again, drafts are our own, and nothing that goes wrong reaches the engine."""

from __future__ import annotations

import gc
import logging
import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import paceline
from paceline.context import Context
from paceline.drafters import Ask, Budget, Drafter, make_drafter
from paceline.engine.served import ServedText, best_chain
from paceline.errors import InputError
from paceline.integrations.vllm import Proposer
from paceline.integrations.vllm.gaps import Gaps
from paceline.integrations.vllm.proposer import HOPELESS
from paceline.integrations.vllm.settings import VLLMSettings
from paceline.integrations.vllm.texts import RequestContext
from paceline.tree import DraftTree
from paper_items import shown
from papers.dictspec import live

SIZE, LONGEST, ROWS, K = 8192, 96, 12, 6
Row = list[int]
ENGLISH = f"file={files('paceline.dictionary.shipped') / 'pocket-en.dict'}"
"""One dictionary: of several, one proposes by what they have brought in a text before."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer as a served model's folder has it."""
    place = tmp_path_factory.mktemp("served")
    lm = paceline.load("pocket", dtype="float32", generation_config=False)
    assert lm.vocabulary is not None
    lm.vocabulary.tokenizer.save_pretrained(place)
    return place


def config(folder: Path, method: str, *, k: int = K, rows: int = ROWS, **own: Any) -> Any:
    """What of vLLM's configuration a proposer reads."""
    model = SimpleNamespace(
        model=str(folder),
        tokenizer=str(folder),
        tokenizer_revision=None,
        trust_remote_code=False,
        max_model_len=LONGEST,
        get_vocab_size=lambda: SIZE,
    )
    return SimpleNamespace(
        model_config=model,
        speculative_config=SimpleNamespace(num_speculative_tokens=k),
        scheduler_config=SimpleNamespace(max_num_seqs=rows),
        parallel_config=SimpleNamespace(
            rank=0, tensor_parallel_size=1, world_size=1, distributed_executor_backend=None
        ),
        additional_config={"paceline": {"method": method, "lengths": "fixed", "budget": 10**7, **own}},
    )


class Engine:
    """Requests that come, go on, change places, leave for a while and end, as vLLM has them; what they write is made
    up, and takes over parts of drafts."""

    def __init__(self, proposer: Proposer, seed: int = 0, rows: int = ROWS) -> None:
        self.proposer, self.coins = proposer, random.Random(seed)
        self.tokens = np.full((rows, LONGEST), 7, np.int32)
        self.lengths = np.zeros(rows, np.int32)
        self.running: list[Row] = []
        self.waiting: list[Row] = []
        self.drafts: dict[int, Row] = {}
        self.skips = False

    def step(self) -> list[tuple[Row, Row]]:
        """One step: the texts and the drafts of all rows that are no longer reading."""
        coins, rows = self.coins, len(self.lengths)
        for _ in range(coins.randrange(3)):
            if len(self.running) < rows and (self.waiting or coins.random() < 0.7):
                back = self.waiting and coins.random() < 0.5
                self.running.append(self.waiting.pop() if back else self.prompt())
        if len(self.running) > 1 and coins.random() < 0.3:
            one, two = coins.sample(range(len(self.running)), 2)
            self.running[one], self.running[two] = self.running[two], self.running[one]
        sampled: list[Row] = []
        for text in self.running:
            draft = self.drafts.get(id(text), [])
            new = [] if coins.random() < 0.1 else [*draft[: coins.randrange(len(draft) + 1)], self.word()]
            text += new[: LONGEST - len(text)]
            sampled.append(new)
        for row, text in enumerate(self.running):
            self.tokens[row, : len(text)], self.lengths[row] = text, len(text)
        if self.skips and coins.random() < 0.1:  # as vLLM does where a text is near the longest
            self.drafts = {}
            return []
        drafts = self.proposer.propose(sampled, self.lengths, self.tokens, slot_mappings=None)
        assert len(drafts) == len(sampled)
        found = [(list(t), d) for t, d, new in zip(self.running, drafts, sampled, strict=True) if new]
        self.drafts = {id(text): draft for text, draft in zip(self.running, drafts, strict=True)}
        self.running = [text for text in self.running if len(text) < LONGEST - K and coins.random() < 0.97]
        if self.running and coins.random() < 0.1:
            self.waiting.append(self.running.pop(coins.randrange(len(self.running))))
        return found

    def word(self) -> int:
        return self.coins.randrange(300, 312)

    def prompt(self) -> Row:
        if self.running and self.coins.random() < 0.2:
            return list(self.running[0])  # two requests may hold the same
        return [self.word() for _ in range(self.coins.randrange(2, 30))]


def own_draft(drafter: Drafter, text: Row, nodes: int, begun: int | None = None) -> Row:
    """What our own drafter drafts for a text that it has never seen, or saw when it had ``begun`` tokens."""
    depth = min(K, LONGEST - len(text) - 1)
    if depth <= 0:
        return []
    context = RequestContext(np.array(text[:begun], np.int32), LONGEST)
    state = drafter.open(context)
    context.follow(text[len(context) :])
    (tree,) = drafter.propose([Ask(state, Budget(nodes, depth))])
    return best_chain(tree).tokens[:K].tolist()


@pytest.mark.parametrize("method", ["lookup", "suffix", f"hybrid:{ENGLISH}", f"dictionary:{ENGLISH}+lookup"])
def test_drafts_are_those_of_our_own_drafter(folder: Path, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 2,500 states each: requests come, go, come back and change places. `suffix` learns the edits of a copy token
    by token, so what it drafts depends on where it first saw the text."""
    proposer = Proposer(config(folder, method))
    twin = make_drafter(method)
    twin.fit(proposer._model, proposer_vocabulary(folder))  # type: ignore[arg-type]
    nodes, states, drafted, engine = max(K, twin.nodes), 0, 0, Engine(proposer)
    engine.skips, follows, asked, drafts = True, method == "suffix", list[Context](), proposer.served.drafts

    def ask(texts: Sequence[ServedText], *until: float) -> list[DraftTree]:
        asked[:] = [text.context for text in texts]
        return drafts(texts, *until)

    monkeypatch.setattr(proposer.served, "drafts", ask)
    while states < 2500:
        found = engine.step()
        served = iter(asked)  # in the order of the rows; a text that is as long as may be is left out
        for text, draft in found:
            states += 1
            drafted += bool(draft)
            begun = next(served).prompt_length if len(text) < LONGEST else None
            assert draft == own_draft(twin, text, nodes, begun if follows else None), text
    assert drafted > 300
    assert proposer._errors == 0
    assert len(proposer._texts) <= 2 * ROWS


def proposer_vocabulary(folder: Path) -> Any:
    from transformers import AutoTokenizer

    from paceline.vocabulary import Vocabulary

    return Vocabulary(AutoTokenizer.from_pretrained(folder, trust_remote_code=False))


def test_texts_are_known_after_steps_without_a_call(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As vLLM does where a text is near the longest. Another text of the same end is no such text."""
    proposer, twin = Proposer(config(folder, "lookup", rows=3)), make_drafter("lookup")
    tokens, lengths = np.zeros((3, LONGEST), np.int32), np.full(3, 30)
    tokens[:, :60] = np.random.default_rng(3).integers(400, 410, (3, 60))

    def ask() -> list[Row]:
        return proposer.propose([[int(tokens[row, lengths[row] - 1])] for row in range(3)], lengths, tokens)

    ask()
    begun, begin = list[int](), proposer._texts.begin
    monkeypatch.setattr(proposer._texts, "begin", lambda row, *given: begun.append(row) or begin(row, *given))
    lengths += 7
    tokens[2, :5] = 499  # the request in this row ended, and the next one has its end at the same place
    drafts = ask()
    assert begun == [2]
    for row in range(3):
        assert drafts[row] == own_draft(twin, tokens[row, : lengths[row]].tolist(), max(K, twin.nodes))
    lengths += 5
    tokens[[0, 1]] = tokens[[1, 0]]  # and they change places meanwhile
    drafts = ask()
    assert begun == [2]
    for row in range(3):
        assert drafts[row] == own_draft(twin, tokens[row, : lengths[row]].tolist(), max(K, twin.nodes))


def wrong(*_: Any) -> Any:
    raise RuntimeError("a bug")


def tree(*tokens: int) -> Callable[[Any], list[DraftTree]]:
    return lambda asks: [DraftTree.chain(list(tokens), source="bad") for _ in asks]


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (wrong, "failed in propose: RuntimeError: a bug"),
        (lambda asks: [], "texts and answered for 0"),
        (lambda asks: None, "returned None in propose"),
        (tree(5, SIZE, 6), f"a draft holds token {SIZE}, and"),
        (tree(-3), "a draft holds token -3"),
    ],
)
def test_a_broken_source_costs_drafts_and_one_warning(
    folder: Path, broken: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    proposer = Proposer(config(folder, "lookup"))
    proposer.drafter.propose = broken  # type: ignore[method-assign]
    engine = Engine(proposer)
    with caplog.at_level(logging.WARNING, logger="vllm.paceline"):
        for _ in range(2 * HOPELESS):
            assert all(0 <= token < SIZE for _, draft in engine.step() for token in draft)
    warned = [record.getMessage() for record in caplog.records]
    assert sum(said in line for line in warned) == 1
    assert len(warned) <= 2  # the other says that nothing is drafted any more


TOKENS, LENGTHS = np.full((2, LONGEST), 400, np.int32), np.full(2, 20)


@pytest.mark.parametrize(
    ("given", "count"),
    [
        ((None, LENGTHS, TOKENS), 0),
        ((5, LENGTHS, TOKENS), 0),
        ((iter([[400]]), LENGTHS, TOKENS), 0),
        (([], LENGTHS, TOKENS), 0),
        (([None, None], LENGTHS, TOKENS), 2),
        (([[400], None], LENGTHS, TOKENS), 2),
        (([400, 400], LENGTHS, TOKENS), 2),
        (([[400], [400], [400]], LENGTHS, TOKENS), 3),
        (([[400], [400]], None, TOKENS), 2),
        (([[400], [400]], ["20", None], TOKENS), 2),
        (([[400], [400]], LENGTHS, None), 2),
        (([[400], [400]], LENGTHS, TOKENS[:, :10]), 2),
        (([[400], [400]], LENGTHS * 1000, TOKENS), 2),
        (([[400], [400]], -LENGTHS, TOKENS), 2),
    ],
    ids=range(14),
)
def test_token_lists_that_are_none_give_no_draft(folder: Path, given: Any, count: int) -> None:
    proposer = Proposer(config(folder, "lookup"))
    assert proposer.propose(*given) == [[] for _ in range(count)]
    assert all(proposer.propose([[400], [400]], LENGTHS, TOKENS)), "the next step has drafts"


WITHOUT = """
import sys

class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "transformers":
            raise ImportError("no transformers here")

class Old(type(sys)):
    __version__ = "4.57.1"

if sys.argv[1] == "refused":
    sys.meta_path.insert(0, Refused())
else:
    sys.modules["transformers"] = Old("transformers")

from types import SimpleNamespace as Has
import numpy as np
from paceline.integrations.vllm import Proposer

longest, rows = 96, 3
for method in ("lookup", "suffix", "recycling"):
    config = Has(
        model_config=Has(
            model="served", tokenizer="served", tokenizer_revision=None, trust_remote_code=False,
            max_model_len=longest, get_vocab_size=lambda: 512,
        ),
        speculative_config=Has(num_speculative_tokens=6),
        scheduler_config=Has(max_num_seqs=rows),
        parallel_config=Has(rank=0, tensor_parallel_size=1, world_size=1, distributed_executor_backend=None),
        additional_config={"paceline": {"method": method, "lengths": "fixed", "budget": 10**7}},
    )
    proposer, drafted = Proposer(config), 0
    tokens, lengths = np.tile(np.arange(longest, dtype=np.int32) % 5 + 300, (rows, 1)), np.full(rows, 20)
    for _ in range(40):
        found = proposer.propose([[int(tokens[row, lengths[row] - 1])] for row in range(rows)], lengths, tokens)
        for row, draft in enumerate(found):
            drafted += draft == tokens[row, lengths[row] : lengths[row] + len(draft)].tolist() and len(draft) > 0
        lengths += 1
    print(method, drafted, proposer._errors)
"""


@pytest.mark.parametrize("transformers", ["refused", "old"])
def test_it_drafts_beside_any_transformers(transformers: str) -> None:
    """vLLM's environment has one of its own, maybe older than ours, and drafts over tokens need none."""
    where = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", WITHOUT, transformers]
    found = subprocess.run(command, capture_output=True, text=True, env=where, timeout=300)
    assert found.returncode == 0, found.stderr
    lines = [line.split() for line in found.stdout.splitlines()]
    assert [(name, errors) for name, _, errors in lines] == [
        (name, "0.0") for name in ("lookup", "suffix", "recycling")
    ]
    assert [int(drafted) > 100 for name, drafted, _ in lines if name != "recycling"] == [True, True]


@pytest.mark.parametrize("verb", ["open", "propose", "observe"])
def test_a_request_for_which_drafting_fails_is_left_alone_and_others_are_not(folder: Path, verb: str) -> None:
    proposer = Proposer(config(folder, "dictionary+lookup", rows=2))
    called: Any = getattr(proposer.drafter, verb)

    def picky(given: Any) -> Any:
        texts = [given] if verb == "open" else [state[0].context for state, *_ in given]
        if any(text.tokens[0] == 666 for text in texts):
            raise RuntimeError("not this one")
        return called(given)

    setattr(proposer.drafter, verb, picky)
    proposer._texts._open = proposer.drafter.open
    tokens, lengths = np.zeros((2, LONGEST), np.int32), np.full(2, 20)
    tokens[:, :20] = np.tile([400, 401, 402, 403], 5)
    tokens[1, 0] = 666
    for _ in range(4 * HOPELESS // 2):
        drafts = proposer.propose([[int(tokens[row, lengths[row] - 1])] for row in range(2)], lengths, tokens)
        if lengths[0] > 20:
            assert drafts[0]
            assert not drafts[1] or verb == "observe"
        for row in range(2):
            tokens[row, lengths[row]] = tokens[row, lengths[row] - 4]
        lengths += 1
    assert 0 < proposer._errors <= 2
    assert drafts == [drafts[0], []]


def test_nothing_but_lists_of_whole_numbers_reaches_the_engine(folder: Path) -> None:
    for method in ("lookup", "suffix"):
        engine = Engine(Proposer(config(folder, method, padded=True)))
        for _ in range(100):
            for text, draft in engine.step():
                assert len(draft) == max(0, min(K, LONGEST - len(text) - 1))
                assert all(type(token) is int for token in draft)


def test_without_time_nothing_is_drafted_in_a_step(folder: Path) -> None:
    engine = Engine(Proposer(config(folder, "lookup", budget=1)))
    engine.proposer.settings = VLLMSettings(method="lookup", budget=1)
    import paceline.integrations.vllm.proposer as module

    before, module.A_ROW = module.A_ROW, 0.0
    try:
        assert all(draft == [] for _ in range(30) for _, draft in engine.step())
    finally:
        module.A_ROW = before


def test_memory_is_bounded(folder: Path) -> None:
    proposer = Proposer(config(folder, "suffix:remember=2000", rows=4))
    tokens, lengths, coins = np.zeros((4, LONGEST), np.int32), np.zeros(4, np.int32), random.Random(1)
    for _ in range(1000):
        for row in range(4):
            tokens[row, :5], lengths[row] = [coins.randrange(SIZE) for _ in range(5)], 5
        proposer.propose([[int(tokens[row, 4])] for row in range(4)], lengths, tokens)
        tokens[:, 5], lengths[:] = tokens[:, 0], 6
        proposer.propose([[int(tokens[row, 5])] for row in range(4)], lengths, tokens)
    assert len(proposer._texts) <= 8
    proposer._end()
    assert proposer._closing.waits() == 0
    memory = proposer.drafter._memory  # type: ignore[attr-defined]
    assert 0 < len(memory) <= 2000


@pytest.mark.slow
@pytest.mark.parametrize("method", ["hybrid", "suffix:remember=20000"])
def test_memory_stays_flat_over_100_000_requests(folder: Path, method: str) -> None:
    """What the process holds after a fifth of them is what it holds after all."""
    statistics, rows = Path("/proc/self/statm"), 64
    if not statistics.exists():
        pytest.skip("only Linux says it there")
    proposer = Proposer(config(folder, method, rows=rows))
    tokens, lengths, coins = np.zeros((rows, LONGEST), np.int32), np.zeros(rows, np.int32), np.random.default_rng(1)
    held, requests = list[int](), 0
    while requests < 100_000:
        tokens[:, :40], lengths[:] = coins.integers(0, SIZE, (rows, 40)), 40
        sampled = [[int(token)] for token in tokens[:, 39]]
        for _ in range(5):
            drafts = proposer.propose(sampled, lengths, tokens)
            sampled = [[*draft[:2], int(coins.integers(0, SIZE))] for draft in drafts]
            for row, new in enumerate(sampled):
                tokens[row, lengths[row] : lengths[row] + len(new)] = new
                lengths[row] += len(new)
        requests += rows
        if requests >= 20_000 * (len(held) + 1):
            gc.collect()
            held.append(int(statistics.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
    assert proposer._errors == 0
    assert held[-1] - held[0] < 16 << 20, held


# --- methods that learn from logits --------------------------------------------------------------------------


class Model:
    """The next token is seven times the last one."""

    def compute_logits(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = torch.zeros(len(tokens), SIZE)
        logits[torch.arange(len(tokens)), tokens * 7 % 97 + 400] = 20.0
        return logits


def test_slow_learning_takes_turns_and_leaves_time_to_draft(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = 16
    proposer, model = Proposer(config(folder, "recycling", rows=rows, budget=1)), Model()
    monkeypatch.setattr("paceline.integrations.vllm.proposer.A_ROW", 1e-4)
    proposer.load_model(model)
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    read, learnt = proposer.drafter.read, list[set[int]]()

    def slowly(seen: Sequence[Any]) -> None:
        learnt[-1] |= {int(one.state.context.tokens[0]) for one in seen}
        now[0] += 0.002 * len(seen)
        read(seen)

    monkeypatch.setattr(proposer.drafter, "read", slowly)
    tokens, lengths = np.zeros((rows, LONGEST), np.int32), np.full(rows, 2)
    tokens[:, 0], tokens[:, 1] = np.arange(rows), 400 + 6 * np.arange(rows)
    drafts: list[Row] = [[] for _ in range(rows)]
    for _ in range(2 * rows):
        learnt.append(set())
        scored = [token for row in range(rows) for token in (int(tokens[row, lengths[row] - 1]), *drafts[row])]
        best, start, sampled = model.compute_logits(torch.tensor(scored)).argmax(-1).tolist(), 0, list[Row]()
        for row in range(rows):
            new, start = [best[start]], start + 1 + len(drafts[row])
            tokens[row, lengths[row]], lengths[row] = new[0], lengths[row] + 1
            sampled.append(new)
        drafts = proposer.propose(sampled, lengths, tokens)
    assert all(len(some) <= 4 for some in learnt)
    assert set.union(*learnt) == set(range(rows))
    assert any(drafts)
    assert proposer._lates == 0


@pytest.mark.parametrize("method", ["recycling", "unispec", "foresight"])
def test_methods_learn_from_the_logits_of_every_row(folder: Path, method: str) -> None:
    proposer, model = Proposer(config(folder, method)), Model()
    proposer.load_model(model)
    texts = [[400 + row] for row in range(4)]
    drafts: list[Sequence[int]] = [[] for _ in texts]
    tokens, lengths, accepted = np.zeros((4, LONGEST), np.int32), np.zeros(4, np.int32), 0
    for _ in range(25):
        rows = [token for text, draft in zip(texts, drafts, strict=True) for token in (text[-1], *draft)]
        best, start, sampled = model.compute_logits(torch.tensor(rows)).argmax(-1).tolist(), 0, list[Row]()
        for text, draft in zip(texts, drafts, strict=True):
            came = best[start : start + len(draft) + 1]
            right = next((n for n, token in enumerate(draft) if token != came[n]), len(draft))
            sampled.append(came[: right + 1])
            accepted += right
            start += len(draft) + 1
            text += sampled[-1]
        for row, text in enumerate(texts):
            tokens[row, : len(text)], lengths[row] = text[:LONGEST], len(text)
        drafts = proposer.propose(sampled, lengths, tokens)
        if max(map(len, texts)) > LONGEST - 2 * K:
            break
    assert accepted > 20
    assert proposer._errors == 0


# --- how much is drafted -------------------------------------------------------------------------------------


def test_a_source_that_brings_nothing_is_not_drafted_where_rows_cost_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts repeat themselves, and go on as they did before or not; a row takes a third of a step."""

    def drafted(repeats: bool) -> float:
        proposer, coins, now = Proposer(config(folder, "lookup", rows=2, lengths="adaptive")), random.Random(1), [0.0]
        monkeypatch.setattr("time.perf_counter", lambda: now[0])
        tokens, lengths = np.zeros((2, LONGEST), np.int32), np.full(2, 12)
        tokens[:, :12] = np.tile([400, 401, 402, 403], 3)
        drafts, counts = list[Row]([[], []]), list[int]()
        for _ in range(300):
            now[0] += 0.010 + 0.003 * sum(1 + len(draft) for draft in drafts)
            sampled = list[Row]()
            for row, draft in enumerate(drafts):
                if lengths[row] > LONGEST - 2 * K:
                    lengths[row], tokens[row, 12:] = 12, 0
                new = [*draft, 400 + int(lengths[row] + len(draft)) % 4] if repeats else [coins.randrange(500, 8000)]
                if not repeats:
                    tokens[row, lengths[row] - 2 : lengths[row]] = 400, 401
                tokens[row, lengths[row] : lengths[row] + len(new)] = new
                lengths[row] += len(new)
                sampled.append(new)
            drafts = proposer.propose(sampled, lengths, tokens)
            counts.append(sum(map(len, drafts)))
        assert proposer._errors == 0
        return float(np.mean(counts[100:]))

    assert drafted(repeats=True) > 4
    assert drafted(repeats=False) < 0.5


def test_lengths_are_adapted_while_another_request_reads_its_prompt(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proposer, now = Proposer(config(folder, "lookup", rows=2, lengths="adaptive")), [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    tokens, lengths, drafted = np.full((2, LONGEST), 400, np.int32), np.full(2, 12), 0
    for _ in range(20):
        drafts = proposer.propose([[400], []], lengths, tokens)
        now[0] += 0.010
        lengths[0] += 1
        drafted += len(drafts[0])
    assert drafted > 20
    assert proposer.served.planner._knowledge.costs.known  # type: ignore[attr-defined]


def test_steps_stay_longer_where_the_load_has_risen_and_idle_time_is_no_step() -> None:
    gaps = Gaps()
    for _ in range(50):
        assert gaps.seconds(0.005) == 0.005
        assert gaps.seconds(60.0) == 0.0
    found = [gaps.seconds(0.05) for _ in range(50)]
    assert found.index(0.05) < 20
    assert set(found[20:]) == {0.05}


# --- what is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"method": "assistant"}, "method 'assistant' does not draft inside vLLM; these do: dictionary, hybrid"),
        ({"method": "lookup:max_ngram=0"}, "lookup needs 1 <= min_ngram"),
        ({"method": "dictionary:file=gone.dict"}, "cannot read the dictionary gone.dict"),
        ({"method": 3}, "paceline.method is a text, not 3"),
        ({"tokens": 3}, "paceline has no setting 'tokens'; it takes method, lengths, padded, budget"),
        ({"lengths": "some"}, "paceline.lengths is adaptive or fixed"),
        ({"budget": 0}, "paceline.budget is microseconds from 1 on, not 0"),
        ({"padded": "yes"}, "paceline.padded is true or false"),
    ],
)
def test_what_cannot_be_is_one_sentence_before_the_model_loads(folder: Path, own: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said) as refused:
        Proposer(config(folder, **{"method": "lookup", **own}))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("additional", [None, {}, {"Paceline": {"method": "recycling"}}, {"method": "recycling"}])
def test_settings_at_another_place_are_refused(folder: Path, additional: Any) -> None:
    given = config(folder, "lookup")
    given.additional_config = additional
    with pytest.raises(InputError, match=r"^--additional-config holds no 'paceline', which says what drafts; paceline"):
        Proposer(given)


def test_ranks_whose_drafts_are_ignored_draft_nothing(folder: Path) -> None:
    second = config(folder, "lookup")
    second.parallel_config.rank, second.parallel_config.tensor_parallel_size = 1, 2
    proposer = Proposer(second)
    assert all(draft == [] for _ in range(30) for _, draft in Engine(proposer).step())
    assert len(proposer._texts) == 0
    second.parallel_config.distributed_executor_backend, second.parallel_config.world_size = "external_launcher", 2
    with pytest.raises(InputError, match="with the external launcher every rank uses its own drafts"):
        Proposer(second)


@pytest.mark.parametrize("damage", ["cut short", "other bytes", "no dictionary"])
def test_a_damaged_dictionary_is_one_sentence(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "no index is kept"))
    whole = Path(ENGLISH.removeprefix("file=")).read_bytes()
    half = len(whole) // 2
    file = tmp_path / "some.dict"
    file.write_bytes(
        {"cut short": whole[:half], "other bytes": whole[:half] + bytes(half), "no dictionary": b"text" * 99}[damage]
    )
    with pytest.raises(ValueError, match=r"some\.dict") as refused:
        Proposer(config(folder, f"dictionary:file={file}"))
    assert "\n" not in str(refused.value)


def test_no_tokens_and_another_vocabulary_are_one_sentence(folder: Path) -> None:
    with pytest.raises(InputError, match="num_speculative_tokens is from 1 to 128, not 0"):
        Proposer(config(folder, "lookup", k=0))
    other = config(folder, "dictionary")
    other.model_config.get_vocab_size = lambda: 100
    with pytest.raises(InputError, match="the model's vocabulary has 100 tokens"):
        Proposer(other)


# --- the table of the paper ----------------------------------------------------------------------------------


def test_the_papers_table_says_what_the_runs_say() -> None:
    def run(seconds: float, drafted: int, accepted: int, texts: Sequence[Sequence[int]] = ((1, 2, 3, 4),)) -> live.Run:
        return live.Run(texts, seconds, drafted, accepted)

    ways = {
        live.PLAIN: run(4, 0, 0),
        live.NGRAM: run(2, 4, 2),
        live.DICTIONARY: run(5, 2, 1),
        live.HYBRID: run(1, 3, 2),
    }
    _, rows = live.table({"uk": ways})
    assert rows[1] == ("uk, prompt n-gram", "2.0", "2.00", "2", "2.00", "50.0%")
    found = list(live.claims({"uk": ways}))
    assert [claim.agrees for claim in found] == [True, False, True, True, True, True], "by time, not by steps"
    assert found[1].sentence == (
        "dictionary is faster than plain decoding: in the paper 1.01 to 1.25 times; here 0.80 times, with 1.33 times "
        "fewer steps, not as in the paper (without an interval)"
    )
    ways[live.HYBRID] = run(6, 3, 2, ((1, 2, 3, 5),))
    assert [claim.agrees for claim in live.claims({"uk": ways})] == [True, False, False, False, False, False]
    cyrillic = list(live.claims({"crh-Cyrl": ways, "pl": ways}))
    assert [(claim.claim, claim.agrees) for claim in cyrillic[4:-1]] == [
        ("hybrid is slower than prompt n-grams in crh-Cyrl", True)
    ]


def test_the_paper_needs_an_environment_with_vllm() -> None:
    with pytest.raises(ValueError, match="name the Python of an environment with vLLM"):
        shown("dictspec", "live", "--vllm", "")
