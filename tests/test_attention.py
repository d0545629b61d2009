"""Attention over cached rows against its definition: which keys a row sees, and what it makes of them."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from paceline.targets.base import Request
from paceline.targets.cache import CacheRows
from paceline.targets.hf import attention
from paceline.targets.hf.attention import FOLD, AttentionOptions, MaskScratch, Segment, View, fused, streamed
from paceline.tree import DraftTree
from scoring import random_tree, tokens
from thinning import crossed

COMMITTED = 21


def requested(tree: DraftTree, committed: int = COMMITTED) -> Request:
    rows = CacheRows(0)
    rows.note(tokens(committed))
    rows.tentative = committed
    rows.keep(range(committed))
    return Request.of_tree(rows, 1, tree)


def part_of(request: Request) -> Segment:
    return Segment(request, 0, MaskScratch())


def seen(request: Request, window: int | None) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """``[n, committed + n]`` by the definition: own path only, and no further back than the window."""
    committed, parents = request.rows.committed, request.parents.tolist()
    sees = np.zeros((len(parents), committed + len(parents)), np.bool_)
    for row in range(len(parents)):
        path, node = list[int](), row
        while node >= 0:
            path.append(committed + node)
            node = parents[node]
        line = [*range(committed), *path[::-1]]
        sees[row, line if window is None else line[-window:]] = True
    return sees


WINDOWS = [None, 1, 2, 3, 5, 8, 20, 21, 22, 25, 100]
TREES = {"chain": DraftTree.chain(tokens(12)), "tree": random_tree(1, 12), "long tree": random_tree(2, 40)}


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("committed", [0, 1, 4, COMMITTED])
def test_masks_hide_what_the_definition_hides(tree: str, committed: int, window: int | None) -> None:
    request = requested(TREES[tree], committed)
    expected = seen(request, window)
    like = torch.empty(0)
    assert np.array_equal((part_of(request).full_mask(window, like) == 0).numpy(), expected)
    for group in (1, 3):
        view = part_of(request).view(window, like, group)
        assert not expected[:, : view.start].any()
        assert view.end == expected.shape[1]
        if view.mask is None:
            assert view.causal
            assert np.array_equal(expected, np.tri(len(expected), dtype=np.bool_))
            continue
        copies = group if len(request.tokens) <= FOLD else 1
        assert np.array_equal((view.mask == 0).numpy(), np.tile(expected[:, view.start :], (copies, 1)))
        assert set(view.mask.unique().tolist()) <= {0.0, -math.inf}


def test_one_row_needs_no_mask() -> None:
    view = part_of(requested(DraftTree.chain([]))).view(8, torch.empty(0), 4)
    assert (view.start, view.end, view.mask) == (COMMITTED - 7, COMMITTED + 1, None)


def test_a_mask_is_made_once_for_all_layers_and_its_memory_once_for_all_rounds() -> None:
    scratch, like = MaskScratch(), torch.empty(0)
    places = set()
    for committed in range(30, 60):
        part = Segment(requested(random_tree(1, 12), committed), 0, scratch)
        view = part.view(8, like)
        assert part.view(8, like) is view
        assert view.mask is not None
        places.add(view.mask.data_ptr())
    assert len(places) == 1


def test_masks_in_use_together_do_not_share_memory() -> None:
    scratch, like = MaskScratch(), torch.empty(0)
    parts = [Segment(requested(random_tree(seed, 12)), seed, scratch) for seed in range(2)]
    views = [part.view(window, like, group) for part in parts for window in (None, 8) for group in (1, 2)]
    expected = [
        View.of(Segment(p.request, 0, MaskScratch()), w, like, g) for p in parts for w in (None, 8) for g in (1, 2)
    ]
    for view, alone in zip(views, expected, strict=True):
        assert view.mask is not None
        assert alone.mask is not None
        assert torch.equal(view.mask, alone.mask)


def textbook(
    query: Tensor, keys: Tensor, values: Tensor, sees: Tensor, scale: float, softcap: float | None, sinks: Tensor | None
) -> Tensor:
    """One head, one row at a time, in float64."""
    heads, rows = query.shape[1:3]
    group = heads // keys.shape[1]
    out = torch.zeros(1, heads, rows, values.shape[3], dtype=torch.float64)
    for head in range(heads):
        k, v = keys[0, head // group].double(), values[0, head // group].double()
        for row in range(rows):
            scores = k[sees[row]] @ query[0, head, row].double() * scale
            if softcap is not None:
                scores = torch.tanh(scores / softcap) * softcap
            weights = scores.exp()
            sink = sinks[head].double().exp() if sinks is not None else 0.0
            out[0, head, row] = weights @ v[sees[row]] / (weights.sum() + sink)
    return out


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "soft-cap": {"softcap": 2.0},
    "sinks": {"sinks": torch.linspace(-1, 3, 6)},
    "both": {"softcap": 2.0, "sinks": torch.linspace(-1, 3, 6)},
}
TYPES = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 0.03}


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("draft", "kv_heads"), crossed([0, 3, 11, 30], [1, 2, 3, 6]))
def test_attention_is_its_definition(
    draft: int, kv_heads: int, kind: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "KEY_BLOCK", 7)
    options: dict[str, Any] = {"softcap": None, "sinks": None} | KINDS[kind]
    for committed, window in ((COMMITTED, None), (COMMITTED, 8), (0, None), (0, 3)):
        plain = committed == 0 or draft == 0
        tree = DraftTree.chain(tokens(draft)) if plain else random_tree(3, draft)
        request = requested(tree, committed)
        n = len(request.tokens)
        random = torch.Generator().manual_seed(draft)
        query = torch.randn(1, n, 6, 10, generator=random).to(dtype).transpose(1, 2)
        keys = torch.randn(1, kv_heads, committed + n + 9, 10, generator=random).to(dtype)
        values = torch.randn(1, kv_heads, committed + n + 9, 10 if window else 4, generator=random).to(dtype)
        group = 6 // kv_heads if kind == "plain" else 1
        view = part_of(request).view(window, query, group)
        spans = keys[:, :, view.start : view.end], values[:, :, view.start : view.end]
        if kind == "plain":
            found = fused(query, *spans, view, 0.4)
        else:
            found = streamed(query, *spans, view, AttentionOptions(0.4, **options))
        everything = slice(0, committed + n)
        sees = torch.from_numpy(seen(request, window))
        expected = textbook(query, keys[:, :, everything], values[:, :, everything], sees, 0.4, **options)
        assert found.dtype == dtype
        assert (found.double() - expected).abs().max() < TYPES[dtype]
