"""Decoder layers of trained heads: those of Llama and Qwen3, under the names that heads are published in.

A layer does not decide which rows a row sees. It hands its queries, keys and values to an `Attend`: `TextRows` for the
rows of several texts in one forward, which are kept; `WindowRows` for batches of windows with a mask, in training.
Tensors are ``[..., rows, width]``, and inside attention ``[..., rows, heads, size]``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from paceline.drafters.networks.rotary import Rotary, Rotation, rotated
from paceline.law.on_device import sent
from paceline.targets.base import Request
from paceline.targets.cache import CacheRows
from paceline.tree import Bools


@dataclass(frozen=True, kw_only=True)
class LayerShape:
    """The sizes of a layer."""

    width: int
    units: int
    """The width of the gated units."""
    heads: int
    kv_heads: int
    head_size: int
    eps: float = 1e-6
    reads: int = 0
    """The width that queries, keys and values are computed of; 0 for that of the layer."""
    bias: bool = False
    """Of queries, keys and values."""
    out_bias: bool = False
    head_norms: bool = False
    """Whether queries and keys are normalised head by head, as Qwen3's are."""
    gated: bool = False
    """Whether each query has a gate for what its head finds, as Qwen3-Next's has."""
    head_eps: float | None = None
    """Of the norms of heads; None for that of the other norms."""
    input_norm: bool = True

    @property
    def norm_eps(self) -> float:
        """Of the norms of heads."""
        return self.eps if self.head_eps is None else self.head_eps

    def widened(self, ratio: int) -> LayerShape:
        """The layer of a model with as many times more channels, whose new ones are 0."""
        return replace(
            self,
            width=self.width * ratio,
            units=self.units * ratio,
            heads=self.heads * ratio,
            kv_heads=self.kv_heads * ratio,
            reads=self.reads * ratio,
            eps=self.eps / ratio,
            head_eps=self.norm_eps,
        )


class Attend(Protocol):
    """Mixes the values of the rows that each row sees."""

    def __call__(self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor: ...


class RMSNorm(nn.Module):
    """Divides by the root of the mean square, in float32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.variance_epsilon = eps

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        shape, eps = states.shape[-1:], self.variance_epsilon
        if states.dtype == self.weight.dtype == torch.float32:
            return torch.rms_norm(states, shape, self.weight, eps)
        return self.weight * torch.rms_norm(states.float(), shape, None, eps).to(states.dtype)


class RowAttention(nn.Module):
    """Queries, keys and values of rows, and what is made of the values that they find."""

    def __init__(self, shape: LayerShape, number: int) -> None:
        super().__init__()
        self.shape, self.number = shape, number
        reads, size = shape.reads or shape.width, shape.head_size
        self.q_proj = nn.Linear(reads, shape.heads * size * (1 + shape.gated), bias=shape.bias)
        self.k_proj = nn.Linear(reads, shape.kv_heads * size, bias=shape.bias)
        self.v_proj = nn.Linear(reads, shape.kv_heads * size, bias=shape.bias)
        self.o_proj = nn.Linear(shape.heads * size, shape.width, bias=shape.out_bias)
        if shape.head_norms:
            self.q_norm, self.k_norm = RMSNorm(size, shape.norm_eps), RMSNorm(size, shape.norm_eps)

    def forward(self, read: torch.Tensor, rotation: Rotation, attend: Attend) -> torch.Tensor:
        queries, gates = self.queries(read, rotation)
        found = attend(self.number, queries, *self.keys(read, rotation)).flatten(-2)
        if gates is not None:
            found = found * torch.sigmoid(gates)
        return self.o_proj(found)  # type: ignore[no-any-return]

    def queries(self, read: torch.Tensor, rotation: Rotation) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Turned queries, and gates if it has any."""
        rows = self.q_proj(read).unflatten(-1, (self.shape.heads, -1))
        gates = rows[..., self.shape.head_size :].flatten(-2) if self.shape.gated else None
        rows = rows[..., : self.shape.head_size]
        return rotated(self.q_norm(rows) if self.shape.head_norms else rows, rotation), gates

    def keys(self, read: torch.Tensor, rotation: Rotation) -> tuple[torch.Tensor, torch.Tensor]:
        """Turned keys, and values: also of rows that ask nothing."""
        rows = self.k_proj(read).unflatten(-1, (self.shape.kv_heads, -1))
        values = self.v_proj(read).unflatten(-1, (self.shape.kv_heads, -1))
        return rotated(self.k_norm(rows) if self.shape.head_norms else rows, rotation), values


class GatedUnits(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.width, shape.units, bias=False)
        self.up_proj = nn.Linear(shape.width, shape.units, bias=False)
        self.down_proj = nn.Linear(shape.units, shape.width, bias=False)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(states)) * self.up_proj(states))  # type: ignore[no-any-return]


