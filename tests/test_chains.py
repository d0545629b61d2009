"""Drafts of one token after another in one call: the drafts that grow level by level."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from drafting import SETTINGS, context_of
from engine import write
from families import build
from paceline.drafters import Ask, Budget
from paceline.drafters.networks.assistant import Assistant
from paceline.law import Sampling
from paceline.targets.base import Request
from paceline.targets.chains import Chain, ChainDraft
from paceline.targets.hf.integers import kernels
from paceline.targets.hf.integers.target import quantized
from paceline.targets.hf.probe import prepare
from paceline.targets.hf.target import HFTarget
from paceline.tree import DraftTree
from scoring import load_quietly, tokens
from thinning import crossed

if kernels.without_numba() is not None:
    pytest.skip(f"nothing is compiled here: {kernels.without_numba()}", allow_module_level=True)

every_setting = pytest.mark.parametrize("setting", SETTINGS)


class Counting(HFTarget):
    """Counts the texts that were drafted for in one call."""

    chains = 0

    def drafted(self, chains: Sequence[Chain]) -> list[ChainDraft] | None:
        found = super().drafted(chains)
        self.chains += 0 if found is None else len(chains)
        return found


class ByLevels(HFTarget):
    def drafted(self, chains: Sequence[Chain]) -> list[ChainDraft] | None:
        return None


def compiled(kind: type[HFTarget] = Counting, name: str = "llama", dtype: torch.dtype = torch.float32) -> HFTarget:
    target = kind(build(name, dtype).requires_grad_(False))
    target.compiles = True
    return prepare(target)


def proposed(
    target: HFTarget, texts: Sequence[Sequence[int]], budgets: Sequence[Budget], **how: Any
) -> list[DraftTree]:
    drafter = Assistant(model=target)
    drafter.fit(target)
    return drafter.propose(
        [Ask(drafter.open(context_of(text, **how)), budget) for text, budget in zip(texts, budgets, strict=True)]
    )


def same(ours: DraftTree, theirs: DraftTree) -> None:
    assert ours.tokens.tolist() == theirs.tokens.tolist()
    assert ours.parents.tolist() == theirs.parents.tolist()
    assert np.allclose(ours.scores, theirs.scores, atol=1e-5)


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    had = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(had)


def test_what_drafts_need_is_compiled_before_the_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.targets.hf.fused import path

    compiled = list[str]()
    monkeypatch.setattr(path, "_compiles", lambda drafts: compiled.append(drafts) or True)
    target = HFTarget(build("llama").requires_grad_(False))
    target.compiles = True
    target = prepare(target)
    Assistant(model=target).fit(target)
    assert compiled == ["chains"]


@pytest.mark.parametrize(("setting", "dtype"), crossed(SETTINGS, [torch.float32, torch.bfloat16]))
@pytest.mark.usefixtures("threads")
def test_a_chain_is_the_draft_that_grows_by_levels(setting: str, dtype: torch.dtype) -> None:
    """Also of several texts, of other lengths, depths and unread tokens."""
    texts = [tokens(count, seed).tolist() for count, seed in ((1, 0), (7, 1), (40, 2))]
    budgets = [Budget(4, 4), Budget(9, 9), Budget(1, 1)]
    ours = compiled(dtype=dtype)
    for one, other in zip(
        proposed(ours, texts, budgets, **SETTINGS[setting]),
        proposed(compiled(ByLevels, dtype=dtype), texts, budgets, **SETTINGS[setting]),
        strict=True,
    ):
        same(one, other)
    assert ours.chains == 3


def test_models_in_integers_have_it_too() -> None:
    texts, budget, calls = [tokens(9, 3).tolist()], [Budget(6, 6)], list[int]()
    draft = HFTarget.drafted

    def counted(self: HFTarget, chains: Sequence[Chain]) -> list[ChainDraft] | None:
        found = draft(self, chains)
        calls.append(0 if found is None else len(found))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("paceline.targets.hf.integers.linear.kernel_for", lambda threads: kernels.Compiled)
        target = quantized(load_quietly(build("qwen3")))
        patch.setattr(HFTarget, "drafted", counted)
        [ours] = proposed(target, texts, budget, temperature=0.9)
        assert sum(calls) == 1
        patch.setattr(HFTarget, "drafted", lambda *_: None)
        [theirs] = proposed(target, texts, budget, temperature=0.9)
    same(ours, theirs)


@every_setting
def test_a_draft_model_that_is_the_target_is_never_wrong(setting: str) -> None:
    """So rows of accepted tokens stay, those of refused ones go, and the next draft begins where the text is."""
    target, model = compiled(), compiled()
    session = write(target, tokens(5).tolist(), Assistant(model=model), sampling=Sampling(**SETTINGS[setting]))
    assert all(round.accepted == round.drafted for round in session.rounds)
    assert model.chains == sum(round.drafted > 0 for round in session.rounds) > 1


def test_refused_drafts_leave_the_text_and_their_rows_are_taken_back() -> None:
    target, model = compiled(), compiled(name="mistral")
    for setting in SETTINGS.values():
        session = write(target, tokens(5).tolist(), Assistant(model=model), sampling=Sampling(**setting), nodes=5)
        alone = write(
            target,
            tokens(5).tolist(),
            Assistant(model=compiled(ByLevels, "mistral")),
            nodes=5,
            sampling=Sampling(**setting),
        )
        assert session.context.emitted.tolist() == alone.context.emitted.tolist()
        assert [(r.drafted, r.accepted) for r in session.rounds] == [(r.drafted, r.accepted) for r in alone.rounds]
        assert any(round.accepted < round.drafted for round in session.rounds)


def test_nothing_follows_the_end_of_a_text() -> None:
    [whole] = proposed(compiled(), [[3, 1]], [Budget(8, 8)])
    end = int(whole.tokens[3])
    first = whole.tokens.tolist().index(end)
    [cut] = proposed(compiled(), [[3, 1]], [Budget(8, 8)], eos=[end])
    assert cut.tokens.tolist() == whole.tokens[: first + 1].tolist()


@pytest.mark.usefixtures("threads")
def test_texts_go_on_beside_one_that_ends() -> None:
    texts, budgets = [[3, 1], [4, 1, 5]], [Budget(6, 6), Budget(6, 6)]
    whole = proposed(compiled(), texts, budgets)
    end = int(whole[0].tokens[0])
    cut = proposed(compiled(), texts, budgets, eos=[end])
    assert cut[0].tokens.tolist() == [end]
    others = whole[1].tokens.tolist()
    assert cut[1].tokens.tolist() == (others[: others.index(end) + 1] if end in others else others)


def test_the_target_may_have_fewer_ids() -> None:
    target, budget = compiled(), [Budget(5, 5)]
    [whole] = proposed(target, [[3, 1]], budget, temperature=1.0)
    highest = int(whole.tokens.max())
    drafter = Assistant(model=target)
    drafter.fit(target)
    drafter._vocab_size = highest
    [fewer] = drafter.propose([Ask(drafter.open(context_of([3, 1], temperature=1.0)), budget[0])])
    assert len(fewer) > 0
    assert fewer.tokens.max() < highest


def test_buffers_grow_under_a_draft_and_it_ends_with_the_context() -> None:
    target = compiled()
    target.context_length = 140
    for kind in (compiled, partial(compiled, ByLevels)):
        other = kind()
        other.context_length = 140
        session = write(target, tokens(3).tolist(), Assistant(model=other), nodes=9, max_new_tokens=200)
        assert len(session.context) == 140
        assert all(round.accepted == round.drafted for round in session.rounds)


def test_a_row_that_is_no_number_ends_a_draft() -> None:
    target = compiled()
    target.model.lm_head.weight.data[5] = torch.nan
    [tree] = proposed(target, [[3, 1]], [Budget(4, 4)], temperature=1.0)
    assert len(tree) == 0
    assert target.chains == 1


@pytest.mark.parametrize("how", [{"repetition_penalty": 1.2}, {"banned": ((1,),)}, {"logit_bias": {2: 1.0}}])
def test_what_needs_more_than_a_row_grows_by_levels(how: dict[str, Any]) -> None:
    target = compiled()
    [tree] = proposed(target, [[3, 1, 4]], [Budget(3, 3)], temperature=1.0, **how)
    assert len(tree) == 3
    assert target.chains == 0


def test_where_chains_cannot_be_compiled_drafts_grow_by_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.targets.hf.fused import path

    [whole] = proposed(compiled(), [[3, 1, 4]], [Budget(4, 4)], temperature=1.0)

    def failing() -> int:
        raise RuntimeError("no compiler")

    monkeypatch.setattr("paceline.targets.hf.fused.chains.chained", failing)
    path._compiles.cache_clear()
    try:
        target = compiled()
        [tree] = proposed(target, [[3, 1, 4]], [Budget(4, 4)], temperature=1.0)
    finally:
        path._compiles.cache_clear()
    same(tree, whole)
    assert target.chains == 0


def test_rows_behind_a_draft_are_those_of_its_tokens() -> None:
    """They may become text without being read again."""
    target = compiled()
    drafter = Assistant(model=target)
    drafter.fit(target)
    state = drafter.open(context_of(tokens(6).tolist(), temperature=0.8))
    [tree] = drafter.propose([Ask(state, Budget(5, 5))])
    state.rows.check()
    assert state.rows.drafted.tolist() == tree.tokens[:-1].tolist()
    state.rows.keep(range(4))
    fresh, text = target.open(), state.rows.tokens.copy()
    target.submit([Request.of_prompt(fresh, text)]).result()
    fresh.keep(range(len(text)))
    root = int(tree.tokens[-1])
    [kept], [anew] = (
        target.submit([Request.of_tree(rows, root, DraftTree.chain([]))]).result() for rows in (state.rows, fresh)
    )
    assert torch.equal(kept.logits, anew.logits)
