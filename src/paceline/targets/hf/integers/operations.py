"""The operations between linear layers, with results that do not depend on what else is in a forward.

Floating-point sums depend on their order, and kernels choose the order by shape. Here sums either cannot be rounded, so
that every order gives the same, or they are a kernel's that takes each row by itself:

- *Scores.* Queries and keys are rounded to multiples of a power of two, a step for each row and head: so coarse that
  the products of a head add up exactly in float32 (9 bits each for a head of 64). Which keys are read together,
  in which order and beside which rows, does not matter.
- *Mixed values.* Weights are rounded to multiples of 2^-21 of the largest, values to a step that follows from the
  layer's weights, so that their sums over the whole context add up exactly in float64. Both sums of a softmax do.
- *Norms* and *exponentials* are computed in doubles and rounded once: torch and the compiled forwards of `fused`, whose
  doubles differ in their last bits, find the same floats. `is_uniform` tries torch's at load.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import nn

from paceline.targets.hf.attention import AttentionOptions, KVCache, Segment
from paceline.targets.hf.operations import Operations
from paceline.targets.hf.packed import PackedLinear
from paceline.targets.hf.variants import LlamaModules

FLOAT_BITS, DOUBLE_BITS = 24, 53
WEIGHT_BITS = 21
"""Of an attention weight, below the largest one."""
DEFAULT_CONTEXT_LENGTH = 2**17
"""The context length of a model that names none."""
MOST, FEWEST = 64, 16
"""Rows whose scores are in memory at a time."""
SCORES = 1 << 20
"""Scores of all heads that are in memory at a time, unless that is less than the `FEWEST` rows. More of them leave the
processor's caches, and the memory for a prompt would grow with the text."""
_EXPONENT = torch.tensor(0x7F800000, dtype=torch.int32)
"""The bits of a float's exponent."""
SLACK = 2.0
"""The most by which rounding to 8 bits makes a normed row longer: no value more than doubles."""


class ExactOperations(Operations):
    """For a model whose linear layers are in 8-bit integers."""

    def __init__(self, modules: LlamaModules, context_length: int | None) -> None:
        self.value_steps = {
            layer.attention.layer_idx: value_step(layer.qkv[2], layer.before.weight, context_length)
            for layer in modules.layers
        }

    def cache(self, segments: Sequence[Segment]) -> KVCache:
        return ExactKVCache(segments, self.value_steps)

    def rounded(self, heads: torch.Tensor) -> torch.Tensor:
        return coarse(heads)

    def norm(self, states: torch.Tensor, norm: Any) -> torch.Tensor:
        return normed(states, norm.weight, norm.variance_epsilon)

    def gated(self, gate: torch.Tensor, up: torch.Tensor, act: Any) -> torch.Tensor:
        """SiLU by the exponential, for torch's own is not uniform."""
        return (gate / exponential(-gate).add_(1.0)).mul_(up)


class ExactKVCache(KVCache):
    """Each sequence's rows in separate buffers: keys in float32, values in float64, both rounded.

    Values that are no numbers are written as zeros: those of a hidden row are multiplied by weights of zero, and would
    reach rows that do not see it. Rows that see it find its keys, which are no numbers either, because the states that
    keys and values are made of are none.
    """

    def __init__(self, segments: Sequence[Segment], value_steps: dict[int, float]) -> None:
        self._segments = segments
        self._value_steps = value_steps
        self._sizes = [segment.n for segment in segments]

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        values = to_steps(values, self._value_steps[layer]).nan_to_num_(0.0, 0.0, 0.0).double()
        for segment, key, value in zip(self._segments, self._split(keys), self._split(values), strict=True):
            segment.rows.write(layer, key, value)

    def attend(self, layer: int, query: torch.Tensor, options: AttentionOptions) -> torch.Tensor:
        parts = [
            _attention(segment, layer, rows, options)
            for segment, rows in zip(self._segments, self._split(query), strict=True)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)

    def _split(self, packed: torch.Tensor) -> Sequence[torch.Tensor]:
        return (packed,) if len(self._sizes) == 1 else packed.split(self._sizes, dim=2)


def _attention(segment: Segment, layer: int, query: torch.Tensor, options: AttentionOptions) -> torch.Tensor:
    """Attention ``[1, heads, n, width]`` of one sequence's fresh rows."""
    request, n, window, scale = segment.request, segment.n, options.window, options.scale
    start = segment.first(window)
    keys, values = segment.rows.layers[layer].span(start, request.end)
    if n == 1 and request.is_chain:
        first = max(0, request.end - window) - start if window else 0
        return mixed(query, keys[0, :, first:], values[0, :, first:], scale, None)
    hidden = segment.hidden(window)
    tiles, tile = [], tile_rows(query.shape[1], keys.shape[2])
    for first in range(0, n, tile):
        last = min(n, first + tile)
        behind = n - last if request.is_chain else 0  # no row of the tile sees these
        seen, columns = keys.shape[2] - behind, hidden.shape[1] - behind
        tile_hidden = hidden[first:last, :columns]
        tiles.append(mixed(query[:, :, first:last], keys[0, :, :seen], values[0, :, :seen], scale, tile_hidden))
    return tiles[0] if len(tiles) == 1 else torch.cat(tiles, dim=2)


