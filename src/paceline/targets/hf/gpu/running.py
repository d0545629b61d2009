"""The kernels' grids, sizes, and memory for what they find."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from paceline import launching
from paceline.targets.hf.attention import AttentionOptions
from paceline.targets.hf.fixed.inputs import Inputs
from paceline.targets.hf.fixed.shapes import TENTATIVE
from paceline.targets.hf.gpu import attention, layer
from paceline.targets.hf.operations import Heads

WAVES = 2
"""Programs of attention for each processor of a GPU, where a text is long enough to be split so often."""
SPLITS = 64
"""The most parts of a text."""
KEYS = 64
"""Keys that a program reads at a time; half of them where a head is wide, and half where it is in float32."""
LEAST_ROWS, MOST_ROWS = 16, 64
"""Rows of a head in one program: tensor cores want 16, and more than 64 do not fit into registers."""
WIDE = 128
GATED = 1024
"""Of a row of the gated states, in one program."""


def power(size: int) -> int:
    """The least power of two that is not below ``size``, and that a kernel can hold in a register."""
    return max(16, 1 << (size - 1).bit_length())


def add_norm(
    states: torch.Tensor, more: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum of states ``[..., width]`` and more, and its norm."""
    width, rows = states.shape[-1], states.numel() // states.shape[-1]
    total = states if more is None else torch.empty_like(states, memory_format=torch.contiguous_format)
    result = torch.empty_like(states, memory_format=torch.contiguous_format)
    other = states if more is None else more
    strides = width_of(states), width_of(other)
    constants = {"ADDS": more is not None, "PAD": power(width), "num_warps": 8 if width > 2048 else 4}
    launching.launch(layer.add_norm, (rows,), states, other, weight, total, result, width, eps, *strides, **constants)
    return total, result


def width_of(states: torch.Tensor) -> int:
    """The distance of rows of ``[1, n, width]`` in memory."""
    assert states.stride(-1) == 1 and states.shape[:-2].numel() == 1, "rows of one forward"
    return states.stride(-2)


