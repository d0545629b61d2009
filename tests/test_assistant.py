"""A draft model proposes: the text stays the target's, the cache follows without reading twice, noise pays."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy import stats

import paceline
from drafting import as_plain, drafted
from engine import PROMPT, SIZE, habitual, tabled, write
from families import build
from paceline.api.drafters import KEPT
from paceline.api.model import LanguageModel
from paceline.api.settings import Settings, split_settings
from paceline.context import Context, Ending
from paceline.drafters import Ask, Budget, make_drafter
from paceline.drafters.compose import Fallback, Union
from paceline.drafters.networks.assistant import Assistant, DraftModel
from paceline.drafters.networks.growth import Growth
from paceline.drafters.networks.network import IN_PASSING
from paceline.engine.batch import Batch
from paceline.engine.calls import Timed, answers
from paceline.engine.loop import Session
from paceline.engine.serial import run
from paceline.law import Sampling, Stream
from paceline.planning.fixed import Fixed
from paceline.targets.base import Pending, Reach, Request
from paceline.targets.hf.load import load_target
from paceline.targets.table import Table, TableTarget, random_table
from paceline.tree import DraftTree
from paceline.verify import Rule
from paceline.vocabulary import Vocabulary
from thinning import crossed, thinned
from tokenizer_kinds import byte_level, wrapped

SHAPES: dict[str, dict[str, Any]] = {
    "chain": {},
    "top": {"top": 3},
    "beams": {"beams": 3},
    "wide": {"beams": 2, "top": 4, "length": 3},
    "confident": {"top": 2, "confidence": 0.2},
}
SETTINGS = {
    "greedy": Sampling(),
    "warm": Sampling(temperature=1.0, seed=3),
    "cold": Sampling(temperature=0.6, seed=3),
    "cut": Sampling(temperature=1.2, top_k=4, top_p=0.9, min_p=0.02, seed=3),
    "penalties": Sampling(temperature=1.0, repetition_penalty=1.4, presence_penalty=0.3, frequency_penalty=0.2, seed=3),
    "bias and bans": Sampling(temperature=1.0, logit_bias={2: 0.7}, banned=((1,), (0, 3)), seed=3),
}
every_shape = pytest.mark.parametrize("shape", SHAPES)
every_setting = pytest.mark.parametrize("setting", SETTINGS)


def like(table: Table, spread: float = 0.5, size: int = SIZE) -> Table:
    """A table that nearly agrees with another."""
    other = habitual(size, seed=77)
    return lambda history: [a + spread * b for a, b in zip(table(history), other(history), strict=True)]


def alike(**options: Any) -> TableTarget:
    return TableTarget(like(habitual()), SIZE, **options)


class Watched(TableTarget):
    """Knows every text whose last row it scored."""

    def __init__(self, table: Table, size: int = SIZE) -> None:
        super().__init__(table, size)
        self.read: list[tuple[int, ...]] = []
        self.sizes: list[int] = []
        self.siblings = False

    def submit(self, requests: Sequence[Request]) -> Pending:
        pending = super().submit(requests)
        for request in requests:
            self.siblings |= not request.is_chain
            before, drafted = request.rows.tokens.tolist(), request.rows.drafted
            self.read += [(*before, *drafted[seen].tolist()) for seen in request.visible]
        self.sizes.append(sum(len(request.tokens) for request in requests))
        return pending


# --- the text ----------------------------------------------------------------------------------------------


@every_shape
@every_setting
@pytest.mark.parametrize("noise", ["shared", "none"])
def test_the_text_is_plain_decodings(shape: str, setting: str, noise: str) -> None:
    drafter = Assistant(model=alike(), noise=noise, **SHAPES[shape])
    session = as_plain(tabled(), PROMPT, drafter, sampling=SETTINGS[setting], nodes=7, max_new_tokens=40)
    assert sum(r.accepted for r in session.rounds) > 5 or noise == "none"


@every_setting
@pytest.mark.parametrize("shape", ["chain", "top", "beams"])
def test_a_draft_model_that_is_the_target_is_never_wrong(setting: str, shape: str) -> None:
    """So the settings act on the draft's rows as on the target's, and the noise is that of the right place."""
    sampling = SETTINGS[setting]
    drafter = Assistant(model=tabled(), **SHAPES[shape])
    session = write(tabled(), PROMPT, drafter, sampling=sampling, nodes=6, max_new_tokens=40)
    drafting = session.rounds[1:]  # the first round has no draft
    assert all(round.accepted >= min(2, 39 - round.position + len(PROMPT)) for round in drafting)
    if shape == "chain":
        assert all(r.accepted == r.drafted for r in drafting)


def test_sharing_the_noise_is_what_gets_samples_accepted() -> None:
    rates = {}
    for noise in ("shared", "none"):
        accepted = drafted = 0
        for seed in range(20):
            sampling = Sampling(temperature=1.0, seed=seed)
            target = TableTarget(random_table(SIZE, seed=4), SIZE)
            drafter = Assistant(model=TableTarget(like(random_table(SIZE, seed=4), 0.3), SIZE), noise=noise)
            rounds = write(target, PROMPT, drafter, sampling=sampling, max_new_tokens=30, nodes=1).rounds
            accepted, drafted = accepted + sum(r.accepted for r in rounds), drafted + sum(r.drafted for r in rounds)
        rates[noise] = accepted / drafted
    assert rates["shared"] > 0.7 > 0.6 > rates["none"]


def test_without_noise_the_draft_is_the_likeliest_chain() -> None:
    target = alike()
    tree = drafted(Assistant(model=target, noise="none"), PROMPT, Budget(5, 19), temperature=1.0)
    text = list(PROMPT)
    for token in tree.tokens.tolist():
        assert token == int(np.argmax(target.table(tuple(text))))
        text.append(token)
    assert len(tree) == 5


def test_processors_are_asked_by_the_target_alone() -> None:
    """They may keep state, and a grammar that heard of refused drafts would be another grammar."""
    asked: list[int] = []

    def processor(ids: Any, rows: Any) -> Any:
        asked.append(ids.shape[1])
        return rows

    sampling = Sampling(temperature=1.0, processors=(processor,))
    session = write(tabled(), PROMPT, Assistant(model=alike(), beams=2), sampling=sampling, max_new_tokens=20)
    assert asked == list(range(len(PROMPT), len(PROMPT) + len(session.context.emitted)))


# --- the rejection rule ------------------------------------------------------------------------------------

TEXTS = 1000


def frequencies(drafter: Assistant, table: Table, length: int = 3) -> tuple[Counter[tuple[int, ...]], int]:
    """How often each text came up under the rejection rule, and how many drafted tokens were accepted."""
    found: Counter[tuple[int, ...]] = Counter()
    accepted = 0
    target = TableTarget(table, 3)
    for sample in range(TEXTS):
        sampling = Sampling(temperature=1.0, seed=5)
        how = {"rule": Rule.REJECTION, "sampling": sampling, "sample": sample, "nodes": 4}
        session = write(target, [0, 1], drafter, max_new_tokens=length, **how)
        found[tuple(session.context.emitted.tolist())] += 1
        accepted += sum(r.accepted for r in session.rounds)
    return found, accepted


def p_value(found: Counter[tuple[int, ...]], table: Table, length: int = 3) -> float:
    expected = []
    texts = list(product(range(3), repeat=length))
    for text in texts:
        chance, history = 1.0, (0, 1)
        for token in text:
            weights = 2.0 ** np.array(table(history))
            chance *= weights[token] / weights.sum()
            history = (*history, token)
        expected.append(chance * TEXTS)
    return float(stats.chisquare([found[text] for text in texts], expected).pvalue)


@pytest.mark.parametrize("shape", thinned(["beams", "top", "chain"]))
def test_under_rejection_the_law_of_the_text_is_the_targets(shape: str) -> None:
    table = random_table(3, seed=8)
    found, accepted = frequencies(Assistant(model=TableTarget(like(table, size=3), 3), **SHAPES[shape]), table)
    assert accepted > TEXTS / 2
    assert p_value(found, table) > 1e-3


@pytest.mark.slow
def test_a_draft_that_lies_about_its_law_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Likeliest tokens passed off as sampled ones."""
    honest = Growth.tree

    def boastful(self: Growth, source: str) -> DraftTree:
        tree = honest(self, source)
        for node, law in tree.drawn.items():
            tree.tokens[node + 1] = law.ids[law.weights.argmax()]
        return tree

    monkeypatch.setattr(Growth, "tree", boastful)
    table = random_table(3, seed=8)
    found, _ = frequencies(Assistant(model=TableTarget(like(table, size=3), 3)), table)
    assert p_value(found, table) < 1e-6


