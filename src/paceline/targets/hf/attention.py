"""The attention function registered with transformers: each sequence of a packed forward over its own rows.

A forward packs the rows of several sequences into ``[1, sum n]``. Everything but attention treats rows alike; here
they part. A sequence's rows see its cached prefix, cut to the layer's window, and among the fresh rows their
ancestors. No mask is passed through the model: what a row may see follows from the draft and the layer's window.

Attention without soft-cap and sinks goes to torch's fused kernel; soft-cap and sinks need the scores themselves and
go through `streamed`, which walks the keys in blocks. Neither makes an array that grows with the context: masks live
in memory that is kept, and the keys of grouped heads are never copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F

from paceline.targets.base import Request
from paceline.targets.cache import CacheRows

NAME = "paceline"
KEY_BLOCK = 1024
FOLD = 16
"""Drafts up to this many rows are folded (see `fused`); beyond, the kernel gains nothing and masks grow."""
ALIGNMENT = 16
"""Mask rows start at multiples of this many elements, without which kernels on accelerators copy the mask."""
SPARE_COLUMNS = 1024
"""A mask that has to grow gets room for this many more keys, so that it rarely has to."""


@dataclass(eq=False)
class Part:
    """One sequence's share of a packed forward: rows ``start .. start + n``."""

    request: Request
    number: int
    start: int
    scratch: MaskScratch
    _views: dict[tuple[object, ...], View] = field(default_factory=dict)

    @classmethod
    def of_all(cls, requests: Sequence[Request], scratch: MaskScratch) -> list[Part]:
        """The parts of a forward that is about to write the requests' rows, which from here on are tentative."""
        parts, start = [], 0
        for number, request in enumerate(requests):
            request.rows.note(request.tokens, request.held)
            parts.append(cls(request, number, start, scratch))
            start += len(request.tokens)
        return parts

    @property
    def n(self) -> int:
        return len(self.request.tokens)

    @property
    def rows(self) -> CacheRows:
        rows = self.request.rows
        assert isinstance(rows, CacheRows), "this target scores the rows it opened"
        return rows

    def view(self, window: int | None, like: torch.Tensor, group: int = 1) -> View:
        """What this part's rows see in a layer with this window; the same for every such layer, so made once."""
        key = (window, like.dtype, like.device, group)
        if key not in self._views:
            self._views[key] = View.of(self, window, like, group)
        return self._views[key]

    def full_mask(self, window: int | None, like: torch.Tensor) -> torch.Tensor:
        """``[n, all rows]``, for a model that gets all of its keys back."""
        mask = self.scratch.take((self.number, window, like.dtype, like.device), self.n, self.request.end, like)
        fill_mask(mask, self.request, 0, window)
        return mask


@dataclass(frozen=True)
class Asked:
    """What a layer asks of attention beside its rows."""

    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None
    others: dict[str, Any] = field(default_factory=dict)
    """What transformers passes besides; most of it means nothing to attention over cached rows."""


class Served(Protocol):
    """The forward that attention is computed for."""

    def attend(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, asked: Asked) -> torch.Tensor:
        """``[1, heads, sum n, width] -> [1, heads, sum n, width]``, for the layer that has just written its rows."""
        ...


_served: ContextVar[Served | None] = ContextVar("paceline_forward", default=None)


@contextmanager
def serving(forward: Served) -> Iterator[None]:
    """Attention computed inside belongs to ``forward``. Not an argument: some layers drop what they do not know."""
    token = _served.set(forward)
    try:
        yield
    finally:
        _served.reset(token)


