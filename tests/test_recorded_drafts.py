"""Drafts recorded whole: what is played is what grows level by level. They are recorded on a tape, which repeats what a
CUDA graph would; see `test_fixed`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from drafting import SETTINGS, context_of
from engine import write
from families import build
from paceline.drafters import Ask, Budget, make_drafter
from paceline.drafters.networks import search
from paceline.drafters.networks.assistant import Assistant
from paceline.drafters.networks.redrafter.head import HeadShape, RecurrentHead
from paceline.law import Sampling, on_device
from paceline.law.draws import DRAW_NUMBERS, INDEX, Draws, numbers_of
from paceline.law.warp import Warps
from paceline.targets.base import Request
from paceline.targets.chains import Chain, ChainDraft
from paceline.targets.hf.fixed import links
from paceline.targets.hf.fixed.capture import direct
from paceline.targets.hf.fixed.links import Links
from paceline.targets.hf.fixed.recordings import Recordings
from paceline.targets.hf.target import HFTarget
from paceline.tree import DraftTree
from scoring import apart, filled, load_quietly, path_of, random_tree, recorded, tokens
from tape import taped

every_setting = pytest.mark.parametrize("setting", SETTINGS)


class ByLevels(HFTarget):
    def drafted(self, chains: Sequence[Chain]) -> list[ChainDraft] | None:
        return None


def by_levels(name: str = "llama") -> HFTarget:
    return ByLevels(build(name))


class Text:
    """A text that a draft model follows, whose drafts are played, and its twin, whose drafts grow level by level."""

    def __init__(self, pair: "Pair", text: Sequence[int], **how: Any) -> None:
        self.contexts = [context_of(list(text), **how) for _ in range(2)]
        self.states = [drafter.open(context) for drafter, context in zip(pair.drafters, self.contexts, strict=True)]

    def go_on(self, more: Sequence[int]) -> None:
        for context in self.contexts:
            for token in more:
                context.commit(token)


class Pair:
    def __init__(self, name: str = "llama", record: Any = taped, *, lean: bool = True) -> None:
        self.target, self.twin = recorded(build(name), record, lean=lean), by_levels(name)
        self.drafters = [Assistant(model=target) for target in (self.target, self.twin)]
        for drafter, target in zip(self.drafters, (self.target, self.twin), strict=True):
            drafter.fit(target)

    def propose(self, texts: Sequence[Text], budgets: Sequence[Budget]) -> list[tuple[DraftTree, DraftTree]]:
        ours, theirs = (
            drafter.propose([Ask(text.states[which], b) for text, b in zip(texts, budgets, strict=True)])
            for which, drafter in enumerate(self.drafters)
        )
        for text in texts:
            for state in text.states:
                state.rows.check()
        return list(zip(ours, theirs, strict=True))


def same(ours: DraftTree, theirs: DraftTree) -> bool:
    return (
        ours.tokens.tolist() == theirs.tokens.tolist()
        and ours.parents.tolist() == theirs.parents.tolist()
        and np.allclose(ours.scores, theirs.scores, atol=1e-2)
    )


@every_setting
def test_a_played_draft_is_the_one_that_grows(setting: str) -> None:
    """Round after round, whatever of it the target takes."""
    pair, random = Pair(), np.random.default_rng(0)
    text = Text(pair, tokens(30), **SETTINGS[setting])
    for depth in (4, 3, 5, 4, 1, 2):
        ((ours, theirs),) = pair.propose([text], [Budget(depth, depth)])
        assert same(ours, theirs)
        assert len(ours) == depth
        kept = ours.tokens[: random.integers(0, depth + 1)]
        text.go_on([*kept.tolist(), int(random.integers(1, 90))])
    assert path_of(pair.target).refused is None
    assert path_of(pair.target).linked


def test_drafts_of_several_texts_are_played_together() -> None:
    pair = Pair()
    texts = [Text(pair, tokens(n, n), temperature=0.9, seed=n) for n in (9, 40, 21)]
    for depths in ((3, 3, 3), (1, 4, 2), (4, 4, 4)):
        drafts = pair.propose(texts, [Budget(depth, depth) for depth in depths])
        assert all(same(*draft) for draft in drafts)
        assert [len(ours) for ours, _ in drafts] == list(depths)
        for number, text in enumerate(texts):
            text.go_on([*drafts[number][0].tokens[:number].tolist(), 5])
    assert {shape.first.count for shape in path_of(pair.target).linked} == {4}


@pytest.mark.parametrize("name", ["mistral", "qwen3", "gemma2", "gpt_oss", "opt"])
def test_drafts_of_other_families(name: str) -> None:
    pair = Pair(name, lean=name in ("mistral", "qwen3"))
    text = Text(pair, tokens(30), temperature=1.0, seed=2)
    for _ in range(3):
        ((ours, theirs),) = pair.propose([text], [Budget(5, 5)])
        assert same(ours, theirs)
        text.go_on([*ours.tokens[:2].tolist(), 7])
    assert path_of(pair.target).linked


def test_a_draft_ends_with_the_text() -> None:
    pair = Pair()
    text = Text(pair, tokens(30))
    ((ours, _),) = pair.propose([text], [Budget(6, 6)])
    end = int(ours.tokens[2])
    first = ours.tokens.tolist().index(end)
    for drafter, state in zip(pair.drafters, text.states, strict=True):
        drafter.close(state)
    again = Text(pair, tokens(30), eos=(end,))
    ((ours, theirs),) = pair.propose([again], [Budget(6, 6)])
    assert same(ours, theirs)
    assert len(ours) == first + 1


def test_a_broken_row_ends_a_draft() -> None:
    target = recorded(build("llama"), direct, lean=True)
    with torch.no_grad():
        target.model.lm_head.weight[3] = torch.nan
    drafter = Assistant(model=target)
    drafter.fit(target)
    state = drafter.open(context_of(tokens(30).tolist()))
    assert len(drafter.propose([Ask(state, Budget(4, 4))])[0]) == 0
    state.rows.check()


def test_what_was_drafted_is_not_read_again() -> None:
    """The rows of a draft that became text are kept, and those of the next draft follow them."""
    pair, plain = Pair(), by_levels()
    text = Text(pair, tokens(30))
    ((ours, _),) = pair.propose([text], [Budget(4, 4)])
    text.go_on(ours.tokens[:2].tolist())
    pair.propose([text], [Budget(4, 4)])
    state = text.states[0]
    line = state.rows.tokens.copy()
    assert state.tally.take()["draft_forwards"] == 8
    state.rows.note(np.empty(0, np.int64))
    twin, tree = filled(plain, line), random_tree(4, 7)
    found, expected = (
        target.submit([Request.of_tree(rows, 3, tree)]).result()[0].logits
        for target, rows in ((pair.target, state.rows), (plain, twin))
    )
    assert apart(found, expected) < 1e-4


def test_texts_are_those_without_drafts() -> None:
    target = load_quietly(build("llama"))
    for how in ({}, {"temperature": 0.8, "seed": 4}):
        written = []
        for model in (None, recorded(build("llama", seed=1), taped, lean=True)):
            drafter = make_drafter("plain") if model is None else Assistant(model=model)
            written.append(
                write(target, tokens(30), drafter, max_new_tokens=40, sampling=Sampling(**how)).context.emitted
            )
        assert np.array_equal(*written)


def test_a_recording_of_a_short_draft_plays_a_long_one() -> None:
    """Links of both kinds are tried before either is kept."""
    pair = Pair()
    text = Text(pair, tokens(30), temperature=1.0, seed=3)
    for depth in (1, 8, 1):
        ((ours, theirs),) = pair.propose([text], [Budget(depth, depth)])
        assert same(ours, theirs)
        assert len(ours) == depth
        text.go_on([4])
    assert len(path_of(pair.target).linked) == 1


def test_what_only_a_draft_has_no_memory_for_leaves_forwards_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*given: Any) -> None:
        raise torch.OutOfMemoryError("no memory for two graphs")

    pair = Pair()
    with monkeypatch.context() as patch:
        patch.setattr(Links, "_begin", none)
        text = Text(pair, tokens(30))
        ((ours, theirs),) = pair.propose([text], [Budget(3, 3)])
    assert same(ours, theirs)
    assert not path_of(pair.target).linked
    assert path_of(pair.target).recorded
    assert path_of(pair.target).refused is None


def test_recordings_that_are_used_are_kept() -> None:
    kept = Recordings[int, str](2)
    kept.keep(1, "one")
    kept.keep(2, "two")
    assert kept.used(1) == "one"
    kept.keep(3, "three")
    assert [kept.used(key) for key in (1, 2, 3)] == ["one", None, "three"]


def stale_place(shape: Any, fill: Any, links_: Links, chains: Any, job: Any) -> None:
    fill(links_, chains, job)
    links_._numbers[:, INDEX] += 1


def stale_position(shape: Any, fill: Any, links_: Links, chains: Any, job: Any) -> None:
    fill(links_, chains, job)
    links_._next.inputs.positions += 1


def stale_mask(shape: Any, fill: Any, links_: Links, chains: Any, job: Any) -> None:
    fill(links_, chains, job)
    links_._next.inputs.committed -= 20


def standing_still(shape: Any, fill: Any, links_: Links, chains: Any, job: Any) -> None:
    fill(links_, chains, job)
    links_._numbers[:, links.LIVE] = 0


@pytest.mark.parametrize("mistake", [stale_place, stale_position, stale_mask, standing_still])
def test_mistakes_of_a_recording_are_seen(mistake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fill = Links.fill
    monkeypatch.setattr(Links, "fill", lambda links_, chains, job: mistake(None, fill, links_, chains, job))
    pair = Pair()
    found = list[bool]()
    for seed in range(4):
        text = Text(pair, tokens(30, seed), temperature=1.0, seed=seed)
        ((ours, theirs),) = pair.propose([text], [Budget(5, 5)])
        found.append(same(ours, theirs))
        for drafter, state in zip(pair.drafters, text.states, strict=True):
            drafter.close(state)
    assert not all(found)


def test_a_constant_of_the_host_is_seen_before_it_is_recorded() -> None:
    """A number that was read on the host while the recording was made stays what it was."""

    def looks(self: Links, leave: Any) -> Any:
        result = begin(self, leave)
        self._level += int(self._numbers[0, INDEX]) * 0
        return result

    begin = Links._begin
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Links, "_begin", looks)
        pair = Pair()
        text = Text(pair, tokens(30))
        with pytest.warns(UserWarning, match="the model looks at its own numbers"):
            ((ours, theirs),) = pair.propose([text], [Budget(3, 3)])
    assert same(ours, theirs)


def test_a_model_that_changes_is_recorded_again() -> None:
    pair = Pair()
    text = Text(pair, tokens(30))
    pair.propose([text], [Budget(3, 3)])
    for target in (pair.target, pair.twin):
        target.model.model.norm.variance_epsilon = 0.5
    text.go_on([4])
    ((ours, theirs),) = pair.propose([text], [Budget(3, 3)])
    assert same(ours, theirs)


# --- beams --------------------------------------------------------------------------------------------------


SIZE, KNOWN = 16, 40


class Model:
    """Embeddings, on a device that records."""

    def __init__(self, record: Any) -> None:
        self.table = torch.randn(KNOWN, SIZE, generator=torch.Generator().manual_seed(0))
        self.target = recorded(build("llama"), record)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table[ids]


def beams_of(model: Model, **how: Any) -> tuple[search.BeamSearch, torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    head = RecurrentHead(HeadShape(width=SIZE, vocab_size=KNOWN, exit=8)).requires_grad_(False)
    contexts = [context_of([3, 4, 5 + number], **how) for number in range(2)]
    coins = [(context.noise, len(context)) if how else None for context in contexts]
    rows, shape = search.SearchInputs.of(contexts, [4, 3], 3, coins)
    numbers = torch.tensor(rows)
    hidden = torch.randn(2, SIZE, generator=torch.Generator().manual_seed(2))
    return search.BeamSearch(head, model, shape), hidden, numbers  # type: ignore[arg-type]


@every_setting
def test_played_beams_are_the_ones_that_are_searched(setting: str) -> None:
    model = Model(taped)
    beams, hidden, numbers = beams_of(model, **SETTINGS[setting])
    for turn in range(3):
        given = [hidden * (1 + turn), numbers]
        found = model.target.played("beams", beams, given)
        assert torch.allclose(found, beams(*given), equal_nan=True)
    assert list(path_of(model.target).wholes.recorded) == ["beams"]


def test_what_cannot_be_recorded_is_called() -> None:
    model = Model(taped)

    def looks(hidden: torch.Tensor) -> torch.Tensor:
        return hidden * float(hidden.sum())

    with pytest.warns(UserWarning, match="drafts are not recorded, which costs speed and nothing else: "):
        found = model.target.played("looks", looks, [torch.ones(3)])
    assert found.tolist() == [3, 3, 3]
    assert model.target.played("looks", looks, [2 * torch.ones(3)]).tolist() == [12, 12, 12]


def test_recordings_are_dropped_with_those_of_forwards() -> None:
    model = Model(taped)
    beams, hidden, numbers = beams_of(model)
    model.target.played("beams", beams, [hidden, numbers])
    path_of(model.target).forget()
    assert not path_of(model.target).wholes.recorded


def test_noise_that_moves_with_a_draft_is_the_public_noise() -> None:
    context = context_of([1, 2, 3], temperature=1.0, seed=2**63 + 5)
    numbers = torch.tensor([numbers_of(Warps.of(context.sampling), (context.noise, 3))])
    ids = torch.tensor([[[0, 5, 8191, 150_000]]])
    flat = torch.zeros(1, 1, 4), torch.full((1, 1), -1e30)
    for ahead in range(3):
        found = Draws(numbers, cut=False, noisy=True).favoured(ids, *flat, ahead)[0, 0]
        wanted = torch.from_numpy(context.noise.gumbel(3 + ahead, ids[0, 0].numpy())).float()
        assert torch.allclose(found, wanted - wanted.logsumexp(0), atol=1e-4)
    assert len(numbers[0]) == DRAW_NUMBERS
    assert on_device.gumbel(numbers[:, INDEX:], ids).shape == ids.shape