def test_under_rejection_drafts_see_neither_public_nor_private_coins(monkeypatch: pytest.MonkeyPatch) -> None:
    streams: set[Stream] = set()
    context = Context(PROMPT, Sampling(temperature=1.0), Ending(max_new_tokens=20))
    Session(context, tabled(), tabled().open(), make_drafter("plain"), Fixed(4), Rule.REJECTION)
    honest = context.noise.exponential

    def noted(stream: Stream, index: int, ids: Any, turn: int = 0) -> Any:
        streams.add(stream)
        return honest(stream, index, ids, turn)

    object.__setattr__(context.noise, "exponential", noted)
    drafter = Assistant(model=alike(), top=2)
    [tree] = drafter.propose([Ask(drafter.open(context), Budget(6, 19))])
    assert streams == {Stream.DRAFT}
    assert sorted(tree.drawn) == [-1, 0, 2]


def test_no_coin_is_thrown_twice() -> None:
    """Also not for the same place in a later round: whether it comes to a draw there may depend on the earlier one."""
    thrown: list[tuple[int, int]] = []
    context = Context(PROMPT, Sampling(temperature=1.0), Ending(max_new_tokens=30))
    session = Session(
        context, tabled(), tabled().open(), Assistant(model=alike(), top=2), Fixed(6), Rule.REJECTION, checked=True
    )
    honest = context.noise.exponential

    def noted(stream: Stream, index: int, ids: Any, turn: int = 0) -> Any:
        thrown.extend([(index, turn)] * (stream is Stream.DRAFT))
        return honest(stream, index, ids, turn)

    object.__setattr__(context.noise, "exponential", noted)
    list(run(session))
    assert len(thrown) == len(set(thrown)) > sum(r.accepted for r in session.rounds)
    assert max(turn for _, turn in thrown) > 0


