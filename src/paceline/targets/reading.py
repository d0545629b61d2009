"""The best tokens of rows of logits, and the rows' normalisers.

Rows of a small vocabulary in the host's memory are read by numpy: there the number of calls decides the time, and one
of torch takes as long as several of numpy. Rows of a large one are read at memory bandwidth.

A forward over a draft gives dozens of rows over perhaps 150,000 tokens. Searching each row for its ten best tokens, or
taking 150,000 exponentials of it, costs more than a good drafter. So rows pass, a few at a time, through a buffer that
fits a core's cache, and only the maximum of every block of `BLOCK` tokens is stored. The k best tokens are in the k
blocks of greatest maxima, so only those are searched, and the result is exact.

The normaliser is *estimated* in the same pass (`RowBlocks.best`): drafters need it, the law of the text does not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.law import log_normalizer
from paceline.tree import Ints

if TYPE_CHECKING:
    import torch

Floats = NDArray[np.float32]

BLOCK = 128
SMALL = 1 << 14
"""Vocabularies up to this size are read exactly, without blocks."""
CHUNK = 1 << 18
"""Float32 numbers at a time: the buffers stay in a core's second-level cache."""

_SLOPE = 2.0**23 / math.log(2)
_BIAS = 127 * 2.0**23
_MEAN = 1.0406844905028039
"""The mean of ``(1 + f) / 2**f`` for f from 0 to 1: the mean factor of the estimated exponentials."""