def gate(gates: torch.Tensor, ups: torch.Tensor) -> torch.Tensor:
    width, rows = gates.shape[-1], gates.shape[-2]
    result = torch.empty(gates.shape, dtype=gates.dtype, device=gates.device)
    strides, grid = (width_of(gates), width_of(ups)), (rows, -(-width // GATED))
    launching.launch(layer.gate, grid, gates, ups, result, width, *strides, BLOCK=GATED)
    return result


@dataclass(frozen=True)
class HeadNorm:
    """The weight of a norm of heads, and its epsilon."""

    weight: torch.Tensor
    eps: float


def rotate_and_write(
    heads: Heads,
    cos_sin: tuple[torch.Tensor, torch.Tensor],
    norms: tuple[HeadNorm, HeadNorm] | None,
    slots: tuple[torch.Tensor, torch.Tensor],
    inputs: Inputs,
) -> torch.Tensor:
    """Queries ``[1, n, heads, width]``, normed and rotated; writes keys and values."""
    keys, values = slots
    (_, rows, every, width), together = heads.all.shape, heads.all
    queries = together.new_empty((1, rows, heads.queries, width))
    cosines, sines = (part.reshape(rows, width) for part in cos_sin)
    query_norm, key_norm = norms or (HeadNorm(cosines, 0.0), HeadNorm(cosines, 0.0))
    launching.launch(
        layer.rotate_and_write,
        (rows, every),
        *(together, cosines, sines, query_norm.weight, key_norm.weight, query_norm.eps, key_norm.eps),
        *(queries, keys, values, inputs.places, together.stride(1), inputs.places.shape[1]),
        *(keys.stride(0), keys.stride(1), values.stride(0), values.stride(1)),
        HEADS=heads.queries,
        KV_HEADS=heads.keys,
        WIDTH=width,
        PAD=power(width),
        NORMED=norms is not None,
        num_warps=1,
    )
    return queries


def write(new: tuple[torch.Tensor, torch.Tensor], slots: tuple[torch.Tensor, torch.Tensor], inputs: Inputs) -> None:
    """Write keys and values ``[1, heads, n, width]`` to their slots."""
    (new_keys, new_values), (keys, values) = new, slots
    new_keys, new_values = (each if each.stride(-1) == 1 else each.contiguous() for each in (new_keys, new_values))
    width, value_width = keys.shape[3], values.shape[3]
    launching.launch(
        layer.write,
        (new_keys.shape[2], keys.shape[1]),
        *(new_keys, new_values, keys, values, inputs.places, inputs.places.shape[1]),
        *(new_keys.stride(1), new_keys.stride(2), new_values.stride(1), new_values.stride(2)),
        *(keys.stride(0), keys.stride(1), values.stride(0), values.stride(1)),
        WIDTH=width,
        VALUE_WIDTH=value_width,
        PAD=power(max(width, value_width)),
        num_warps=1,
    )


def attend(
    queries: torch.Tensor, slots: tuple[torch.Tensor, torch.Tensor], inputs: Inputs, options: AttentionOptions
) -> torch.Tensor:
    """Attention of queries ``[1, heads, rows, width]`` over their slots, ``[1, heads, rows, value width]``, whose rows
    lie one behind the other as the next layer reads them."""
    keys, values = slots
    queries = queries if queries.stride(-1) == 1 else queries.contiguous()
    (_, heads, rows, width), kv_heads, value_width = queries.shape, keys.shape[1], values.shape[3]
    group, n, count = heads // kv_heads, inputs.places.shape[1], len(inputs.places)
    at_once, read = tile(group * n, max(width, value_width), queries.dtype)
    programs = -(-group * n // at_once) * kv_heads * count
    splits = splits_of(programs, keys.shape[2] // read, queries.device)
    result = queries.new_empty((1, rows, heads, value_width))
    whole = splits == 1
    parts = result if whole else result.new_empty((rows, heads, splits, value_width), dtype=torch.float32)
    sums = result if whole else result.new_empty((rows, heads, splits, 2), dtype=torch.float32)
    sinks = result if options.sinks is None else options.sinks
    launching.launch(
        attention.attend,
        (-(-group * n // at_once), kv_heads, count * splits),
        *(queries, keys, values, result, parts, sums),
        *(inputs.committed, inputs.fresh, inputs.tentative, inputs.seen.view(torch.uint8), inputs.positions, sinks),
        *(float(options.scale), float(options.softcap or 0.0), options.window or 0, n),
        *(queries.stride(2), queries.stride(1)),
        *(keys.stride(0), keys.stride(1), values.stride(0), values.stride(1)),
        GROUP=group,
        WIDTH=width,
        VALUE_WIDTH=value_width,
        PAD=power(width),
        VALUE_PAD=power(value_width),
        TENTATIVE=TENTATIVE,
        SPLITS=splits,
        ROWS=at_once,
        KEYS=read,
        WINDOW=options.window is not None,
        SOFTCAP=options.softcap is not None,
        SINKS=options.sinks is not None,
        num_warps=8 if at_once == MOST_ROWS else 4,
        num_stages=2,
    )
    if not whole:
        launching.launch(
            attention.join,
            (rows * heads,),
            *(parts, sums, result, sinks, heads),
            VALUE_WIDTH=value_width,
            VALUE_PAD=power(value_width),
            SPLITS=splits,
            SINKS=options.sinks is not None,
            num_warps=4,
        )
    return result.transpose(1, 2)


def tile(rows: int, width: int, dtype: torch.dtype) -> tuple[int, int]:
    """Rows of a head and keys that a program has in registers at a time."""
    wide = dtype == torch.float32, width > WIDE, dtype == torch.float32 and width > WIDE // 2
    most = max(LEAST_ROWS, MOST_ROWS >> sum(wide))
    return min(most, power(rows)), KEYS >> sum(wide[:2])


def splits_of(programs: int, blocks: int, device: torch.device) -> int:
    """How many parts a text is read in: a power of two, enough to occupy the whole GPU."""
    wanted = min(WAVES * processors(device) // programs, blocks, SPLITS)
    return 1 << max(0, wanted.bit_length() - 1)


@cache
def processors(device: torch.device) -> int:
    """Of a GPU; a CPU, where kernels are interpreted, has one."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