class DecoderLayer(nn.Module):
    """Attention and gated units, each beside its input."""

    compilable = True
    """Whether it is one that can be compiled."""

    def __init__(self, shape: LayerShape, number: int) -> None:
        super().__init__()
        self.self_attn = RowAttention(shape, number)
        self.mlp = GatedUnits(shape)
        if shape.input_norm:
            self.input_layernorm = RMSNorm(shape.width, shape.eps)
        self.post_attention_layernorm = RMSNorm(shape.width, shape.eps)

    @property
    def norms_before(self) -> tuple[RMSNorm, ...]:
        """The norms of what attention reads, side by side; none where that is not normed."""
        return (self.input_layernorm,) if self.self_attn.shape.input_norm else ()

    def forward(self, states: torch.Tensor, rotation: Rotation, attend: Attend) -> torch.Tensor:
        read = self.input_layernorm(states) if self.self_attn.shape.input_norm else states
        return self.behind(states, read, rotation, attend)

    def behind(self, states: torch.Tensor, read: torch.Tensor, rotation: Rotation, attend: Attend) -> torch.Tensor:
        """The layer's output if attention reads ``read`` beside ``states``."""
        states = states + self.self_attn(read, rotation, attend)
        return states + self.mlp(self.post_attention_layernorm(states))  # type: ignore[no-any-return]


def compilable(layers: Sequence[DecoderLayer], rotary: Rotary) -> Sequence[DecoderLayer]:
    """These layers, if all are of the kind that `compiled` computes; none where one is not."""
    alike = all(
        layer.compilable and not layer.self_attn.shape.gated and layer.self_attn.shape.head_size == rotary.size
        for layer in layers
    )
    return layers if alike else ()


