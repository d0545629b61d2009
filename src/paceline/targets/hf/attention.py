"""The attention function registered with transformers: each sequence of a packed forward over its own rows.

A forward packs the rows of several sequences into ``[1, sum n]``. Everything but attention treats rows alike; here
they part. A sequence's rows see its cached prefix, cut to the layer's window, and among the fresh rows their
ancestors. No mask is passed through the model: what a row may see follows from the draft and the layer's window.

Attention without soft-cap and sinks goes to torch's fused kernel. Grouped heads are handed over as a batch
(``[kv heads, group, n, width]``) against keys expanded with stride zero, since the kernel's own grouping copies keys
and values once a mask is present. Soft-cap and sinks need the scores themselves and go through `streamed`, which
walks the keys in blocks, so that no array grows with the context there either.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from paceline.targets.base import Request
from paceline.targets.cache import CacheRows

if TYPE_CHECKING:
    from paceline.targets.hf.forward import Forward

KEY_BLOCK = 1024
NAME = "paceline"


@dataclass(eq=False)
class Part:
    """One sequence's share of a packed forward: rows ``start .. start + n``."""

    request: Request
    number: int
    start: int
    scratch: MaskScratch
    _views: dict[tuple[int | None, torch.dtype, torch.device], View] = field(default_factory=dict)

    @property
    def n(self) -> int:
        return len(self.request.tokens)

    @property
    def rows(self) -> CacheRows:
        rows = self.request.rows
        assert isinstance(rows, CacheRows), "this target scores the rows it opened"
        return rows

    def view(self, window: int | None, like: torch.Tensor) -> View:
        """What this part's rows see in a layer with this window; the same for every such layer, so made once."""
        key = (window, like.dtype, like.device)
        if key not in self._views:
            self._views[key] = View.of(self, window, like)
        return self._views[key]


class MaskScratch:
    """Memory for masks, kept from forward to forward: a mask is as wide as the context, and none is allocated twice."""

    def __init__(self) -> None:
        self._memory: dict[tuple[object, ...], torch.Tensor] = {}

    def take(self, slot: tuple[object, ...], rows: int, columns: int, like: torch.Tensor) -> torch.Tensor:
        """An uninitialised ``[rows, columns]``; what the slot held before is lost."""
        memory = self._memory.get(slot)
        if memory is None or memory.numel() < rows * columns:
            memory = self._memory[slot] = like.new_empty(2 * rows * columns)
        return memory[: rows * columns].view(rows, columns)

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

    @classmethod
    def of(cls, part: Part, window: int | None, like: torch.Tensor) -> View:
        request, n = part.request, part.n
        committed = request.rows.committed
        start = max(0, committed + 1 - window) if window else 0
        end = committed + n
        if n == 1:
            return cls(start, end, None)
        if committed == 0 and request.is_chain and (window is None or n <= window):
            return cls(start, end, None, causal=True)
        mask = part.scratch.take((part.number, window, like.dtype, like.device), n, end - start, like)
        fill_mask(mask, request, start, window)
        return cls(start, end, mask)


def fill_mask(mask: torch.Tensor, request: Request, start: int, window: int | None) -> None:
    """Write ``[n, end - start]`` in place: 0 where a row sees a key, ``-inf`` where it does not.

    A row at position *p* sees the keys at positions ``p - window < q <= p`` on its own path.
    """
    fresh = request.rows.committed - start
    mask.zero_()
    seen = torch.from_numpy(request.visible)
    if window is not None:
        depth = torch.from_numpy(request.positions)
        seen = seen & (depth[:, None] - depth[None, :] < window)
        keys = torch.arange(start, start + fresh)
        mask[:, :fresh].masked_fill_((depth[:, None] - keys[None, :] >= window).to(mask.device), float("-inf"))
    mask[:, fresh:].masked_fill_(~seen.to(mask.device), float("-inf"))


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    paceline: Forward | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """What transformers calls in every layer: ``[1, heads, sum n, width] -> [1, sum n, heads, width]``."""
    if paceline is None:
        raise RuntimeError("attention 'paceline' serves forwards that the engine started; choose 'sdpa' for others")
    layer = paceline.enter_layer(sliding_window, others)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    outputs = []
    for part in paceline.parts:
        view = part.view(sliding_window, query)
        keys, values = part.rows.layers[layer].span(view.start, view.end)
        rows = query[:, :, part.start : part.start + part.n]
        if softcap is None and s_aux is None:
            outputs.append(fused(rows, keys, values, view, scale))
        else:
            outputs.append(streamed(rows, keys, values, view, scale, softcap, s_aux))
    packed = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)
    return packed.transpose(1, 2), None


def fused(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, view: View, scale: float
) -> torch.Tensor:
    """Torch's fused kernel, ``[1, heads, n, width]``; grouped heads as a batch, their keys not copied."""
    heads, kv_heads = query.shape[1], keys.shape[1]
    group = heads // kv_heads
    grouped = query.reshape(kv_heads, group, *query.shape[2:])
    spread = (kv_heads, group, *keys.shape[2:3])
    out = F.scaled_dot_product_attention(
        grouped,
        keys.transpose(0, 1).expand(*spread, keys.shape[3]),
        values.transpose(0, 1).expand(*spread, values.shape[3]),
        attn_mask=view.mask,
        is_causal=view.causal,
        scale=scale,
    )
    return out.reshape(1, heads, query.shape[2], values.shape[3])


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
    rows = query.reshape(kv_heads, heads // kv_heads, n, query.shape[3])
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
        scores = (rows @ keys[0, :, None, block].transpose(2, 3)).to(wide) * scale
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        if mask is not None:
            scores = scores + mask[:, block]
        higher = torch.maximum(peak, scores.amax(dim=-1, keepdim=True))
        fade = torch.where(higher == peak, 1.0, torch.exp(peak - higher))
        weights = torch.where(scores == float("-inf"), 0.0, torch.exp(scores - higher))
        total = total * fade + weights.sum(dim=-1, keepdim=True)
        mixed = mixed * fade + (weights.to(values.dtype) @ values[0, :, None, block]).to(wide)
        peak = higher
    return (mixed / total).to(query.dtype).reshape(1, heads, n, values.shape[3])


def _causal(n: int, like: torch.Tensor) -> torch.Tensor:
    return torch.full((n, n), float("-inf"), dtype=like.dtype, device=like.device).triu(1)
