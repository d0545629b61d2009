"""Drafts of a recurrent head: the text, laws by enumeration, a head that knows its target, search and files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import paceline
from batches import WARM, Spied, Wish, finish
from drafting import as_plain, context_of
from engine import PROMPT, SIZE, habitual, tabled, write
from enumeration import Coins, World, outcome_of, output_law, played
from paceline.api.chat import Conversation
from paceline.api.model import LanguageModel
from paceline.cli import main
from paceline.drafters import Ask, Budget, make_drafter
from paceline.drafters.networks import search
from paceline.drafters.networks.checkpoint import Provenance, record_noise
from paceline.drafters.networks.redrafter import ReDrafter, checkpoint, fitting
from paceline.drafters.networks.redrafter.checkpoint import PUBLIC, TENSORRT, read_head, write_head
from paceline.drafters.networks.redrafter.head import HeadShape, RecurrentHead, widened
from paceline.drafters.networks.settings import Adjusting
from paceline.drafters.noise import SharedNoise
from paceline.engine.batch import Batch
from paceline.engine.loop import Session
from paceline.errors import DamagedFile, InputError
from paceline.law import Distribution, Noise, Outlook, Sampling
from paceline.law.draws import Draws, cuts, numbers_of
from paceline.law.on_device import counters, gumbel
from paceline.law.warp import Warps
from paceline.targets.table import Table, TableTarget, random_table
from paceline.verify import Rule

SMALL = HeadShape(width=8, vocab_size=11, exit=12)
SAMPLINGS = {
    "greedy": Sampling(),
    "warm": Sampling(temperature=1.0, seed=3),
    "cold": Sampling(temperature=0.6, seed=3),
    "cut": Sampling(temperature=1.2, top_k=4, top_p=0.9, min_p=0.02, seed=3),
    "named": Sampling(temperature=1.0, logit_bias={2: 0.7, 5: -1.0}, banned=((1,),), seed=3),
    "penalised": Sampling(
        temperature=0.9, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.3, logit_bias={0: 1}, seed=3
    ),
}


class Knowing(RecurrentHead):
    """A head that knows the law of a table with a memory of two tokens: of the target's state it reads the token before
    the text's last one, and its own state is the last token, with the one before it as a half."""

    def __init__(self, table: Table, size: int = SIZE, shown: Sequence[int] | None = None) -> None:
        kept = 0 if shown is None else len(shown)
        super().__init__(HeadShape(width=size, vocab_size=size, exit=2, recurrent=False, kept=kept))
        self._table, self._shown = table, shown
        if shown is not None:
            self.token_ids = torch.tensor(shown)

    def first(self, embedded: torch.Tensor) -> torch.Tensor:
        return embedded

    def next(self, state: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        return embedded + 0.5 * (state >= 1)

    def logits(self, hidden: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        rows = [self._law(*both) for both in zip(hidden.flatten(0, 1), state.flatten(0, 1), strict=True)]
        logits = (torch.tensor(rows, dtype=torch.float64) * np.log(2)).view(*state.shape[:2], -1)
        return logits if self._shown is None else logits[..., list(self._shown)]

    def _law(self, hidden: torch.Tensor, state: torch.Tensor) -> list[float]:
        last = int(state.argmax())
        halves = (state == 0.5).nonzero().flatten().tolist()
        before = last if state[last] > 1 else halves[0] if halves else int(hidden.argmax())
        return list(self._table((before, last)))


@pytest.fixture
def knowing(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes drafters whose head knows the table of `tabled`."""

    def make(head: RecurrentHead | None = None, target: TableTarget | None = None, **options: Any) -> ReDrafter:
        monkeypatch.setattr(fitting, "head_for", lambda named, target: fitting.FittedHead(head or Knowing(habitual())))
        drafter = ReDrafter(**options)
        drafter.fit(target or tabled())
        return drafter

    return make


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    return paceline.load("pocket", dtype="float32", generation_config=False)


@pytest.fixture(scope="module")
def random_head(lm: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A head for `pocket` that was never trained."""
    folder = tmp_path_factory.mktemp("head")
    torch.manual_seed(0)
    write_head(
        folder,
        RecurrentHead(HeadShape(width=256, vocab_size=8192, exit=64)),
        Provenance(target=lm.target.fingerprint()),
    )
    return folder


# --- a head that knows its target ---------------------------------------------------------------------------


@pytest.mark.parametrize("setting", SAMPLINGS)
def test_a_head_that_knows_the_law_is_never_wrong(knowing: Any, setting: str) -> None:
    """So states, places of the noise, settings and penalties of drafted tokens are the target's."""
    how: dict[str, Any] = {"sampling": SAMPLINGS[setting], "max_new_tokens": 40, "nodes": 3}
    session = as_plain(tabled(), PROMPT, knowing(width=1, length=3), **how)
    drafted = [each for each in session.rounds if each.drafted]
    assert len(drafted) > 6
    assert all(each.accepted == each.drafted for each in drafted)


@pytest.mark.parametrize("setting", SAMPLINGS)
def test_beams_hold_what_comes_next(knowing: Any, setting: str) -> None:
    how: dict[str, Any] = {"sampling": SAMPLINGS[setting], "max_new_tokens": 40, "nodes": 9}
    session = as_plain(tabled(), PROMPT, knowing(width=3, length=3), **how)
    assert all(each.accepted > 0 for each in session.rounds if each.drafted)
    assert sum(each.accepted for each in session.rounds) > 20


def test_a_part_vocabulary_names_the_targets_tokens(knowing: Any) -> None:
    head = Knowing(habitual(), shown=[0, 2, 3, 5])
    how: dict[str, Any] = {"sampling": Sampling(temperature=1.0, seed=3), "max_new_tokens": 60, "nodes": 2}
    session = as_plain(tabled(), PROMPT, knowing(head, width=1, length=1), **how)
    missing = {1, 4}
    for each in session.rounds:
        if each.drafted:
            assert each.accepted or session.context.tokens[each.position] in missing
    assert sum(each.accepted for each in session.rounds) > 10


def batched(target: TableTarget, drafter: ReDrafter, wishes: Sequence[Wish]) -> list[Session]:
    """Texts that come and go, three at once: as one ends, the next begins."""
    sessions = [wish.session(target, drafter) for wish in wishes]
    with Batch(target, at_once=3) as batch:
        for session in sessions:
            batch.join(session)
        finish(batch)
    return sessions


def test_the_head_is_right_in_batches_that_come_and_go(knowing: Any) -> None:
    target, drafter = tabled(), knowing(width=2, length=3)
    wishes = [replace(WARM, sample=number, ending={"max_new_tokens": 5 + 3 * number}) for number in range(7)]
    sessions = batched(target, drafter, wishes)
    for wish, session in zip(wishes, sessions, strict=True):
        alone = wish.alone(target, drafter)
        assert session.context.emitted.tolist() == alone.context.emitted.tolist()
        assert [each.accepted for each in session.rounds] == [each.accepted for each in alone.rounds]
        assert all(each.accepted > 0 for each in session.rounds if each.drafted)


def wrong_rounds(knowing: Any, **options: Any) -> int:
    """Drafted rounds in which nothing was accepted, of a warm text; 0 without a mistake."""
    drafter = knowing(**{"width": 1, "length": 2, **options})
    how: dict[str, Any] = {"sampling": Sampling(temperature=1.0, seed=5), "max_new_tokens": 60, "nodes": 2}
    session = write(tabled(), PROMPT, drafter, **how)
    return sum(each.accepted < each.drafted for each in session.rounds)


def test_mistakes_that_cost_acceptance_only_would_be_seen(knowing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert wrong_rounds(knowing) == 0
    honest = ReDrafter.observe

    def other_row(self: ReDrafter, seen: Any) -> None:
        honest(self, seen)
        for state, verdict, scores in seen:
            if verdict.tokens:
                state.hidden = scores.hidden(1)[0].clone()

    def stale(self: ReDrafter, seen: Any) -> None:
        for one in seen:
            before = one.state.hidden
            honest(self, [one])
            one.state.hidden = one.state.hidden if before is None else before

    for mistake in (other_row, stale):
        with monkeypatch.context() as planted:
            planted.setattr(ReDrafter, "observe", mistake)
            assert wrong_rounds(knowing) > 3, mistake.__name__
    coins = SharedNoise.exponentials
    with monkeypatch.context() as planted:
        planted.setattr(SharedNoise, "exponentials", lambda self, ahead, ids: coins(self, ahead + 1, ids))
        assert wrong_rounds(knowing) > 3
    shifted = Knowing(habitual(), shown=list(range(SIZE)))
    shifted.token_ids = torch.tensor([1, 2, 3, 4, 5, 0])
    assert wrong_rounds(lambda **options: knowing(shifted, **options)) > 3


def test_the_first_draft_waits_for_a_state_and_nothing_is_read_for_it(knowing: Any) -> None:
    target = Spied()
    drafter = knowing(target=target)
    rows = target.open()
    write(target, PROMPT, drafter, rows=rows, max_new_tokens=4)
    again = [*PROMPT, *rows.tokens[len(PROMPT) :].tolist()]
    target.seen.clear()
    session = write(target, again, drafter, rows=rows, max_new_tokens=6)
    assert session.reused >= len(again) - 1
    assert sum(target.prompt_rows) == 0
    assert [each.drafted > 0 for each in session.rounds][:2] == [False, True]


# --- the text, and laws ------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", ["", ",width=1", ",noise=none", ",keep=beams,width=16,length=6"])
def test_the_text_is_plain_decodings(lm: LanguageModel, random_head: Path, options: str) -> None:
    texts = ["The old house stood", "Na końcu długiej drogi stał", "Старий будинок"]
    for how in ({}, {"temperature": 0.8, "seed": 2}, {"temperature": 1.1, "top_k": 9, "top_p": 0.9, "seed": 2}):
        plain = lm.generate_batch(texts, method="plain", max_new_tokens=12, **how)
        method = f"redrafter:head={random_head}{options}"
        found = lm.generate_batch(texts, method=method, planner="fixed", max_new_tokens=12, **how)
        assert [text.tokens for (text,) in found] == [text.tokens for (text,) in plain]
        assert all(text.totals.drafted for (text,) in found)


def drawn_by(coins: Coins) -> Any:
    """`drawn_noise` with coins that are enumerated."""

    def drawn_noise(contexts: Any) -> Any:
        def added_noise(ids: torch.Tensor, logs: torch.Tensor, place: int) -> torch.Tensor:
            order = np.argsort(ids[0, 0].numpy())
            weights = [Fraction(weight) for weight in logs[0, 0].exp().numpy()[order].tolist()]
            token = coins.fresh(Distribution(ids[0, 0].numpy()[order], np.array(weights)))
            return torch.where(ids == token, 0.0, -torch.inf)

        return added_noise

    return drawn_noise


def law_with_head(monkeypatch: pytest.MonkeyPatch, rule: Rule, **options: Any) -> tuple[Any, Any]:
    world = World(length=2)
    size = world.target.vocab_size
    torch.manual_seed(1)
    head = RecurrentHead(HeadShape(width=size, vocab_size=size, exit=4)).double().requires_grad_(False)
    monkeypatch.setattr(fitting, "head_for", lambda named, target: fitting.FittedHead(head))

    def play(coins: Coins) -> Any:
        monkeypatch.setattr(search, "drawn_noise", drawn_by(coins))
        drafter = ReDrafter(**options)
        drafter.fit(world.target)
        return outcome_of(played(world, rule, drafter, coins, nodes=4))

    return output_law(play), world.plain()


@pytest.mark.parametrize(
    ("rule", "options"),
    [
        (Rule.REJECTION, {"width": 1, "length": 2}),
        (Rule.REJECTION, {"width": 2, "length": 2}),
        (Rule.COUPLED, {"width": 2, "length": 2, "noise": "none"}),
    ],
    ids=["drawn", "beams", "coupled"],
)
def test_the_law_is_plain_decodings(monkeypatch: pytest.MonkeyPatch, rule: Rule, options: dict[str, Any]) -> None:
    found, plain = law_with_head(monkeypatch, rule, **options)
    assert found.keys() == plain.keys()
    for text, probability in plain.items():
        assert float(found[text]) == pytest.approx(float(probability), abs=1e-9)


# --- the search --------------------------------------------------------------------------------------------


def by_hand(head: Knowing, context: Any, before: int, width: int, length: int) -> set[tuple[int, ...]]:
    """All that a beam search chooses, written with lists: paths of the beams of every level."""
    outlook, noise = Outlook(context.sampling, context.prompt_length), SharedNoise.of(context)
    beams, chosen = [((), 0.0)], set[tuple[int, ...]]()
    for place in range(length):
        found = []
        for path, score in beams:
            text = [before, *context.tokens[-1:].tolist(), *path]
            row = torch.tensor([head._table(tuple(text[-2:]))], dtype=torch.float64) * np.log(2)
            (law,) = outlook.laws(row, [context.extended(path).tokens])
            speeds = law.weights
            if noise is not None:
                speeds = speeds / context.exponentials(place, law.ids)
            for token, speed in zip(law.ids.tolist(), speeds / speeds.sum(), strict=True):
                found.append(((*path, token), score + np.log(speed)))
        beams = sorted(found, key=lambda beam: -beam[1])[:width]
        chosen |= {path for path, _ in beams}
    return chosen


def uneven(history: tuple[int, ...]) -> list[float]:
    """A table without equal weights."""
    return list(np.random.default_rng(history[-2:]).normal(0, 2, SIZE))


@pytest.mark.parametrize("setting", SAMPLINGS)
def test_the_search_chooses_what_a_search_by_hand_does(knowing: Any, setting: str) -> None:
    sampling = SAMPLINGS[setting]
    head = Knowing(uneven)
    drafter = knowing(head, width=3, length=3)
    asks, wanted = [], []
    for number, last in enumerate([3, 0, 5, 1]):
        context = context_of([2, 4, number, last], **{**vars(sampling), "seed": number})
        state = drafter.open(context)
        state.hidden, state.length = torch.nn.functional.one_hot(torch.tensor(number), SIZE).double(), len(context)
        asks.append(Ask(state, Budget(99, 3 - number % 2)))
        wanted.append(by_hand(head, context, number, 3, 3 - number % 2))
    for tree, paths in zip(drafter.propose(asks), wanted, strict=True):
        tree.check(SIZE)
        assert {tuple(tree.tokens[tree.path(node)].tolist()) for node in range(len(tree))} == paths


def test_an_end_of_text_ends_a_beam(knowing: Any) -> None:
    drafter = knowing(width=4, length=4)
    context = context_of([2, 4, 1, 3], eos=[0, 2])
    state = drafter.open(context)
    state.hidden, state.length = torch.nn.functional.one_hot(torch.tensor(1), SIZE).double(), 4
    (tree,) = drafter.propose([Ask(state, Budget(99, 4))])
    ends = [node for node, token in enumerate(tree.tokens.tolist()) if token in (0, 2)]
    assert ends
    assert not set(ends) & set(tree.parents.tolist())
    (beams,) = knowing(width=4, length=4, keep="beams").propose([Ask(state, Budget(99, 4))])
    leaves = set(range(len(beams))) - set(beams.parents.tolist())
    assert all(beams.tokens[leaf] in (0, 2) or len(beams.path(leaf)) == 4 for leaf in leaves)


def test_a_broken_state_drafts_nothing_and_leaves_others_alone(knowing: Any) -> None:
    class Broken(Knowing):
        def logits(self, hidden: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
            return super().logits(hidden.nan_to_num(0), state) + hidden.sum(-1, keepdim=True) * 0

    drafter = knowing(Broken(habitual()), width=2, length=2)
    asks = []
    for hidden in (torch.full((SIZE,), torch.nan).double(), torch.eye(SIZE).double()[1]):
        state = drafter.open(context_of([2, 4, 1, 3], temperature=1.0))
        state.hidden, state.length = hidden, 4
        asks.append(Ask(state, Budget(9, 9)))
    broken, whole = drafter.propose(asks)
    assert len(broken) == 0
    assert len(whole) == 4


def test_noise_on_a_device_is_the_public_noise() -> None:
    ids = torch.tensor([[[0, 5, 8191, 150_000]], [[7, 7, 6, 1]]])
    coins = [(Noise(3, 1), 17), (Noise(2**63 + 5), 4)]
    found = gumbel(torch.tensor(counters(coins)).view(2, 5), ids)[:, 0]
    wanted = [noise.gumbel(index, row.numpy()) for (noise, index), row in zip(coins, ids.flatten(1), strict=True)]
    np.testing.assert_allclose(found.numpy(), np.stack(wanted), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("setting", SAMPLINGS)
def test_settings_of_several_texts_are_those_of_each(setting: str) -> None:
    sampling = SAMPLINGS[setting]
    contexts = [context_of([0, 3, 3, 1], **vars(sampling)), context_of([5, 5, 2], **vars(Sampling(temperature=0.7)))]
    rows = torch.randn(2, 1, SIZE, generator=torch.Generator().manual_seed(4))
    adjusting = Adjusting(contexts, None, SIZE, torch.device("cpu"))
    adjusted = adjusting.apply(rows, torch.empty(2, 1, 0, dtype=torch.int64))
    warps = [Warps.of(context.sampling) for context in contexts]
    draws = Draws(torch.tensor([numbers_of(each, None) for each in warps]), cut=any(map(cuts, warps)), noisy=False)
    scaled = adjusted / draws.temperatures
    best, at = scaled.topk(SIZE, dim=-1)
    logs, _ = draws.logs(best, scaled.logsumexp(dim=-1))
    for text, context in enumerate(contexts):
        (law,) = Outlook(context.sampling, context.prompt_length).laws(rows[text], [context.tokens])
        found = dict(zip(at[text, 0].tolist(), logs[text, 0].exp().tolist(), strict=True))
        for token in range(SIZE):
            assert found[token] == pytest.approx(float(law.probability(token)), abs=2e-5)


# --- heads and their files ---------------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", [4, 16])
@pytest.mark.parametrize(
    "shape",
    [SMALL, replace(SMALL, exit=16), replace(SMALL, rank=3, kept=5), replace(SMALL, recurrent=False, blocks=0)],
    ids=["projected", "whole", "thin", "cumulative"],
)
def test_ballast_does_not_change_a_head(shape: HeadShape, ratio: int) -> None:
    torch.manual_seed(2)
    head = RecurrentHead(shape).requires_grad_(False)
    wide = widened(head, ratio)
    narrow = [torch.randn(3, shape.width) for _ in range(3)]
    padded = [torch.cat([each, torch.zeros(3, shape.width * (ratio - 1))], dim=1) for each in narrow]

    def run(each: RecurrentHead, hidden: Any, one: Any, other: Any) -> torch.Tensor:
        return each.logits(hidden, each.next(each.first(one), other))

    torch.testing.assert_close(run(wide, *padded), run(head, *narrow), atol=1e-5, rtol=1e-5)
    assert wide.parameters_in_all > head.parameters_in_all


@pytest.mark.parametrize("names", [PUBLIC, TENSORRT])
def test_files_hold_a_head(tmp_path: Path, names: str) -> None:
    torch.manual_seed(3)
    shape = replace(SMALL, first="update" if names == PUBLIC else "linear")
    head = RecurrentHead(shape)
    write_head(tmp_path, head, Provenance(target="abc"), names=names)
    found, config = read_head(tmp_path)
    assert (config.shape, config.target) == (shape, "abc")
    assert all(torch.equal(weight, found.state_dict()[name]) for name, weight in head.state_dict().items())
    stored = load_file(tmp_path / "model.safetensors")
    if names == PUBLIC:
        assert {"input_proj.weight", "lm_head.0.linear.bias", "lm_head.2.weight", "rnn_u.bias"} <= stored.keys()
    else:
        assert {"drafter.lm_head.weight", "drafter.layers.1.linear.weight", "drafter.rnn_w.weight"} <= stored.keys()


def test_a_head_of_the_public_code_says_nothing_of_its_target(tmp_path: Path) -> None:
    write_head(tmp_path, RecurrentHead(SMALL))
    config = tmp_path / "config.json"
    content = json.loads(config.read_text())
    del content["paceline"]
    config.write_text(json.dumps(content))
    _, found = read_head(tmp_path)
    assert (found.shape, found.target) == (SMALL, "")


NOISY = {"shared": 1.5, "none": 1.25}


@pytest.mark.parametrize(
    ("measured", "spec", "wanted"),
    [
        (None, "redrafter:head={}", "shared"),
        (NOISY, "redrafter:head={}", "shared"),
        ({**NOISY, "none": 1.75}, "redrafter:head={}", "none"),
        ({**NOISY, "none": 1.75}, "redrafter:head={},noise=shared", "shared"),
        ({**NOISY, "none": 1.75}, "auto:head={}", "none"),
        ({**NOISY, "none": 1.75}, "auto:head={},noise=shared", "shared"),
        (NOISY, "auto:head={},noise=none", "none"),
    ],
)
def test_drafts_are_ranked_as_was_better_for_the_head_unless_the_method_says_it(
    lm: LanguageModel, tmp_path: Path, measured: dict[str, float] | None, spec: str, wanted: str
) -> None:
    write_head(tmp_path, RecurrentHead(HeadShape(width=256, vocab_size=8192, exit=16)))
    if measured is not None:
        record_noise(tmp_path, measured)
        assert read_head(tmp_path)[1].trained["tokens_per_round"] == measured
    drafter = make_drafter(spec.format(tmp_path))
    drafter.fit(lm.target, lm.vocabulary)
    head = drafter if isinstance(drafter, ReDrafter) else drafter.parts[-1]
    assert isinstance(head, ReDrafter)
    assert head._noise == (wanted == "shared")


def test_a_head_of_an_unknown_ranking_is_one_sentence(tmp_path: Path) -> None:
    write_head(tmp_path, RecurrentHead(SMALL))
    record_noise(tmp_path, {"loud": 2.0})
    with pytest.raises(DamagedFile, match=r"noise is 'loud', and a head has shared or none; train it again"):
        read_head(tmp_path)


def test_integers_and_part_vocabularies_are_kept(tmp_path: Path) -> None:
    torch.manual_seed(4)
    head = RecurrentHead(replace(SMALL, kept=6))
    head.token_ids = torch.tensor([0, 2, 3, 7, 9, 10])
    write_head(tmp_path, head, Provenance(int8=True, dtype=torch.bfloat16))
    found, _ = read_head(tmp_path)
    assert found.token_ids is not None
    assert found.token_ids.tolist() == [0, 2, 3, 7, 9, 10]
    wanted = head.lm_head[2].weight
    assert (found.lm_head[2].weight - wanted).abs().max() < wanted.abs().max() / 100


def spoiled(folder: Path, change: Any) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)


SPOILED = {
    "lacks the tensor rnn_u.bias": lambda tensors: tensors.pop("rnn_u.bias"),
    "is 3 x 3, and its configuration says 8 x 8": lambda tensors: tensors.update({"rnn_w.weight": torch.ones(3, 3)}),
    "holds numbers that are not finite": lambda tensors: tensors["rnn_w.weight"].fill_(torch.nan),
    "holds a tensor 'more' that": lambda tensors: tensors.update({"more": torch.ones(1)}),
}


@pytest.mark.parametrize("said", SPOILED)
def test_a_spoiled_head_is_one_sentence(tmp_path: Path, said: str) -> None:
    write_head(tmp_path, RecurrentHead(SMALL))
    spoiled(tmp_path, SPOILED[said])
    with pytest.raises(InputError, match=said):
        read_head(tmp_path)


def test_a_rank_that_is_no_number_is_one_sentence(tmp_path: Path) -> None:
    write_head(tmp_path, RecurrentHead(SMALL))
    config = tmp_path / "config.json"
    content = json.loads(config.read_text())
    content["paceline"]["rank"] = True
    config.write_text(json.dumps(content))
    with pytest.raises(DamagedFile, match="rank and kept are whole numbers, not True"):
        read_head(tmp_path)


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("num_draft_layers", "says 1099511627776 layers, and model.safetensors has"),
        ("hidden_size", "says width 1099511627776, and no tensor in model.safetensors is so large"),
        ("exit_dim", "says exit 1099511627776, and no tensor"),
        ("vocab_size", "says known 1099511627776, and no tensor"),
        ("rank", "says rank 1099511627776, and no tensor"),
    ],
)
def test_sizes_that_the_file_does_not_have_are_not_built(
    tmp_path: Path, field: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_head(tmp_path, RecurrentHead(SMALL))
    config = tmp_path / "config.json"
    content = json.loads(config.read_text())
    (content["paceline"] if field == "rank" else content)[field] = 2**40
    config.write_text(json.dumps(content))
    monkeypatch.setattr(checkpoint, "RecurrentHead", None)
    with pytest.raises(InputError, match=said):
        read_head(tmp_path)


def test_a_file_is_no_head(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_head(tmp_path, RecurrentHead(SMALL))
    file = str(tmp_path / "model.safetensors")
    drafting = ["generate", "Once", "--method", f"redrafter:head={file}"]
    for command, writer in ((["train", "info", file], "train"), (drafting, "train redrafter")):
        assert main(command) == 2
        said = capsys.readouterr().err
        assert said.endswith(f"error: {file} is a file; give the folder that 'paceline {writer}' wrote\n")


def test_other_files_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no head in"):
        read_head(tmp_path)
    write_head(tmp_path, RecurrentHead(SMALL))
    (tmp_path / "model.safetensors").rename(tmp_path / "model.pt")
    with pytest.raises(InputError, match="a pickle, which can run code"):
        read_head(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(DamagedFile, match="is damaged"):
        read_head(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(DamagedFile, match="model_type is 'llama'"):
        read_head(tmp_path)


def test_a_head_must_be_for_the_target(lm: LanguageModel, tmp_path: Path) -> None:
    def refused(shape: HeadShape, said: str, target: str = "") -> None:
        write_head(tmp_path, RecurrentHead(shape), Provenance(target=target))
        with pytest.raises(InputError, match=said):
            make_drafter(f"redrafter:head={tmp_path}").fit(lm.target, lm.vocabulary)

    refused(SMALL, "states of width 8, and those of pocket are 256 wide")
    refused(HeadShape(width=256, vocab_size=100, exit=8), "names 100 tokens, and pocket has 8192")
    refused(HeadShape(width=256, vocab_size=8192, exit=8), "was trained for a model with other weights", "abc")
    with pytest.raises(InputError, match="no head for table comes with paceline"):
        make_drafter("redrafter").fit(TableTarget(random_table(4), 4))


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("redrafter:width=0", "'width' of method 'redrafter' is at least 1"),
        ("redrafter:length=0", "'length' of method 'redrafter' is at least 1"),
        ("redrafter:keep=some", "keep=all or keep=beams"),
        ("redrafter:noise=loud", "noise=shared or noise=none"),
    ],
)
def test_options_that_make_no_sense_are_one_sentence(spec: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        make_drafter(spec)


def test_a_second_turn_reads_only_what_is_new_and_is_drafted_soon() -> None:
    """The state that a draft needs comes with the first forward of the turn; nothing is read again for it."""
    lm = paceline.load("pocket", dtype="float32", generation_config=False)
    talks = {}
    for method in ("plain", "redrafter:width=4,length=4"):
        lm.forget()
        how: dict[str, Any] = {"method": method, "planner": "fixed", "temperature": 0.8, "seed": 4}
        talk = talks[method] = Conversation(lm, max_new_tokens=24, **how)
        for said in ("Tell me of the house", "and of its garden?", "who lives there"):
            assert list(talk.stream(said))
        for before, reply in zip(talk.replies, talk.replies[1:], strict=False):
            assert reply.cached_tokens >= before.prompt_tokens + len(before.tokens) - 2
    plain, drafted = (talk.replies for talk in talks.values())
    assert [reply.tokens for reply in drafted] == [reply.tokens for reply in plain]
    for reply in drafted:
        assert any(each.drafted for each in reply.rounds[1:3])
