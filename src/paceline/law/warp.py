"""Temperature, top-k, top-p and min-p: a row of adjusted logits becomes a law.

The row is on the host by now. Sums run in numpy, whose order of addition depends on the row's length alone;
a sum split over threads could move a token across the top-p boundary when the number of threads changes.
"""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.errors import InputError
from paceline.law.distribution import Distribution
from paceline.law.settings import Sampling

Row = NDArray[np.floating[Any]]
Weights = NDArray[np.float64]

LARGE = 4096
SKETCH = 2.0**-14


def warped(row: Row, sampling: Sampling) -> Distribution:
    """The law of sampling at a temperature above 0. The most likely token weighs exactly 1."""
    peak = float(row.max())
    check_peak(peak)
    if sampling.top_p < 1 and not sampling.top_k and (law := _sketched(row, peak, sampling)) is not None:
        return law
    ids = _top_k(row, sampling.top_k)
    weights = tempered(row if ids.size == row.size else row[ids], peak, sampling.temperature)
    kept = weights > 0
    if sampling.top_p < 1:
        kept &= _nucleus(weights, sampling.top_p)
    if sampling.min_p > 0:
        kept &= weights >= sampling.min_p
    if kept.all():
        return Distribution(ids, weights)
    survivors = np.flatnonzero(kept)
    return Distribution(ids[survivors], weights[survivors])


def check_peak(peak: float) -> None:
    """Without a finite largest score there is nothing to measure the others against, and no law."""
    if peak == -np.inf:
        raise InputError("no token is possible here; relax banned or the logits processors")
    if not np.isfinite(peak):
        raise InputError(f"the largest score is {peak}; the model and its processors must give finite scores")


def tempered(row: Row, peak: float, temperature: float) -> Weights:
    weights = log_tempered(row, peak, temperature)
    return np.exp(weights, out=weights)


def log_tempered(row: Row, peak: float, temperature: float) -> Weights:
    """The logarithms of the weights."""
    logs = np.subtract(row, peak, dtype=np.float64)
    with np.errstate(over="ignore"):  # a tiny temperature sends all but the best to minus infinity
        logs /= temperature
    return logs


def _top_k(row: Row, k: int) -> NDArray[np.int64]:
    if not 0 < k < row.size:
        return _all_ids(row.size)
    place = row.size - k
    return np.flatnonzero(row >= np.partition(row, place)[place])


def _nucleus(weights: Weights, p: float) -> NDArray[np.bool_]:
    """Which tokens have less than the share ``p`` of the mass strictly before them, in descending order.

    Only a part is sorted: tokens lighter than ``(1 - p) mass / size`` hold less than ``1 - p`` of it
    together, so the heavier ones reach ``p`` (the bound is halved, as room for rounding). Values sort
    several times faster than ids, and name the least weight that survives; how many of its ties do is then a
    matter of counting.
    """
    mass = float(weights.sum())
    descending = _descending(weights[weights >= 0.5 * (1 - p) * mass / weights.size])
    count = 1 + int(np.searchsorted(np.cumsum(descending[:-1]), p * mass))
    return _heaviest(weights, descending, count)


def _sketched(row: Row, peak: float, sampling: Sampling) -> Distribution | None:
    """The law of a large row under top-p, in half the time: exact weights are computed of those tokens only that may be
    in the nucleus. The mass of all is added up in float32, and is right to within `SKETCH`: an exponent of size e is
    wrong by less than ``e 2^-22``, and weights beyond e = 40 are nothing beside the best one. None where so much would
    change which tokens survive, where many may, and for other rows than large ones in float32."""
    if row.dtype != np.float32 or row.size < LARGE:
        return None
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        light = (row - np.float32(peak)) / np.float32(sampling.temperature)
    mass = float(np.exp(light, out=light).sum())
    likely = light >= 0.25 * (1 - sampling.top_p) * mass / row.size
    if not 0 < np.count_nonzero(likely) <= row.size // 8:
        return None
    ids = np.flatnonzero(likely)
    weights = tempered(row[ids], peak, sampling.temperature)
    descending = _descending(weights)
    edges = sampling.top_p * mass * np.array([1 - SKETCH, 1 + SKETCH])
    fewest, most = np.searchsorted(np.cumsum(descending[:-1]), edges)
    if fewest != most:
        return None
    kept = _heaviest(weights, descending, 1 + int(most)) & (weights >= sampling.min_p)
    return Distribution(ids[kept], weights[kept])


def _descending(weights: Weights) -> Weights:
    return np.sort(weights)[::-1]


def _heaviest(weights: Weights, descending: Weights, count: int) -> NDArray[np.bool_]:
    """The ``count`` heaviest tokens; of those that tie for the last places the ones of lowest ids."""
    least = descending[count - 1]
    kept: NDArray[np.bool_] = weights >= least
    surplus = int(np.count_nonzero(kept)) - count
    if surplus:
        kept[np.flatnonzero(weights == least)[-surplus:]] = False
    return kept


@lru_cache(maxsize=8)
def _all_ids(size: int) -> NDArray[np.int64]:
    """Shared by every law over a whole vocabulary, and therefore read-only."""
    ids = np.arange(size, dtype=np.int64)
    ids.flags.writeable = False
    return ids