def attended(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    """Attention over ``[..., heads, rows, size]``. The queries of heads that share keys are rows of one head: so no
    key is copied. ``mask`` ``[..., rows, keys]`` says what is seen; None for everything."""
    heads, rows, shared = queries.shape[-3], queries.shape[-2], keys.shape[-3]
    group = heads // shared
    if group > 1:
        queries = queries.unflatten(-3, (shared, group)).flatten(-3, -2)
        mask = mask if mask is None else torch.cat([mask] * group, dim=-2)
    if mask is not None and mask.ndim > 2:
        mask = mask[..., None, :, :]
    found = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
    return found.unflatten(-2, (group, rows)).flatten(-4, -3) if group > 1 else found


class TextRows:
    """Attention of requests' rows, all in one forward: each sees the rows of its text, which it is written behind, and
    the nodes above it.

    The first ``skipped`` rows of a text are seen by themselves only. A layer with a window sees as many rows at most,
    its own included.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        device: torch.device,
        *,
        skipped: int = 0,
        windows: Mapping[int, int] | None = None,
    ) -> None:
        self._requests, self._windows = requests, windows or {}
        self._sizes = [len(request.tokens) for request in requests]
        for request in requests:
            request.rows.note(request.tokens, request.held)
        self._masks = {
            window: [_sent(_visible(request, skipped, window), device) for request in requests]
            for window in {0, *self._windows.values()}
        }

    def __call__(self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        masks = self._masks[self._windows.get(layer, 0)]
        parts = [rows.transpose(0, 1)[None].split(self._sizes, dim=2) for rows in (queries, keys, values)]
        found = [
            attended(asked, *_written(request, layer, key, value), mask)[0].transpose(0, 1)
            for request, asked, key, value, mask in zip(self._requests, *parts, masks, strict=True)
        ]
        return torch.cat(found)


def _written(
    request: Request, layer: int, keys: torch.Tensor, values: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """All keys and values of a text in a layer, behind which these are written."""
    rows = request.rows
    assert isinstance(rows, CacheRows), "rows of a head are tensors"
    return rows.write(layer, keys, values).span(0, request.end)


def _sent(visible: Bools | None, device: torch.device) -> torch.Tensor | None:
    return None if visible is None else sent(torch.from_numpy(visible), device)


def _visible(request: Request, skipped: int, window: int) -> Bools | None:
    """Which rows of its text and draft each fresh row sees; None where each sees all."""
    committed, count = request.rows.committed, len(request.tokens)
    seen = np.concatenate([np.ones((count, committed), np.bool_), request.visible], axis=1)
    places = np.concatenate([np.arange(committed), request.tentative_positions])
    own = np.arange(committed + request.held, request.end)
    if skipped:
        seen[:, places < skipped] = False
    if window:
        seen &= places > places[own][:, None] - window
    seen[np.arange(count), own] = True
    return None if seen.all() else seen


class WindowRows:
    """Attention of batches of windows: rows see those of all steps so far that ``mask`` ``[..., rows, all rows]`` says.

    With it a head is trained on its own outputs, step after step.
    """

    def __init__(self) -> None:
        self._mask: torch.Tensor | None = None
        self._steps: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def step(self, mask: torch.Tensor | None) -> WindowRows:
        """The next rows see by this mask."""
        self._mask = mask
        return self

    def __call__(self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        if (before := self._steps.get(layer)) is not None:
            keys, values = torch.cat([before[0], keys], dim=-3), torch.cat([before[1], values], dim=-3)
        self._steps[layer] = keys, values
        asked, keys, values = (rows.transpose(-3, -2) for rows in (queries, keys, values))
        return attended(asked, keys, values, self._mask).transpose(-3, -2)


def layer_shape(config: Mapping[str, Any], names: Mapping[str, Any], place: str) -> LayerShape:
    """The shape of a published layer: sizes of the configuration, and what the tensors' names beside ``place`` say that
    configurations leave out; ValueError where it cannot be computed."""
    if (activation := config.get("hidden_act", "silu")) not in ("silu", "swish"):
        raise ValueError(f"hidden_act is {activation!r}, and a head's is 'silu'")
    sizes = {name: int(config[name]) for name in ("hidden_size", "intermediate_size", "num_attention_heads")}
    heads = sizes["num_attention_heads"]
    shared = int(config.get("num_key_value_heads") or heads)
    if min(*sizes.values(), shared) < 1:
        raise ValueError(f"sizes of its layer are {sizes}")
    size = int(config.get("head_dim") or sizes["hidden_size"] // heads)
    if heads % shared or size % 2 or size < 2:
        raise ValueError(f"{heads} heads of size {size} and {shared} of keys do not fit")
    return LayerShape(
        width=sizes["hidden_size"],
        units=sizes["intermediate_size"],
        heads=heads,
        kv_heads=shared,
        head_size=size,
        eps=float(config.get("rms_norm_eps", 1e-6)),
        bias=f"{place}.self_attn.q_proj.bias" in names,
        out_bias=f"{place}.self_attn.o_proj.bias" in names,
        head_norms=f"{place}.self_attn.q_norm.weight" in names,
    )