@pytest.mark.slow
def test_a_text_continued_under_the_same_seed_is_drawn_anew() -> None:
    """A chat turn has the seed of the last one, whose coins made the prompt."""
    lm = LanguageModel(TableTarget(lambda history: [0.0, 0.0, 0.0], 3))
    draft = LanguageModel(TableTarget(lambda history: [0.0, 0.0, 0.0], 3))
    repeated = 0
    for seed in range(150):
        how: dict[str, Any] = {"draft_model": draft, "rule": "rejection", "temperature": 1.0, "seed": seed}
        first = lm.generate([0], max_new_tokens=4, **how).tokens
        repeated += lm.generate([0, *first], max_new_tokens=4, **how).tokens[:3] == first[:3]
    assert stats.binomtest(repeated, 150, 1 / 27).pvalue > 1e-3


@pytest.mark.slow
def test_two_assistants_in_one_method_throw_coins_of_their_own() -> None:
    """The first falls silent in the middle, where its context ends."""
    short = TableTarget(lambda history: [0.0, 0.0, 0.0], 3, context_length=3)
    long = TableTarget(lambda history: [0.0, 0.0, 0.0], 3)
    found: Counter[tuple[int, ...]] = Counter()
    for seed in range(600):
        drafter = Fallback([Assistant(model=short), Assistant(model=long)])
        sampling = Sampling(temperature=1.0, seed=seed)
        target = TableTarget(lambda history: [0.0, 0.0, 0.0], 3)
        session = write(target, [0, 0], drafter, rule=Rule.REJECTION, sampling=sampling, max_new_tokens=4, nodes=2)
        found[tuple(session.context.emitted.tolist()[:3])] += 1
    expected = [600 / 27] * 27
    assert stats.chisquare([found[text] for text in product(range(3), repeat=3)], expected).pvalue > 1e-3


