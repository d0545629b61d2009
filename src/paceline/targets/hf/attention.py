"""Attention over cached rows: each sequence of a packed forward over its own keys and values.

A forward packs the rows of several sequences into ``[1, sum n]``. Only attention treats the sequences apart. A row
sees the cached prefix of its sequence, cut to the layer's window, and among the fresh rows its ancestors. No mask goes
through the model: what a row sees follows from the draft and the layer's window.

Attention without soft-cap and sinks is computed by torch's fused kernel. Soft-cap and sinks need the scores themselves
and are computed by `streamed`, block of keys by block of keys. Neither allocates an array that grows with the context:
the memory of masks is reused, and the keys of grouped heads are never copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from paceline.targets.base import Request
from paceline.targets.cache import CacheRows

KEY_BLOCK = 1024
"""Keys that `streamed` reads at a time."""
FOLD = 16
"""Drafts up to this many rows are folded (see `fused`); with more the kernel is no faster and masks are larger."""
ALIGNMENT = 16
"""Mask rows start at multiples of this many elements; otherwise kernels on accelerators copy the mask."""
SPARE_COLUMNS = 1024
"""A mask that has to grow gets room for this many more keys, so that it rarely has to."""


@dataclass(eq=False)
class Segment:
    """The rows of one sequence in a packed forward."""

    request: Request
    number: int
    scratch: MaskScratch
    _views: dict[tuple[object, ...], View] = field(default_factory=dict)
    _hidden: dict[int | None, torch.Tensor] = field(default_factory=dict)

    @classmethod
    def of_all(cls, requests: Sequence[Request], scratch: MaskScratch) -> list[Segment]:
        """The segments of a forward that is about to write the requests' rows; notes these rows as tentative."""
        for request in requests:
            request.rows.note(request.tokens, request.held)
        return [cls(request, number, scratch) for number, request in enumerate(requests)]

    @property
    def n(self) -> int:
        return len(self.request.tokens)

    @property
    def rows(self) -> CacheRows:
        rows = self.request.rows
        assert isinstance(rows, CacheRows), "this target scores the rows it opened"
        return rows

    def view(self, window: int | None, like: torch.Tensor, group: int = 1) -> View:
        """The rows that these rows see in a layer with this window; made once for all such layers."""
        key = (window, like.dtype, like.device, group)
        if key not in self._views:
            self._views[key] = View.of(self, window, like, group)
        return self._views[key]

    def hidden(self, window: int | None) -> torch.Tensor:
        """``[n, k]``: which of the last ``k`` rows each fresh one does not see in a layer with this window. It sees all
        before them, from the window's first on. Made once for all such layers."""
        if window not in self._hidden:
            start = self.first(window)
            self._hidden[window] = torch.from_numpy(hidden_rows(self.request, start, window))
        return self._hidden[window]

    def first(self, window: int | None) -> int:
        """The first row that any fresh one sees."""
        return max(0, self.request.rows.committed + 1 - window) if window else 0

    def full_mask(self, window: int | None, like: torch.Tensor) -> torch.Tensor:
        """``[n, all rows]``, for a model that gets all of its keys back."""
        mask = self.scratch.take((self.number, window, like.dtype, like.device), self.n, self.request.end, like)
        fill_mask(mask, self.request, 0, window)
        return mask


@dataclass(frozen=True)
class AttentionOptions:
    """The arguments of a layer's attention besides its rows."""

    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None
    others: dict[str, Any] = field(default_factory=dict)
    """The other arguments of transformers; most of them mean nothing to attention over cached rows."""


class KVCache(Protocol):
    """Keys and values of a forward's sequences, as its layers write and read them. Rows are
    ``[1, heads, sum n, width]``."""

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None: ...

    def attend(self, layer: int, query: torch.Tensor, options: AttentionOptions) -> torch.Tensor:
        """Attention of the rows that were just written."""
        ...