class MaskScratch:
    """Memory for masks, kept from forward to forward: a mask is as wide as the context, and none is allocated twice."""

    def __init__(self) -> None:
        self._memory: dict[tuple[object, ...], torch.Tensor] = {}

    def take(self, slot: tuple[object, ...], rows: int, columns: int, like: torch.Tensor) -> torch.Tensor:
        """An uninitialised ``[rows, columns]``; what the slot held before is lost."""
        stride = -(-columns // ALIGNMENT) * ALIGNMENT
        memory = self._memory.get(slot)
        if memory is None or memory.numel() < rows * stride:
            memory = self._memory[slot] = like.new_empty(rows * (stride + SPARE_COLUMNS))
        return memory[: rows * stride].view(rows, stride)[:, :columns]

    @property
    def nbytes(self) -> int:
        return sum(memory.nbytes for memory in self._memory.values())


@dataclass(frozen=True)
class View:
    """The rows ``start .. end`` of a sequence's buffers and what is hidden of them (``mask``, added to the scores)."""

    start: int
    end: int
    mask: torch.Tensor | None
    causal: bool = False
    """The fresh rows are a plain prompt with nothing before it: the kernel's own causal rule says it all."""
    folded: bool = False
    """The mask stands once for each head of a group, one below the other."""

    @classmethod
    def of(cls, part: Part, window: int | None, like: torch.Tensor, group: int) -> View:
        request, n = part.request, part.n
        committed = request.rows.committed
        start = max(0, committed + 1 - window) if window else 0
        end = request.end
        if n == 1 and request.is_chain:
            return cls(max(0, end - window) if window else 0, end, None, folded=True)
        if end == n and request.is_chain and (window is None or n <= window):
            return cls(start, end, None, causal=True)
        copies = group if n <= FOLD else 1
        slot = (part.number, window, copies, like.dtype, like.device)
        mask = part.scratch.take(slot, copies * n, end - start, like)
        fill_mask(mask[:n], request, start, window)
        if copies > 1:
            mask.unflatten(0, (copies, n))[1:] = mask[:n]
        return cls(start, end, mask, folded=n <= FOLD)


def fill_mask(mask: torch.Tensor, request: Request, start: int, window: int | None) -> None:
    """Write ``[n, end - start]`` in place: 0 where a row sees a key, ``-inf`` where it does not.

    A row at position *p* sees the keys at positions ``p - window < q <= p`` on its own path. Of the cached keys, those
    that the shallowest row does not see are hidden from all; deeper rows hide at most as many more as they are deeper.
    """
    fresh = request.rows.committed - start
    seen = request.visible
    mask.zero_()
    if window is not None:
        positions = request.positions
        seen = seen & (positions[:, None] - request.tentative_positions[None, :] < window)
        unseen = positions - (window - 1) - start
        gone = max(0, int(unseen.min()))
        edge = np.arange(gone, max(gone, min(fresh, int(unseen.max()))))
        mask[:, :gone] = float("-inf")
        _hide(mask[:, gone : gone + len(edge)], unseen[:, None] > edge[None, :])
    _hide(mask[:, fresh:], ~seen)


def _hide(mask: torch.Tensor, hidden: np.ndarray[Any, np.dtype[np.bool_]]) -> None:
    mask.masked_fill_(torch.from_numpy(hidden).to(mask.device), float("-inf"))


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """What transformers calls in every layer: ``[1, heads, sum n, width] -> [1, sum n, heads, width]``."""
    forward = _served.get()
    if forward is None:
        raise RuntimeError("attention 'paceline' serves forwards that the engine started; choose 'sdpa' for others")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    asked = Asked(scale, sliding_window, softcap, s_aux, others)
    return forward.attend(query, key, value, asked).transpose(1, 2).contiguous(), None


def write(parts: Sequence[Part], layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
    """Put each part's fresh rows of ``[1, heads, sum n, width]`` into its own buffers."""
    for part, key, value in zip(parts, _apart(keys, parts), _apart(values, parts), strict=True):
        part.rows.write(layer, key, value)


def by_part(parts: Sequence[Part], layer: int, query: torch.Tensor, asked: Asked) -> torch.Tensor:
    """Each part's rows ``[1, heads, n, width]`` over what its own buffers hold of the layer."""
    outputs = []
    for part, rows in zip(parts, _apart(query, parts), strict=True):
        buffers = part.rows.layers[layer]
        if asked.softcap is None and asked.sinks is None:
            view = part.view(asked.window, query, query.shape[1] // buffers.heads)
            outputs.append(fused(rows, *buffers.span(view.start, view.end), view, asked.scale))
        else:
            view = part.view(asked.window, query)
            spans = buffers.span(view.start, view.end)
            outputs.append(streamed(rows, *spans, view, asked.scale, asked.softcap, asked.sinks))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)


def _apart(packed: torch.Tensor, parts: Sequence[Part]) -> Sequence[torch.Tensor]:
    """Each part's rows of ``[1, heads, sum n, width]``, in one call: one for each part would cost six times as much."""
    return (packed,) if len(parts) == 1 else packed.split([part.n for part in parts], dim=2)


def fused(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, view: View, scale: float) -> torch.Tensor:
    """Torch's fused kernel, ``[1, heads, n, width]``.

    Few rows are *folded*: the heads that share keys become rows of one head, so that the kernel reads the keys once
    for the group (one row of 32 heads in groups of 4 over 4,096 keys, on one CPU core: 3 ms instead of 6 in float32
    and of 24 in bfloat16). Many rows keep their heads and see keys that are expanded with stride zero.
    """
    _, heads, n, width = query.shape
    kv_heads = keys.shape[1]
    group = heads // kv_heads
    if view.folded:
        query = query.reshape(1, kv_heads, group * n, width)
    else:
        query = query.reshape(kv_heads, group, n, width)
        keys = keys.transpose(0, 1).expand(-1, group, -1, -1)
        values = values.transpose(0, 1).expand(-1, group, -1, -1)
    out = F.scaled_dot_product_attention(query, keys, values, attn_mask=view.mask, is_causal=view.causal, scale=scale)
    return out.reshape(1, heads, n, -1)


def streamed(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    view: View,
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Attention by a running maximum and a running sum over blocks of keys, in float32 or wider.

    A sink is a key with a given score and no value: it enters the sum and nothing else.
    """
    heads, kv_heads, n = query.shape[1], keys.shape[1], query.shape[2]
    wide = torch.promote_types(query.dtype, torch.float32)
    folded = (kv_heads, heads // kv_heads * n, -1)
    rows = query.reshape(folded)
    shape = (kv_heads, heads // kv_heads, n, 1)
    total: torch.Tensor
    if sinks is None:
        peak = query.new_full(shape, float("-inf"), dtype=wide)
        total = torch.zeros_like(peak)
    else:
        peak = sinks.to(wide).reshape(kv_heads, -1, 1, 1).expand(shape)
        total = torch.ones_like(peak)
    mixed = query.new_zeros((*shape[:3], values.shape[3]), dtype=wide)
    mask = _causal(n, query) if view.causal else view.mask
    for first in range(0, keys.shape[2], KEY_BLOCK):
        block = slice(first, first + KEY_BLOCK)
        scores = (rows @ keys[0, :, block].transpose(1, 2)).to(wide).view(*shape[:3], -1) * scale
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        if mask is not None:
            scores = scores + mask[:, block]
        higher = torch.maximum(peak, scores.amax(dim=-1, keepdim=True))
        fade = torch.where(higher == peak, 1.0, torch.exp(peak - higher))
        weights = torch.where(scores == float("-inf"), 0.0, torch.exp(scores - higher))
        total = total * fade + weights.sum(dim=-1, keepdim=True)
        share = weights.to(values.dtype).view(folded) @ values[0, :, block]
        mixed = mixed * fade + share.to(wide).view(mixed.shape)
        peak = higher
    return (mixed / total).to(query.dtype).reshape(1, heads, n, values.shape[3])


def _causal(n: int, like: torch.Tensor) -> torch.Tensor:
    return torch.full((n, n), float("-inf"), dtype=like.dtype, device=like.device).triu(1)