# --- the cache ---------------------------------------------------------------------------------------------


@every_shape
@pytest.mark.parametrize("setting", ["greedy", "warm"])
def test_nothing_is_read_twice(shape: str, setting: str) -> None:
    """But for a last token that a beam went through and no draft was sent with: its row must say what follows."""
    model = Watched(like(habitual()))
    drafter = Assistant(model=model, **SHAPES[shape])
    session = write(tabled(), PROMPT, drafter, sampling=SETTINGS[setting], nodes=5, max_new_tokens=40)
    again = [text for text, times in Counter(model.read).items() if times > 1]
    whole = tuple(session.context.tokens.tolist())
    roots = {whole[: round.position] for round in session.rounds}
    assert set(again) <= (roots if "beams" in SHAPES[shape] else set())
    last = max(round.position for round in session.rounds if round.drafted)
    assert {whole[:n] for n in range(len(PROMPT), last + 1)} <= set(model.read)


def test_a_long_prompt_is_read_in_pieces_and_a_second_time_not_at_all() -> None:
    model = Watched(like(habitual()))
    drafter, prompt = Assistant(model=model), (PROMPT * 6)[:40]
    write(tabled(), prompt, drafter, max_new_tokens=4, nodes=2)
    assert max(model.sizes) <= max(model.prefill_chunk, 16)
    assert tuple(prompt) in model.read
    model.read.clear()
    write(tabled(), prompt, drafter, max_new_tokens=4, nodes=2)
    assert min(map(len, model.read)) >= len(prompt)


def test_reading_the_prompt_is_not_decoding() -> None:
    model = Watched(like(habitual()))
    context = Context(PROMPT * 30, Sampling(), Ending(max_new_tokens=4))
    session = Session(context, tabled(), tabled().open(), Assistant(model=model), Fixed(2))
    timed = Timed(session.flow())
    call = timed.send(None)  # the target's first piece of the prompt
    assert not model.sizes
    while call.verb != "propose":
        call = timed.send(answers([call])[0])
    assert sum(model.sizes) >= 30 * len(PROMPT) - IN_PASSING
    assert session.seconds_prefill > 0
    model.sizes.clear()
    timed.send(answers([call])[0])
    assert sum(model.sizes) <= IN_PASSING + 2
    timed.flow.close()


def test_a_method_may_ask_for_a_draft_model_of_another_type() -> None:
    """By name it is loaded once for all methods, but for those that want it otherwise."""
    lm = paceline.load("pocket", dtype="float32", generation_config=False)
    how: dict[str, Any] = {"draft_model": "pocket-draft", "max_new_tokens": 8, "temperature": 0.8}
    specs = ("assistant", "assistant:top=2", "assistant:dtype=bfloat16")
    texts = [lm.generate("Once", method=spec, **how) for spec in specs]
    plain = lm.generate("Once", method="plain", max_new_tokens=8, temperature=0.8)
    assert {tuple(text.tokens) for text in texts} == {tuple(plain.tokens)}
    shared, also, other = (lm.lease(Settings(method=spec, draft_model="pocket-draft")).drafter.models for spec in specs)
    assert shared == also != other
    assert (shared[0].dtype, other[0].dtype) == ("float32", "bfloat16")


def test_texts_of_one_prompt_have_it_read_once_by_the_draft_model() -> None:
    """Those that are opened while others write begin with a copy of the others' rows; what they write is their own."""
    model, target = Watched(like(habitual())), tabled()
    drafter, prompt = Assistant(model=model), PROMPT * 100
    alone = [
        write(tabled(), prompt, drafter, sampling=Sampling(temperature=1.0), sample=number, nodes=2).context.emitted
        for number in range(4)
    ]
    model.sizes.clear()
    drafter = Assistant(model=model)
    sessions = []
    with Batch(target) as batch:
        for number in range(4):
            context = Context(prompt, Sampling(temperature=1.0), Ending(max_new_tokens=16), sample=number)
            sessions.append(Session(context, target, target.open(), drafter, Fixed(2)))
            batch.join(sessions[-1])
        while batch:
            assert all(turn.error is None for turn in batch.step())
    assert len(prompt) - IN_PASSING <= sum(model.sizes) < 2 * len(prompt)
    for session, text in zip(sessions, alone, strict=True):
        assert session.context.emitted.tolist() == text.tolist()