def tile_rows(heads: int, keys: int) -> int:
    """How many rows' scores are in memory at a time."""
    return max(FEWEST, min(MOST, SCORES // (heads * keys)))


def mixed(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, hidden: torch.Tensor | None
) -> torch.Tensor:
    """Values ``[1, heads, n, width]`` mixed by the softmax of rounded scores, the heads that share keys together.

    The last keys are ``hidden`` from some rows. Their scores are replaced, for they may not be numbers.
    """
    _, heads, n, width = query.shape
    shared = keys.shape[0]
    scores = torch.bmm(query.reshape(shared, -1, width), keys.transpose(1, 2)).mul_(scale)
    if hidden is not None:
        scores.view(shared, -1, n, keys.shape[1])[..., -hidden.shape[1] :].masked_fill_(hidden, float("-inf"))
    weights = exponential(scores.sub_(scores.amax(-1, keepdim=True)))
    weights = to_steps(weights, 2.0**-WEIGHT_BITS).double()
    found = torch.bmm(weights, values).div_(weights.sum(-1, keepdim=True))
    return found.float().view(1, heads, n, width)


def normed(states: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """A root-mean-square norm in doubles, rounded once."""
    wide = states.double()
    factor = (wide.square().mean(-1, keepdim=True) + eps).sqrt_().reciprocal_()
    return wide.mul_(factor).mul_(weight.double()).float()


def exponential(values: torch.Tensor) -> torch.Tensor:
    """In doubles, rounded once."""
    return values.double().exp_().float()


def coarse(heads: torch.Tensor) -> torch.Tensor:
    """Each row of a head rounded to multiples of a power of two, so few of them that products add up exactly."""
    below = heads.abs().amax(-1, keepdim=True).view(torch.int32).bitwise_and_(_EXPONENT).view(torch.float32)
    return _rounded(heads, below.mul_(coarseness(heads.shape[-1])))


def coarseness(size: int) -> float:
    """The factor of the power of two below a head's largest value with which `_rounded` rounds the head."""
    bits = (FLOAT_BITS - math.ceil(math.log2(size))) // 2
    return float(1.5 * 2.0 ** (FLOAT_BITS - bits))


def to_steps(rows: torch.Tensor, step: float) -> torch.Tensor:
    """Rounded to multiples of a power of two."""
    return _rounded(rows, 1.5 * 2.0 ** (FLOAT_BITS - 1) * step)


def _rounded(rows: torch.Tensor, shift: torch.Tensor | float) -> torch.Tensor:
    """Next to a number as large as ``shift``, floats are as far apart as the step."""
    return (rows + shift).sub_(shift)


def step_below(largest: float, bits: int) -> float:
    """The power of two of which ``largest`` is at most ``2^bits``."""
    return float(2.0 ** (math.ceil(math.log2(max(largest, 1e-30))) - bits))


@torch.no_grad()
def largest_value(linear: nn.Module, norm: torch.Tensor) -> float:
    """No value of a layer is larger, whose ``linear`` finds them of a row that was normed with these weights: such a
    row is no longer than the root of its width."""
    assert isinstance(linear, PackedLinear)
    weight = linear.unpacked_weight() * norm.float()
    longest = weight.square().sum(1).sqrt() * math.sqrt(weight.shape[1]) * SLACK
    return float(longest.max() if linear.bias is None else (longest + linear.bias.abs()).max())


def value_step(linear: nn.Module, norm: torch.Tensor, context_length: int | None) -> float:
    """The step to which such values are rounded, so that the products of a whole text add up exactly."""
    length = math.ceil(math.log2(context_length or DEFAULT_CONTEXT_LENGTH))
    return step_below(largest_value(linear, norm), DOUBLE_BITS - WEIGHT_BITS - length)


@cache
def is_uniform() -> bool:
    """Whether torch's exponential and norm give a row the same bits wherever it lies; tried once."""
    values = torch.linspace(-90.0, 40.0, 4099)
    apart = torch.cat([exponential(value) for value in values.split(1)])
    moved = all(torch.equal(exponential(values[first:]), apart[first:]) for first in range(1, 40))
    rows, weight = torch.linspace(-3.0, 3.0, 64 * 1031).cos().view(64, 1031), torch.ones(1031)
    alone = torch.cat([normed(row, weight, 1e-6) for row in rows.split(1)])
    together = all(torch.equal(normed(rows[:n], weight, 1e-6), alone[:n]) for n in (2, 7, 64))
    return torch.equal(exponential(values), apart) and moved and together
