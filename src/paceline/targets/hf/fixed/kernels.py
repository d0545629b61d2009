"""Attention over the slots of a slab, ``[slots, kv heads, group * n, width]``. The heads that share keys are rows of
one head, so that keys are read in place, and once for all of them.

There are three ways. The rule is torch's fused kernel. It gives a block of threads to a head, so with one sequence most
of a GPU is idle while a few blocks read a long text: there the text is split, its pieces are read in parallel, and
their results are added, weighted by their sums. Soft-cap and sinks need the scores themselves (`spelled_out`).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from paceline.targets.hf.attention import AttentionOptions

BLOCKS = 64
"""Heads, of all sequences together, that keep a GPU busy."""
FEW_ROWS = 64
"""Rows of a head that one block of threads computes at once."""
LONG = 1024
PIECE = 256
PIECES = 64
TYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Others are not split."""
SPLIT_TOLERANCE = 1e-4
"""How far a split text may lie from a whole one in any type, in standard deviations."""
TYPE_STEPS = 2
"""The roundings, in steps of the type at the size of the largest number, that it may lie apart beside that: both round
the result, and a split text the parts of it, which may be larger."""


def attention(
    rows: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    options: AttentionOptions,
    splits: bool,
) -> torch.Tensor:
    """``mask`` ``[slots, 1, group * n, length]`` is added to the scores; ``splits``: whether texts may be split."""
    if options.softcap is not None or options.sinks is not None:
        return spelled_out(rows, keys, values, mask, options)
    few = len(rows) * rows.shape[1] < BLOCKS and rows.shape[2] <= FEW_ROWS
    if splits and few and keys.shape[2] >= LONG and keys.shape[2] % PIECE == 0:
        return split(rows, keys, values, mask, options.scale)
    with _kernels(rows.device):
        return F.scaled_dot_product_attention(rows, keys, values, attn_mask=mask, scale=options.scale)


def mask_type(dtype: torch.dtype, options: AttentionOptions) -> torch.dtype:
    """The type of the mask for `attention`: `spelled_out` computes scores in float32 at least."""
    touched = options.softcap is not None or options.sinks is not None
    return torch.promote_types(dtype, torch.float32) if touched else dtype


def _kernels(device: torch.device) -> AbstractContextManager[None]:
    """On CUDA, choose the kernels that take a mask and can be recorded; torch may prefer others."""
    if device.type != "cuda":
        return nullcontext()
    kernels: AbstractContextManager[None] = sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])
    return kernels


def split(
    rows: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, scale: float
) -> torch.Tensor:
    """Attention over every piece of the text as a separate sequence, then the mean weighted by the pieces' sums."""
    piece, mixed = piece_of(keys.shape[2]), []
    for row, key, value, hidden in zip(rows, keys, values, mask[:, 0], strict=True):
        kv_heads, pieces = len(key), key.shape[1] // piece
        found, weight = _pieces(
            row.repeat(pieces, 1, 1, 1),
            key.unflatten(1, (pieces, piece)).transpose(0, 1),
            value.unflatten(1, (pieces, piece)).transpose(0, 1),
            hidden.unflatten(1, (pieces, piece)).transpose(0, 1)[:, None].expand(-1, kv_heads, -1, -1),
            scale,
        )
        share = torch.exp(weight - weight.amax(dim=0))[..., None]
        mixed.append(((found.to(share.dtype) * share).sum(dim=0) / share.sum(dim=0)).to(row.dtype))
    return torch.stack(mixed)


def piece_of(length: int) -> int:
    """The length of a piece, such that there are at most `PIECES`; lengths of shapes can be halved as often."""
    piece = PIECE
    while length > PIECES * piece and length % (2 * piece) == 0:
        piece *= 2
    return piece


def _pieces(
    rows: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The attention of each piece, and the logarithm of the sum of its weights, ``[pieces, kv heads, group * n]``."""
    if rows.device.type == "cuda":
        kernel = torch.ops.aten._scaled_dot_product_efficient_attention
        found, weight, *_ = kernel(rows, keys, values, mask, True, scale=scale)
        return found, weight[:, :, : rows.shape[2]]  # the kernel pads it
    found, weight = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        rows, keys, values, attn_mask=mask, scale=scale
    )
    return found, weight


@cache
def splits_here(device: torch.device, dtype: torch.dtype, width: int) -> bool:
    """Whether split attention equals whole attention on this device: its kernels are not torch's public ones."""
    if dtype not in TYPES or width % 8 or device.type not in ("cpu", "cuda"):
        return False
    random = torch.Generator(device).manual_seed(0)
    rows, keys, values = (
        torch.randn(1, 2, n, width, generator=random, device=device, dtype=dtype) for n in (6, LONG, LONG)
    )
    mask = torch.zeros(1, 1, 6, LONG, device=device, dtype=dtype)
    mask[..., 300:900] = -1e4
    mask[..., 0, 7:] = -1e4
    try:
        one, other = (attention(rows, keys, values, mask, AttentionOptions(0.2), how) for how in (True, False))
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        return False
    one, other = one.float(), other.float()
    step = torch.finfo(dtype).eps * other.abs().max()
    return bool((one - other).abs().max() <= TYPE_STEPS * step + SPLIT_TOLERANCE * other.std())


def spelled_out(
    rows: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, options: AttentionOptions
) -> torch.Tensor:
    """Attention with soft-cap or sinks. A sink is a key with a given score and no value."""
    scores = (rows @ keys.transpose(-1, -2)).to(mask.dtype) * options.scale
    if options.softcap is not None:
        scores = torch.tanh(scores / options.softcap) * options.softcap
    scores = scores + mask
    peak = scores.amax(dim=-1, keepdim=True)
    if options.sinks is None:
        weights = torch.exp(scores - peak)
        total = weights.sum(dim=-1, keepdim=True)
    else:
        kv_heads = keys.shape[1]
        sinks = options.sinks.to(mask.dtype).view(1, kv_heads, -1, 1)
        sinks = sinks.expand(-1, -1, -1, rows.shape[2] // sinks.shape[2]).reshape(1, kv_heads, -1, 1)
        peak = torch.maximum(peak, sinks)
        weights = torch.exp(scores - peak)
        total = weights.sum(dim=-1, keepdim=True) + torch.exp(sinks - peak)
    return (weights / total).to(values.dtype) @ values
