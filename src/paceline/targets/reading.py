"""The best tokens of rows of logits, and the rows' normalisers.

Rows in the host's memory are read by numpy; tensors on another device there, and their results copied together. Rows
of a small vocabulary are read whole, for the number of calls decides the time. Rows of a large one are read at memory
bandwidth.

A forward over a draft gives dozens of rows over perhaps 150,000 tokens. Searching each row for its ten best tokens, or
taking 150,000 exponentials of it, costs more than a good drafter. So only the maximum of every block of 128 tokens is
stored, and a block is searched only if its maximum is above the least of the k best tokens so far: the result is exact.

The normaliser is *estimated* (`read_by_blocks`): drafters need it, the law of the text does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.compiled import exact
from paceline.law.scores import Array, Row, far, fetched, full_precision, log_normalizer
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
        found = _read_by_blocks(module, np.array([[0.0, 2.0, -np.inf, 1.0]], np.float32), 3)
        return bool(found.ids.tolist() == [[1, 3, 0]] and found.logits.tolist() == [[2.0, 1.0, 0.0]])

    return exact("paceline.targets.foremost", best_of)


def read_by_blocks(logits: Array, k: int) -> Top:
    """The ``k`` best tokens of every row. Their logits are exact. ``log_z`` is estimated:

    The bits of a float, read as an integer, are its binary logarithm except for the curve of the mantissa. So the bits
    ``(x / log 2 + 127) 2**23``, read as a float, are ``exp x`` times ``(1 + f) / 2**f`` for some f between 0 and 1.
    That factor, divided by its mean, is within 4% of 1. The exponentials of the best tokens are then added exactly, so
    the error of ``log_z`` is at most 4% of the weight of the other tokens.
    """
    module = _compiled()
    return read_plainly(logits, k) if module is None else _read_by_blocks(module, _single(logits), k)


def _read_by_blocks(module: ModuleType, rows: Floats, k: int) -> Top:
    shape = len(rows), k
    ids, found, masses = np.empty(shape, np.int64), np.empty(shape, np.float32), np.empty(len(rows))
    module.best(np.ascontiguousarray(rows), ids, found, masses)
    peaks = found[:, 0].astype(np.float64)
    with np.errstate(invalid="ignore"):
        certain = np.exp(found - found[:, :1]).sum(axis=1, dtype=np.float64)
        return Top(ids, found, np.log(certain + np.fmax(masses, 0.0) / _MEAN) + peaks)


def by_blocks(logits: Array) -> bool:
    """Whether these rows are read by blocks."""
    return not far(logits) and logits.shape[1] > SMALL and len(logits) > 0


def _single(logits: Array) -> Floats:
    """Rows in the host's memory, in the precision that ranks tokens."""
    return fetched(full_precision(logits)).astype(np.float32, copy=False)


def read_peaks(several: Sequence[Array]) -> list[tuple[Ints, Floats]]:
    """The best token of every row (of equals the lowest id) and its logit, on any device; all that is on another device
    than the host in one transfer."""
    if not any(map(far, several)):
        return [_peaks_on_host(_single(logits)) for logits in several]
    import torch

    best = [logits.detach().max(dim=-1) for logits in several]
    parts = [torch.stack([one.indices.int(), one.values.float().view(torch.int32)]) for one in best]
    return [(found[0].astype(np.int64), found[1].view(np.float32)) for found in _fetched(parts)]


def _peaks_on_host(rows: Floats) -> tuple[Ints, Floats]:
    ids = rows.argmax(axis=1)  # the first of equals; of rows with a NaN the first of those
    return ids, rows[np.arange(len(rows)), ids]


def read_plainly(logits: Array, k: int) -> Top:
    """The same as `read_by_blocks`, with the exact normaliser, on any device."""
    return read_tops([(logits, k)])[0]


def read_tops(several: Sequence[tuple[Array, int]]) -> list[Top]:
    """The best tokens of logits, with how many of each row; all that is on another device than the host in one
    transfer."""
    if not any(far(logits) for logits, _ in several):
        return [_read_on_host(_single(logits), k) for logits, k in several]
    import torch

    parts = []
    for logits, k in several:
        wide = logits.detach().float()
        best = wide.topk(k, dim=-1)
        numbers = torch.cat([best.values, log_normalizer(wide).unsqueeze(-1)], dim=-1).view(torch.int32)
        parts.append(torch.cat([best.indices.int(), numbers], dim=-1))
    return [_top(found, k) for found, (_, k) in zip(_fetched(parts), several, strict=True)]


def _top(found: NDArray[np.int32], k: int) -> Top:
    """From ids, logits and a normaliser in every row, as their bits."""
    numbers = np.ascontiguousarray(found[:, k:]).view(np.float32)
    return Top(found[:, :k].astype(np.int64), numbers[:, :k], numbers[:, k].astype(np.float64))


def _fetched(parts: Sequence[torch.Tensor]) -> list[NDArray[np.int32]]:
    """Tensors of two dimensions, copied to the host together."""
    import torch

    flat = parts[0].flatten() if len(parts) == 1 else torch.cat([part.flatten() for part in parts])
    ends = np.cumsum([part.numel() for part in parts])
    pieces = np.split(flat.cpu().numpy(), ends[:-1])
    return [piece.reshape(part.shape) for piece, part in zip(pieces, parts, strict=True)]


def best_tokens(rows: Row, k: int) -> Ints:
    """The ``k`` best tokens of every row, best first; of equals the lower id."""
    size, lines = max(k, 1), np.arange(len(rows))[:, None]
    ids = rows.argpartition(-size, axis=1)[:, -size:]
    least = rows[lines, ids[:, :1]]
    if np.count_nonzero(rows < least) < rows.size - ids.size:  # the partition took any of the equal ones
        for row in np.flatnonzero((rows >= least).sum(axis=1) > size).tolist():
            better, equal = np.flatnonzero(rows[row] > least[row]), np.flatnonzero(rows[row] == least[row])
            ids[row] = np.concatenate([better, equal[: size - len(better)]])
    ids.sort(axis=1)  # so that of equals the lowest id comes first
    order = (-rows[lines, ids]).argsort(axis=1, kind="stable")
    return ids[lines, order[:, :k]]


def _read_on_host(rows: Floats, k: int) -> Top:
    """`read_plainly` in numpy. The exponentials of a row add up in float64."""
    ids = best_tokens(rows, max(k, 1))
    best = np.take_along_axis(rows, ids, axis=1)
    peaks = np.maximum(best[:, :1], np.finfo(np.float32).min)  # of a row in which no token is possible
    with np.errstate(invalid="ignore", divide="ignore"):
        light = rows - peaks
        masses = np.exp(light, out=light).sum(axis=1, dtype=np.float64)
        return Top(ids[:, :k], best[:, :k], np.log(masses) + peaks[:, 0])