def test_what_another_source_drafted_is_read_too() -> None:
    """A draft model beside a cheaper source that the target often follows falls behind, and catches up."""
    asked: list[int] = []

    class Noted(Assistant):
        def propose(self, asks: Sequence[Ask]) -> list[DraftTree]:
            asked.extend(len(ask.state.context) for ask in asks)
            return super().propose(asks)

    drafter = Fallback([make_drafter("lookup:min_ngram=2"), Noted(model=tabled())])
    sampling = Sampling(temperature=1.0, seed=1)
    session = write(tabled(), PROMPT * 3, drafter, sampling=sampling, max_new_tokens=200, nodes=4)
    copied = sum(emission.source == "lookup" for emission in session.emissions)
    assert copied > 5 < len(asked)
    own = [round for round in session.rounds if round.position in asked]
    assert all(round.accepted == round.drafted for round in own), "a draft model that is the target, and up to date"


# --- batches and limits ------------------------------------------------------------------------------------


@every_shape
def test_drafts_of_several_texts_grow_together(shape: str) -> None:
    contexts = [
        Context((PROMPT * 4)[: 5 + 7 * i], Sampling(temperature=1.0, seed=i), Ending(max_new_tokens=30))
        for i in range(3)
    ]
    model = Watched(like(habitual()))
    together = Assistant(model=model, **SHAPES[shape])
    asks = [Ask(together.open(context), Budget(6, 4 + i)) for i, context in enumerate(contexts)]
    trees = together.propose(asks)
    forwards = len(model.sizes)
    for context, asked, tree in zip(contexts, asks, trees, strict=True):
        alone = Assistant(model=alike(), **SHAPES[shape])
        own = alone.propose([Ask(alone.open(context), asked.budget)])[0]
        assert (tree.tokens.tolist(), tree.parents.tolist()) == (own.tokens.tolist(), own.parents.tolist())
    assert forwards <= 6 + 5  # the deepest draft's levels, and the pieces of the longest prompt


def test_a_draft_model_with_a_short_memory_stops_drafting_in_time() -> None:
    model = alike()
    model.context_length = 20
    session = as_plain(tabled(), PROMPT, Assistant(model=model), max_new_tokens=40)
    assert all(round.drafted == 0 for round in session.rounds if round.position > 20)
    assert any(round.drafted for round in session.rounds)


def test_a_draft_model_that_cannot_read_siblings_reads_chains() -> None:
    class Chained(Watched):
        def reach(self, position: int) -> Reach:
            return Reach(trees=False, depth=2)

    model = Chained(like(habitual()))
    session = as_plain(tabled(), PROMPT, Assistant(model=model, beams=3), max_new_tokens=30, nodes=12)
    assert not model.siblings
    assert max(round.accepted for round in session.rounds) == 3


def test_confidence_ends_a_draft_early() -> None:
    drafted = {}
    for confidence in (0.0, 0.3, 0.9):
        session = write(tabled(), PROMPT, Assistant(model=alike(), confidence=confidence), max_new_tokens=40)
        drafted[confidence] = sum(r.drafted for r in session.rounds)
    assert drafted[0.0] > drafted[0.3] > drafted[0.9]


def test_nothing_follows_the_end_of_the_text() -> None:
    drafter = Assistant(model=alike(), beams=3, top=6, length=6)
    tree = drafted(drafter, PROMPT, Budget(60, 59), eos=[2], temperature=1.0, seed=1)
    ends = np.flatnonzero(tree.tokens == 2)
    assert len(ends)
    assert not set(ends) & set(tree.parents.tolist())