class Top(NamedTuple):
    """The ``k`` best tokens of each row before any warp; ``logits - log_z`` are their log-probabilities. With a large
    vocabulary ``log_z`` is estimated: its error is at most 4% of the weight of all but the best tokens."""

    ids: Ints
    logits: Floats
    log_z: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class RowBlocks:
    """Rows of a large vocabulary in the host's memory, by blocks."""

    logits: torch.Tensor
    maxima: torch.Tensor
    """``[rows, blocks]``, in float32."""
    sums: torch.Tensor | None
    """``[rows]``: the sum of the estimated exponentials of logits minus the row's maximum."""

    @classmethod
    def of(cls, logits: torch.Tensor, *, summed: bool) -> RowBlocks:
        """Read the rows once; ``summed`` for `best`, which needs the normaliser."""
        import torch

        rows, size = logits.shape
        blocks = -(-size // BLOCK)
        at_once = min(rows, max(1, CHUNK // (blocks * BLOCK)))
        wide = torch.empty(at_once, blocks * BLOCK)
        maxima = torch.empty(rows, blocks)
        sums = torch.empty(rows) if summed else None
        bits = torch.empty_like(wide, dtype=torch.int32) if summed else None
        for start in range(0, rows, at_once):
            piece = logits[start : start + at_once]
            room = here = wide[: len(piece)]
            if piece.dtype == torch.float32 and size % BLOCK == 0:
                here = piece.contiguous()
            else:
                here[:, :size].copy_(piece)
                here[:, size:] = -math.inf
            peaks = maxima[start : start + at_once]
            torch.amax(here.view(len(piece), blocks, BLOCK), dim=-1, out=peaks)
            if sums is not None and bits is not None:
                shift = _BIAS - _SLOPE * peaks.amax(dim=-1, keepdim=True)
                _exponentials(here, shift, room, bits[: len(piece)])
                torch.sum(bits[: len(piece)].view(torch.float32), dim=-1, out=sums[start : start + at_once])
        return cls(logits, maxima, sums)

    def peaks(self) -> tuple[Ints, Floats]:
        """The best token of every row (of equals the lowest id) and its logit."""
        block = self.maxima.argmax(dim=-1, keepdim=True)
        ids, values = self._within(block)
        best = values.max(dim=-1, keepdim=True)
        return ids.gather(1, best.indices)[:, 0].numpy(), best.values[:, 0].numpy()

    def best(self, k: int) -> Top:
        """The ``k`` best tokens. Their logits are exact. ``log_z`` is estimated:

        The bits of a float, read as an integer, are its binary logarithm except for the curve of the mantissa. So the
        bits ``(x / log 2 + 127) 2**23``, read as a float, are ``exp x`` times ``(1 + f) / 2**f`` for some f between 0
        and 1. That factor, divided by its mean, is within 4% of 1. The exponentials of the best tokens are then added
        exactly, so the error of ``log_z`` is at most 4% of the weight of the other tokens.
        """
        import torch

        assert self.sums is not None, "made without sums"
        ids, values = self._within(self.maxima.topk(min(k, self.maxima.shape[1]), dim=-1).indices)
        found = values.topk(k, dim=-1)
        peak = found.values[:, :1]
        shift = _BIAS - _SLOPE * peak
        scaled, bits = torch.empty_like(found.values), torch.empty_like(found.values, dtype=torch.int32)
        _exponentials(found.values, shift, scaled, bits)
        rest = (self.sums - bits.view(torch.float32).sum(dim=-1)).clamp_min_(0.0) / _MEAN
        log_z = ((found.values - peak).exp_().sum(dim=-1) + rest).log_() + peak[:, 0]
        return Top(ids.gather(1, found.indices).numpy(), found.values.numpy(), log_z.double().numpy())

    def _within(self, blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The ids in these blocks of each row, and their logits."""
        ids = (blocks.unsqueeze(-1) * BLOCK + self._steps).flatten(1)
        size = self.logits.shape[1]
        if size % BLOCK == 0:
            return ids, self.logits.gather(1, ids).float()
        values = self.logits.gather(1, ids.clamp_max(size - 1)).float()
        return ids, values.masked_fill_(ids >= size, -math.inf)

    @cached_property
    def _steps(self) -> torch.Tensor:
        import torch

        return torch.arange(BLOCK)


def _exponentials(logits: torch.Tensor, shift: torch.Tensor, scaled: torch.Tensor, bits: torch.Tensor) -> None:
    """Fill ``bits`` with the bits of the estimated exponentials of logits minus a maximum, which ``shift`` holds."""
    import torch

    torch.add(shift, logits, alpha=_SLOPE, out=scaled)
    scaled.clamp_min_(0.0)
    bits.copy_(scaled)


def by_blocks(logits: torch.Tensor) -> bool:
    """Whether these rows are read by blocks."""
    return logits.device.type == "cpu" and logits.shape[1] > SMALL and len(logits) > 0


def read_peaks(logits: torch.Tensor) -> tuple[Ints, Floats]:
    """The same as `RowBlocks.peaks`, on any device and in one transfer."""
    import torch

    if logits.device.type == "cpu":
        rows = logits.float().numpy()
        ids = rows.argmax(axis=1)  # the first of equals; of rows with a NaN the first of those
        return ids, rows[np.arange(len(rows)), ids]
    best = logits.max(dim=-1)
    found = torch.stack([best.indices.int(), best.values.float().view(torch.int32)]).cpu().numpy()
    return found[0].astype(np.int64), found[1].view(np.float32)


def read_plainly(logits: torch.Tensor, k: int) -> Top:
    """The same as `RowBlocks.best`, with the exact normaliser, on any device and in one transfer."""
    import torch

    wide = logits.float()
    if logits.device.type == "cpu" and k:
        return _read_on_host(wide.numpy(), k)
    best = wide.topk(k, dim=-1)
    numbers = torch.cat([best.values, log_normalizer(wide).unsqueeze(-1)], dim=-1).view(torch.int32)
    found = torch.cat([best.indices.int(), numbers], dim=-1).cpu().numpy()
    numbers_found = np.ascontiguousarray(found[:, k:]).view(np.float32)
    return Top(found[:, :k].astype(np.int64), numbers_found[:, :k], numbers_found[:, k].astype(np.float64))


def _read_on_host(rows: Floats, k: int) -> Top:
    """`read_plainly` in numpy. The exponentials of a row add up in float64."""
    here, first = np.arange(len(rows))[:, None], rows.shape[1] - k
    ids = rows.argpartition(first, axis=1)[:, first:]
    ids.sort(axis=1)  # so that of equals the lowest id comes first
    best = rows[here, ids]
    order = (-best).argsort(axis=1, kind="stable")
    ids, best = ids[here, order], best[here, order]
    peaks = np.maximum(best[:, :1], np.finfo(np.float32).min)  # of a row in which no token is possible
    with np.errstate(invalid="ignore", divide="ignore"):
        light = rows - peaks
        masses = np.exp(light, out=light).sum(axis=1, dtype=np.float64)
        return Top(ids, best, np.log(masses) + peaks[:, 0])