class MaskScratch:
    """Memory for masks, kept from forward to forward: a mask is as wide as the context."""

    def __init__(self) -> None:
        self._memory: dict[tuple[object, ...], torch.Tensor] = {}

    def take(self, slot: tuple[object, ...], rows: int, columns: int, like: torch.Tensor) -> torch.Tensor:
        """An uninitialised ``[rows, columns]``; what the slot held before is lost."""
        stride = -(-columns // ALIGNMENT) * ALIGNMENT
        memory = self._memory.get(slot)
        if memory is None or memory.numel() < rows * stride:
            memory = self._memory[slot] = like.new_empty(rows * (stride + SPARE_COLUMNS))
        return memory[: rows * stride].view(rows, stride)[:, :columns]


@dataclass(frozen=True)
class View:
    """The rows ``start .. end`` of a sequence's buffers, and a mask that is added to the scores."""

    start: int
    end: int
    mask: torch.Tensor | None
    causal: bool = False
    """The fresh rows are a prompt with nothing before it: the kernel's own causal mask is enough."""
    folded: bool = False
    """The mask is repeated for each head of a group, one below the other."""

    @classmethod
    def of(cls, segment: Segment, window: int | None, like: torch.Tensor, group: int) -> View:
        request, n = segment.request, segment.n
        start, end = segment.first(window), request.end
        if n == 1 and request.is_chain:
            return cls(max(0, end - window) if window else 0, end, None, folded=True)
        if end == n and request.is_chain and (window is None or n <= window):
            return cls(start, end, None, causal=True)
        copies = group if n <= FOLD else 1
        slot = (segment.number, window, copies, like.dtype, like.device)
        mask = segment.scratch.take(slot, copies * n, end - start, like)
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


def hidden_rows(request: Request, start: int, window: int | None) -> NDArray[np.bool_]:
    """``[n, k]``: which of the last ``k`` rows each fresh one does not see: of the tentative rows, and of all from
    ``start`` on where the window ends within the cached ones."""
    hidden = ~request.visible
    if window is None:
        return hidden
    ends = request.positions[:, None] - window
    hidden |= request.tentative_positions <= ends
    cached = np.arange(start, request.rows.committed) <= ends
    return np.concatenate([cached, hidden], axis=1) if cached.any() else hidden


class PackedKVCache(KVCache):
    """Each sequence's rows in separate buffers."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._segments = segments
        self._sizes = [segment.n for segment in segments]

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        for segment, key, value in zip(self._segments, self._split(keys), self._split(values), strict=True):
            segment.rows.write(layer, key, value)

    def attend(self, layer: int, query: torch.Tensor, options: AttentionOptions) -> torch.Tensor:
        outputs = []
        for segment, rows in zip(self._segments, self._split(query), strict=True):
            buffers = segment.rows.layers[layer]
            if options.softcap is None and options.sinks is None:
                view = segment.view(options.window, query, query.shape[1] // buffers.heads)
                outputs.append(fused(rows, *buffers.span(view.start, view.end), view, options.scale))
            else:
                view = segment.view(options.window, query)
                outputs.append(streamed(rows, *buffers.span(view.start, view.end), view, options))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)

    def _split(self, packed: torch.Tensor) -> Sequence[torch.Tensor]:
        """Each segment's rows. One call for all takes a sixth of the time of one call for each."""
        return (packed,) if len(self._sizes) == 1 else packed.split(self._sizes, dim=2)


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
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, view: View, options: AttentionOptions
) -> torch.Tensor:
    """Attention with a running maximum and a running sum over blocks of keys, in float32 or wider.

    A sink is a key with a given score and no value: it enters the sum and nothing else.
    """
    softcap, sinks = options.softcap, options.sinks
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
    mask = causal_mask(n, query) if view.causal else view.mask
    for first in range(0, keys.shape[2], KEY_BLOCK):
        block = slice(first, first + KEY_BLOCK)
        scores = (rows @ keys[0, :, block].transpose(1, 2)).to(wide).view(*shape[:3], -1) * options.scale
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


def stream_attention(
    query: torch.Tensor,
    cached: tuple[torch.Tensor, torch.Tensor],
    own: tuple[torch.Tensor, torch.Tensor],
    count: int,
    hidden: torch.Tensor | None,
    scale: float,
) -> torch.Tensor:
    """Attention of the ``count`` streams behind each of ``n`` rows, ``[texts, heads, n * count, width]``.

    A stream sees ``cached`` keys and values ``[texts, shared, keys, width]`` as its row does, but for those that are
    ``hidden`` ``[n, keys]`` from it, and of the streams' ``own`` ones, as many as there are queries, those of its row
    that come before it and itself. No key is copied.
    """
    texts, heads, rows, width = query.shape
    (keys, values), (near_keys, near_values) = cached, own
    shared, far = keys.shape[1], keys.shape[2]
    apart = (texts, shared, -1, rows // count, count)
    seen = (query.reshape(texts, shared, -1, width) @ keys.transpose(2, 3)).view(*apart, far)
    if hidden is not None:
        seen = seen.masked_fill(hidden[:, None], float("-inf"))
    near = query.reshape(*apart, width) @ near_keys.reshape(*apart, width).transpose(-1, -2)
    near = near.masked_fill(later(count, query.device), float("-inf"))
    weights = torch.softmax(torch.cat([seen, near], dim=-1).float() * scale, dim=-1).to(query.dtype)
    mixed = (weights[..., :far].reshape(texts, shared, -1, far) @ values).view(*apart, width)
    mixed = mixed + weights[..., far:] @ near_values.reshape(*apart, width)
    return mixed.reshape(texts, heads, rows, width)


def later(count: int, device: torch.device) -> torch.Tensor:
    """``[count, count]``: which streams come after each one."""
    return torch.ones(count, count, dtype=torch.bool, device=device).triu(1)


def causal_mask(n: int, like: torch.Tensor) -> torch.Tensor:
    """``[n, n]``, added to scores."""
    return torch.full((n, n), float("-inf"), dtype=like.dtype, device=like.device).triu(1)