def test_one_drafter_serves_texts_that_interleave() -> None:
    """Each on a `LanguageModel` of its own, which keeps no rows of the other's prompt."""
    drafter, target = Assistant(model=alike(), top=2), tabled()
    settings: dict[str, Any] = {"method": drafter, "planner": "fixed", "temperature": 1.0, "max_new_tokens": 30}
    alone = [LanguageModel(target).generate(PROMPT, seed=seed, **settings) for seed in (1, 2)]
    writings = [LanguageModel(target).write(PROMPT, seed=seed, **settings) for seed in (1, 2)]
    streams: list[Iterator[Any]] = [writing.pieces() for writing in writings]
    for _ in range(30):
        for stream in streams:
            next(stream)
    for writing, stream, own in zip(writings, streams, alone, strict=True):
        assert next(stream, None) is None
        together = writing.result()
        assert together.tokens == own.tokens
        assert [(r.drafted, r.accepted) for r in together.rounds] == [(r.drafted, r.accepted) for r in own.rounds]


def test_one_drafter_serves_texts_of_several_threads() -> None:
    model = load_target(build("llama"))
    target, drafter = load_target(build("llama")), Assistant(model=model, top=2)
    prompt = np.random.default_rng(1).integers(1, 60, 20).tolist()

    def written(seed: int) -> list[tuple[int, int]]:
        lm = LanguageModel(target)
        text = lm.generate(prompt, method=drafter, planner="fixed", temperature=1.0, seed=seed, max_new_tokens=24)
        return [(r.drafted, r.accepted) for r in text.rounds]

    alone = [written(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(written, range(4))) == alone


# --- transformers models -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "shape"), crossed(["llama", "mistral", "gemma2"], SHAPES))
def test_a_real_model_drafts_for_itself_and_is_never_wrong(name: str, shape: str) -> None:
    target, model = load_target(build(name)), load_target(build(name))
    sampling = Sampling(temperature=1.0, seed=7)
    prompt = np.random.default_rng(1).integers(1, 60, 30).tolist()
    session = as_plain(target, prompt, Assistant(model=model, **SHAPES[shape]), sampling=sampling, max_new_tokens=40)
    assert all(round.accepted >= 1 for round in session.rounds[:-1] if round.drafted)
    if shape == "chain":
        assert [r.accepted for r in session.rounds[1:-1]] == [6] * (len(session.rounds) - 2)


# --- who fits whom -----------------------------------------------------------------------------------------


def test_without_tokenizers_the_sizes_must_agree() -> None:
    with pytest.raises(
        ValueError, match=r"it has 9 ids and .* 6, so drafts are translated, and .* without its tokeniz"
    ):
        Assistant(model=TableTarget(random_table(9), 9)).fit(tabled())


def test_padded_rows_of_the_draft_model_are_not_drafted() -> None:
    vocabulary = Vocabulary(wrapped(byte_level()))
    padded = TableTarget(lambda history: [*habitual()(history), 50.0, 50.0], SIZE + 2)
    drafter = Assistant(model=DraftModel(padded, vocabulary), top=3)
    drafter.fit(tabled(), vocabulary)
    session = write(tabled(), PROMPT, drafter, max_new_tokens=20)
    assert sum(r.accepted for r in session.rounds)


def test_a_token_that_the_draft_model_lacks_silences_it() -> None:
    vocabulary = Vocabulary(wrapped(byte_level()))
    rare = TableTarget(lambda history: [*habitual()(tuple(min(t, SIZE - 1) for t in history)), 3.0], SIZE + 1)
    drafter = Assistant(model=DraftModel(load_small(), vocabulary))
    drafter.fit(rare, vocabulary)
    sampling = Sampling(temperature=1.0, seed=2)
    session = as_plain(rare, PROMPT, drafter, sampling=sampling, max_new_tokens=40)
    first = len(PROMPT) + session.context.emitted.tolist().index(SIZE)
    assert all(round.drafted == 0 for round in session.rounds if round.position > first)


def load_small() -> TableTarget:
    """A model that cannot read ids beyond its own."""

    def table(history: tuple[int, ...]) -> list[float]:
        if max(history) >= SIZE:
            raise IndexError("index out of range")
        return list(habitual()(history))

    return TableTarget(table, SIZE)


@pytest.mark.parametrize(
    ("weights", "sampling"),
    [
        ([math.nan] * SIZE, Sampling(temperature=1.0)),
        ([math.inf, *[0.0] * (SIZE - 1)], Sampling(temperature=1.0)),
        ([0.0, *[-math.inf] * (SIZE - 1)], Sampling(temperature=1.0, banned=((0,),))),
        ([0.0] * SIZE, Sampling(temperature=1e300)),
        ([0.0] * SIZE, Sampling(temperature=1e-300)),
        ([0.0] * SIZE, Sampling(temperature=1.0, logit_bias={1: 1e39})),
    ],
)
@pytest.mark.parametrize("rule", list(Rule))
def test_a_draft_model_that_has_lost_its_way_does_not_end_the_text(
    weights: list[float], sampling: Sampling, rule: Rule
) -> None:
    drafter = Assistant(model=TableTarget(lambda history: weights, SIZE), top=2)
    through = as_plain if rule is Rule.COUPLED else write
    assert len(through(tabled(), PROMPT, drafter, sampling=sampling, rule=rule, max_new_tokens=12).emissions) == 12


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"beams": 0}, "'beams'.*at least 1, not 0"),
        ({"top": -1}, "'top'.*at least 1, not -1"),
        ({"length": 0}, "'length'.*at least 1, not 0"),
        ({"noise": "loud"}, "noise=shared or noise=none, not 'loud'"),
        ({"confidence": 1.0}, "from 0 to below 1, not 1.0"),
        ({"model": " "}, "name of the draft model is empty"),
        ({"model": 5}, "a name, a folder or a loaded model, not 5"),
        ({"model": None}, "a name, a folder or a loaded model, not None"),
        ({"model": tabled(), "dtype": "float32"}, "loaded already.*float32"),
    ],
)
def test_an_option_out_of_range_is_told(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Assistant(**{"model": "any"} | options)


def test_the_method_takes_the_draft_model_of_the_settings() -> None:
    lm = LanguageModel(tabled())
    settings, _ = split_settings({"draft_model": LanguageModel(alike()), "method": "assistant"})
    drafter = lm.lease(settings).drafter
    assert isinstance(drafter, Assistant)
    assert lm.lease(settings).drafter is drafter
    lm.forget()
    assert lm.lease(settings).drafter is not drafter
    for top in range(1, 20):
        lm.lease(replace(settings, method=f"assistant:top={top}"))
    assert len(lm._drafters) == KEPT
    both = split_settings({"draft_model": LanguageModel(alike()), "method": "lookup,assistant:top=2"})[0]
    assert isinstance(lm.lease(both).drafter, Fallback)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"method": "assistant"}, "needs a draft model.*--draft-model"),
        ({"method": "lookup", "draft_model": "pocket-draft"}, "uses none"),
        ({"draft_model": "no/such/model/anywhere"}, "no model at"),
        ({"method": make_drafter("lookup"), "draft_model": "pocket-draft"}, "is a Lookup already"),
    ],
)
def test_a_draft_model_that_is_missing_or_unused_is_told(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        LanguageModel(tabled()).generate(PROMPT, **settings)


def test_a_draft_model_is_never_taken_for_another_that_came_after_it() -> None:
    """Kept drafters are found by the identity of a loaded model, which a new object may get from one that is gone."""
    lm = LanguageModel(tabled())
    for number in range(2 * KEPT):
        draft = LanguageModel(TableTarget(habitual(seed=number), SIZE))
        lease = lm.lease(Settings(draft_model=draft, method="assistant"))
        assert lease.drafter.models == (draft.target,)
        assert lm.lease(Settings(draft_model=draft, method="assistant")) is lease


def test_a_quoted_value_may_hold_commas_and_pluses() -> None:
    drafter = make_drafter("""lookup,assistant:model="pocket+ballast:60M",beams=2+lookup""")
    assert isinstance(drafter, Fallback)
    assert isinstance(drafter.parts[1], Union)
    assistant = drafter.parts[1].parts[0]
    assert isinstance(assistant, Assistant)
    assert (assistant._named, assistant.shape.beams) == ("pocket+ballast:60M", 2)
    with pytest.raises(ValueError, match=r"unknown method 'ballast'.*in quotes"):
        make_drafter("assistant:model=pocket+ballast:60M")
    with pytest.raises(ValueError, match="opened and not closed"):
        make_drafter('assistant:model="pocket')
