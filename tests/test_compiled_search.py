"""A search in one compiled call finds what the search of tensors finds."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import paceline
from paceline.context import Context, Ending
from paceline.drafters.base import Ask, Budget
from paceline.drafters.networks import compiled_search
from paceline.drafters.networks.beams import BeamDrafter, HeadState
from paceline.drafters.networks.compiled import CompiledLinear
from paceline.drafters.networks.compiled_search import KEPT
from paceline.drafters.networks.fitting import FittedHead
from paceline.drafters.networks.hydra.head import HydraHeads, HydraShape
from paceline.drafters.networks.redrafter.head import HeadShape, RecurrentHead
from paceline.drafters.noise import SharedNoise
from paceline.law import Sampling
from paceline.law.draws import COLDEST
from paceline.targets.base import Request, Target
from paceline.targets.hf.fused import layout as at
from paceline.tree import ROOT
from paceline_make.heads.costs import DRAFTS, costs

WIDTH, IDS = 256, 8192
HEADS: dict[str, Any] = {
    "recurrent": lambda: RecurrentHead(HeadShape(width=WIDTH, vocab_size=IDS, exit=128)),
    "whole": lambda: RecurrentHead(HeadShape(width=WIDTH, vocab_size=IDS, exit=2 * WIDTH, blocks=3)),
    "linear, thin": lambda: RecurrentHead(
        HeadShape(width=WIDTH, vocab_size=IDS, exit=96, first="linear", rank=32, blocks=0)
    ),
    "embedding, few": lambda: RecurrentHead(
        HeadShape(width=WIDTH, vocab_size=IDS, exit=64, first="embedding", kept=100)
    ),
    "cumulative": lambda: RecurrentHead(HeadShape(width=WIDTH, vocab_size=IDS, exit=64, recurrent=False)),
    "hydra": lambda: HydraHeads(HydraShape(width=WIDTH, vocab_size=IDS, blocks=3)),
    "hydra, not grounded": lambda: HydraHeads(HydraShape(width=WIDTH, vocab_size=IDS, grounded=False, tied=False)),
    "hydra, thin": lambda: HydraHeads(HydraShape(width=WIDTH, vocab_size=IDS, blocks=2, rank=16, kept=70)),
}
CLOSE = {"float32": (0.9, 0.005), "bfloat16": (0.6, 0.3)}
"""The least share of beams that are alike, and how far apart their scores are on average: tensors in bfloat16 round
after each operation."""
SETTINGS = [
    Sampling(temperature=0.8, seed=3),
    Sampling(temperature=0.0),
    Sampling(temperature=1.0, top_p=0.7, seed=4),
    Sampling(temperature=0.7, top_k=6, seed=5),
    Sampling(temperature=1.3, min_p=0.2, seed=6),
    Sampling(temperature=1.0, top_k=40, top_p=0.8, seed=7),
]


class AnyHead(BeamDrafter):
    name = "any"

    def __init__(self, head: Any, target: Target, width: int, length: int) -> None:
        super().__init__(width, length, None)
        self.use(FittedHead(head), target, target.layers)


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def target(request: pytest.FixtureRequest) -> Target:
    found = paceline.load("pocket", dtype=request.param, generation_config=False).target
    if not found.compiled:
        pytest.skip("another kind of forward is faster on this machine")
    return found


def head_of(kind: str) -> nn.Module:
    """All of its matrices are in integers, so that both searches compute with the same."""
    torch.manual_seed(7)
    head: nn.Module = HEADS[kind]()
    for weight in head.parameters():
        nn.init.normal_(weight, std=2 / weight.shape[-1] ** 0.5 if weight.ndim > 1 else 0.5)
    if head.token_ids is not None:
        head.token_ids = torch.randperm(IDS)[: len(head.token_ids)].sort()[0]
    for module in list(head.modules()):
        for name, layer in module.named_children():
            if type(layer) is nn.Linear:
                setattr(module, name, CompiledLinear(layer))
    return head.requires_grad_(False)


def asked(target: Target, settings: Sequence[Sampling], depths: Sequence[int], ends: frozenset[int]) -> list[Ask]:
    """Texts with the states of their last tokens."""
    random, asks = torch.Generator().manual_seed(1), list[Ask]()
    for number, (sampling, depth) in enumerate(zip(settings, depths, strict=True)):
        context = Context([5, 9, 77 + number], sampling, Ending(eos=ends, max_new_tokens=50))
        hidden = torch.randn(WIDTH, generator=random).to(getattr(torch, target.dtype))
        asks.append(Ask(HeadState(context, hidden, len(context)), Budget(999, depth)))
    return asks


def both(drafter: BeamDrafter, asks: Sequence[Ask]) -> tuple[torch.Tensor, torch.Tensor]:
    noises = [SharedNoise.of(ask.state.context) for ask in asks]
    compiled = drafter._compiled_levels(asks, noises)
    assert compiled is not None
    return compiled, drafter._levels(asks, noises).double()


def assert_alike(compiled: torch.Tensor, plain: torch.Tensor, kind: str) -> None:
    """The same tokens behind the same beams, but for paths that are nearly as likely, and those below them."""
    assert compiled.shape == plain.shape
    nothing = (compiled[0] < 0) & (plain[0] < 0)
    alike = (compiled[:3] == plain[:3]).all(dim=0)
    share, apart = CLOSE[kind]
    assert (alike | nothing).double().mean() >= share
    assert (compiled[3] - plain[3])[alike & ~nothing].abs().mean() <= apart


@pytest.mark.parametrize("kind", HEADS)
def test_a_search_finds_what_tensors_find(kind: str, target: Target) -> None:
    drafter = AnyHead(head_of(kind), target, width=4, length=4)
    asks = asked(target, SETTINGS, [4, 4, 3, 4, 1, 2], frozenset({3, 8000}))
    assert_alike(*both(drafter, asks), target.dtype)


@pytest.mark.parametrize(("width", "length"), [(1, 1), (1, 4), (3, 2), (70, 2)])
def test_of_every_shape(width: int, length: int, target: Target) -> None:
    drafter = AnyHead(head_of("recurrent"), target, width, length)
    for count in (1, 3):
        assert_alike(*both(drafter, asked(target, SETTINGS[:count], [length] * count, frozenset())), target.dtype)


def test_nothing_follows_an_end(target: Target) -> None:
    """All tokens but a few are ends."""
    drafter = AnyHead(head_of("embedding, few"), target, width=3, length=4)
    [tree] = drafter._beams(asked(target, SETTINGS[:1], [4], frozenset(range(IDS))))
    assert len(tree) == 3
    assert set(tree.parents.tolist()) == {ROOT}


def test_a_broken_state_drafts_nothing_and_spoils_no_other_text(target: Target) -> None:
    drafter = AnyHead(head_of("recurrent"), target, width=3, length=3)
    asks = asked(target, SETTINGS[:2], [3, 3], frozenset())
    whole = drafter._beams(asks)
    asks[0].state.hidden = torch.full_like(asks[0].state.hidden, torch.nan)
    broken = drafter._beams(asks)
    assert len(broken[0]) == 0
    assert broken[1].tokens.tolist() == whole[1].tokens.tolist()


def test_settings_that_look_at_the_text_are_left_to_tensors(target: Target) -> None:
    drafter = AnyHead(head_of("recurrent"), target, width=3, length=3)
    asks = asked(target, [Sampling(repetition_penalty=1.5), Sampling()], [3, 3], frozenset())
    assert drafter._compiled_levels(asks, [None, None]) is None
    assert all(len(tree) == 9 for tree in drafter._beams(asks))


def test_the_coldest_texts_rank_all_of_their_candidates(target: Target) -> None:
    """Beyond the range of exponentials all but the best tokens would weigh the same."""
    drafter = AnyHead(head_of("recurrent"), target, width=4, length=3)

    def levels(temperature: float) -> torch.Tensor:
        return both(drafter, asked(target, [Sampling(temperature=temperature, seed=3)], [3], frozenset()))[0]

    assert torch.equal(levels(1e-4), levels(COLDEST))


def test_threads_that_share_a_drafter_find_what_each_would_alone(target: Target) -> None:
    drafter = AnyHead(head_of("recurrent"), target, width=4, length=3)
    texts = asked(target, SETTINGS[:2], [3, 3], frozenset({3}))

    def drafts(ask: Ask) -> list[int]:
        return drafter._beams([ask])[0].tokens.tolist()

    alone = [drafts(ask) for ask in texts]
    assert alone[0] != alone[1]
    had = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(drafts, texts * 100))
    finally:
        sys.setswitchinterval(had)
    assert found == alone * 100


def test_a_caller_in_inference_mode_leaves_memory_that_others_can_write_to(target: Target) -> None:
    drafter = AnyHead(head_of("recurrent"), target, width=3, length=2)
    asks = asked(target, SETTINGS[:1], [2], frozenset())
    with torch.inference_mode():
        first = drafter._beams(asks)
    assert drafter._beams(asks)[0].tokens.tolist() == first[0].tokens.tolist()


def test_a_layer_is_rounded_once_for_all_levels_and_shapes(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    rounded, asked_for = list[nn.Module](), compiled_search.integer_weights
    monkeypatch.setattr(compiled_search, "integer_weights", lambda layer: rounded.append(layer) or asked_for(layer))
    drafter = AnyHead(HEADS["recurrent"]().requires_grad_(False), target, width=2, length=4)
    for count in (1, 2):
        drafter._beams(asked(target, SETTINGS[:1] * count, [4] * count, frozenset()))
    assert len(rounded) == len(set(rounded)) == 6


def test_where_integers_are_not_compiled_tensors_search(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_search, "obstacle", lambda: "it compiles wrong sums")
    assert compiled_search.CompiledSearch.of(HEADS["recurrent"](), target) is None


def test_a_head_that_is_fitted_after_a_change_of_the_model_is_compiled_with_its_next_forward() -> None:
    target: Any = paceline.load("pocket", dtype="float32", generation_config=False).target
    if not target.compiled:
        pytest.skip("another kind of forward is faster on this machine")
    target.forget()
    drafter = AnyHead(head_of("recurrent"), target, width=2, length=2)
    asks = asked(target, SETTINGS[:1], [2], frozenset())
    assert drafter._compiled_levels(asks, [None]) is None
    assert len(drafter._beams(asks)[0]) == 4
    target.score([Request.of_prompt(target.open(3), np.arange(3))])
    assert drafter._compiled_levels(asks, [None]) is not None


def test_no_token_is_read_beyond_the_embeddings(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    drafter, asks = AnyHead(head_of("recurrent"), target, 2, 2), asked(target, SETTINGS[:1], [2], frozenset())
    rows: Any = target.embedding_rows
    monkeypatch.setattr(type(target), "embedding_rows", rows[:600])
    assert drafter._compiled_levels(asks, [None]) is None


def test_memory_is_kept_for_a_few_shapes(target: Target) -> None:
    drafter = AnyHead(head_of("recurrent"), target, width=2, length=2)
    for count in range(1, KEPT + 3):
        drafter._beams(asked(target, SETTINGS[:1] * count, [2] * count, frozenset()))
    assert drafter._compiled is not None
    assert len(drafter._compiled._known) == KEPT


def test_shapes_share_the_memory_that_they_work_in(target: Target) -> None:
    """A search of few texts works in that of many, and finds there what it finds alone."""
    drafter, asks = (
        AnyHead(head_of("recurrent"), target, width=3, length=3),
        asked(target, SETTINGS, [3] * 6, frozenset({3})),
    )
    alone = both(drafter, asks[:1])[0]
    many = AnyHead(drafter._head, target, width=3, length=3)
    whole = both(many, asks)[0]
    assert torch.equal(both(many, asks[:1])[0], alone)
    assert torch.equal(both(many, asks)[0], whole)
    assert many._compiled is not None
    places = {known._job[at.LOGITS] for known in many._compiled._known.values()}
    assert len(many._compiled._known) == 2
    assert len(places) == 1


def test_costs_are_those_of_the_search_that_drafts(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    searches, usual = list[int](), compiled_search.CompiledSearch.__call__

    def counted(search: compiled_search.CompiledSearch, *given: Any) -> torch.Tensor | None:
        searches.append(1)
        return usual(search, *given)

    monkeypatch.setattr(compiled_search.CompiledSearch, "__call__", counted)
    shape = next(iter(costs(target)))
    assert shape.milliseconds > 0
    assert len(searches) >= DRAFTS
