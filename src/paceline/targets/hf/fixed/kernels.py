"""Attention over the slots of a slab, ``[slots, kv heads, group * n, width]``: the heads that share keys are rows of
one head, so that keys are read where they lie, and once for all of them.

Three ways. Torch's fused kernel is the rule. It gives a block of threads to a head, which for one sequence leaves most
of a GPU idle while a few blocks walk a long text: there the text is split, its pieces are walked side by side, and what
they find is put together by how much weight each had. And where scores are touched, they are spelled out.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from paceline.targets.hf.attention import Asked

BLOCKS = 64
"""Heads of sequences from which on a GPU has enough to do."""
FEW_ROWS = 64
"""Rows of a head that one block of threads takes on at once."""
LONG = 1024
PIECE = 256
PIECES = 64
CLOSE = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 4e-3}
"""How far a split text may lie from a whole one, in deviations; other types are not split."""


def attention(
    rows: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, asked: Asked, splits: bool
) -> torch.Tensor:
    """``mask`` ``[slots, 1, group * n, length]`` is added to the scores; ``splits`` tells whether that works here."""
    if asked.softcap is not None or asked.sinks is not None:
        return spelled_out(rows, keys, values, mask, asked)
    few = len(rows) * rows.shape[1] < BLOCKS and rows.shape[2] <= FEW_ROWS
    if splits and few and keys.shape[2] >= LONG and keys.shape[2] % PIECE == 0:
        return split(rows, keys, values, mask, asked.scale)
    with _kernels(rows.device):
        return F.scaled_dot_product_attention(rows, keys, values, attn_mask=mask, scale=asked.scale)


def mask_type(dtype: torch.dtype, asked: Asked) -> torch.dtype:
    """Of the mask that `attention` is given: scores that are spelled out are wide ones."""
    touched = asked.softcap is not None or asked.sinks is not None
    return torch.promote_types(dtype, torch.float32) if touched else dtype


def _kernels(device: torch.device) -> AbstractContextManager[None]:
    """On CUDA the kernels that take a mask and are known to be recorded well; torch may prefer others there."""
    if device.type != "cuda":
        return nullcontext()
    kernels: AbstractContextManager[None] = sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])
    return kernels


def split(
    rows: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, scale: float
) -> torch.Tensor:
    """Every piece of the text as a sequence of its own, then their mixtures weighed by the sums they came from."""
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
    """How long a piece is, so that there are not too many; lengths that shapes have can be halved as often."""
    piece = PIECE
    while length > PIECES * piece and length % (2 * piece) == 0:
        piece *= 2
    return piece


def _pieces(
    rows: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """What each piece finds, and the logarithm of the sum of its weights, ``[pieces, kv heads, group * n]``."""
    if rows.device.type == "cuda":
        kernel = torch.ops.aten._scaled_dot_product_efficient_attention
        found, weight, *_ = kernel(rows, keys, values, mask, True, scale=scale)
        return found, weight[:, :, : rows.shape[2]]  # it comes in multiples of the kernel's own size
    found, weight = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        rows, keys, values, attn_mask=mask, scale=scale
    )
    return found, weight


@cache
def splits_here(device: torch.device, dtype: torch.dtype, width: int) -> bool:
    """Whether a split text gives what the whole one does, on this device: the kernels are not torch's public ones."""
    if dtype not in CLOSE or width % 8 or device.type not in ("cpu", "cuda"):
        return False
    random = torch.Generator(device).manual_seed(0)
    rows, keys, values = (
        torch.randn(1, 2, n, width, generator=random, device=device, dtype=dtype) for n in (6, LONG, LONG)
    )
    mask = torch.zeros(1, 1, 6, LONG, device=device, dtype=dtype)
    mask[..., 300:900] = -1e4
    mask[..., 0, 7:] = -1e4
    try:
        one, other = (attention(rows, keys, values, mask, Asked(0.2), how) for how in (True, False))
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        return False
    return bool((one - other).float().abs().max() <= CLOSE[dtype] * other.float().std())


def spelled_out(
    rows: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, asked: Asked
) -> torch.Tensor:
    """Attention whose scores are touched: a soft cap bends them, a sink is a key with a given score and no value."""
    scores = (rows @ keys.transpose(-1, -2)).to(mask.dtype) * asked.scale
    if asked.softcap is not None:
        scores = torch.tanh(scores / asked.softcap) * asked.softcap
    scores = scores + mask
    peak = scores.amax(dim=-1, keepdim=True)
    if asked.sinks is None:
        weights = torch.exp(scores - peak)
        total = weights.sum(dim=-1, keepdim=True)
    else:
        kv_heads = keys.shape[1]
        sinks = asked.sinks.to(mask.dtype).view(1, kv_heads, -1, 1)
        sinks = sinks.expand(-1, -1, -1, rows.shape[2] // sinks.shape[2]).reshape(1, kv_heads, -1, 1)
        peak = torch.maximum(peak, sinks)
        weights = torch.exp(scores - peak)
        total = weights.sum(dim=-1, keepdim=True) + torch.exp(sinks - peak)
    return (weights / total).to(values.dtype) @ values
