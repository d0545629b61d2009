"""The best tokens of rows of logits, and the rows' normalisers.

Rows of a small vocabulary in the host's memory are read by numpy: there the number of calls decides the time, and one
of torch takes as long as several of numpy. Rows of a large one are read at memory bandwidth.

A forward over a draft gives dozens of rows over perhaps 150,000 tokens. Searching each row for its ten best tokens, or
taking 150,000 exponentials of it, costs more than a good drafter. So only the maximum of every block of 128 tokens is
stored, and a block is searched only if its maximum is above the least of the k best tokens so far: the result is exact.

The normaliser is *estimated* (`read_by_blocks`): drafters need it, the law of the text does not.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.compiled import exact
from paceline.law import log_normalizer
from paceline.tree import Ints

if TYPE_CHECKING:
    import torch

Floats = NDArray[np.float32]

SMALL = 1 << 12
"""Vocabularies up to this size are read exactly, without blocks."""

_MEAN = 1.0406844905028039
"""The mean of ``(1 + f) / 2**f`` for f from 0 to 1: the mean factor of the estimated exponentials."""


class Top(NamedTuple):
    """The ``k`` best tokens of each row before any warp; ``logits - log_z`` are their log-probabilities. With a large
    vocabulary ``log_z`` is estimated: its error is at most 4% of the weight of all but the best tokens."""

    ids: Ints
    logits: Floats
    log_z: NDArray[np.float64]


@cache
def _compiled() -> ModuleType | None:
    def best_of(module: ModuleType) -> bool:
        rows = torch.tensor([[0.0, 2.0, -torch.inf, 1.0]])
        found = _read_by_blocks(module, rows, 3)
        return bool(found.ids.tolist() == [[1, 3, 0]] and found.logits.tolist() == [[2.0, 1.0, 0.0]])

    import torch

    return exact("paceline.targets.foremost", best_of)


def read_by_blocks(logits: torch.Tensor, k: int) -> Top:
    """The ``k`` best tokens of every row. Their logits are exact. ``log_z`` is estimated:

    The bits of a float, read as an integer, are its binary logarithm except for the curve of the mantissa. So the bits
    ``(x / log 2 + 127) 2**23``, read as a float, are ``exp x`` times ``(1 + f) / 2**f`` for some f between 0 and 1.
    That factor, divided by its mean, is within 4% of 1. The exponentials of the best tokens are then added exactly, so
    the error of ``log_z`` is at most 4% of the weight of the other tokens.
    """
    module = _compiled()
    return read_plainly(logits, k) if module is None else _read_by_blocks(module, logits, k)


def _read_by_blocks(module: ModuleType, logits: torch.Tensor, k: int) -> Top:
    shape = len(logits), k
    ids, found, masses = np.empty(shape, np.int64), np.empty(shape, np.float32), np.empty(len(logits))
    module.best(logits.float().contiguous().numpy(), ids, found, masses)
    peaks = found[:, 0].astype(np.float64)
    with np.errstate(invalid="ignore"):
        certain = np.exp(found - found[:, :1]).sum(axis=1, dtype=np.float64)
        return Top(ids, found, np.log(certain + np.fmax(masses, 0.0) / _MEAN) + peaks)


def by_blocks(logits: torch.Tensor) -> bool:
    """Whether these rows are read by blocks."""
    return logits.device.type == "cpu" and logits.shape[1] > SMALL and len(logits) > 0


def read_peaks(logits: torch.Tensor) -> tuple[Ints, Floats]:
    """The best token of every row (of equals the lowest id) and its logit, on any device and in one transfer."""
    import torch

    if logits.device.type == "cpu":
        rows = logits.float().numpy()
        ids = rows.argmax(axis=1)  # the first of equals; of rows with a NaN the first of those
        return ids, rows[np.arange(len(rows)), ids]
    best = logits.max(dim=-1)
    found = torch.stack([best.indices.int(), best.values.float().view(torch.int32)]).cpu().numpy()
    return found[0].astype(np.int64), found[1].view(np.float32)


def read_plainly(logits: torch.Tensor, k: int) -> Top:
    """The same as `read_by_blocks`, with the exact normaliser, on any device and in one transfer."""
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
