"""What a handful of measurements says: a value and its interval, and how much of a text repeats itself.

Measurements come in *clusters*: a prompt with all its turns and repeats. A prompt that was written five times says
little more of other prompts than one that was written once, so intervals are made by drawing whole prompts again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import stats

RESAMPLES = 4000
CONFIDENCE = 0.95
NGRAM = 8

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A value and the bounds of its 95% interval: how far it would move had other measurements of the same kind been
    made. One cluster says nothing of that: both bounds are then nan, and no comparison with them holds."""

    value: float
    low: float = math.nan
    high: float = math.nan

    @property
    def bounded(self) -> bool:
        """Whether there is an interval."""
        return not math.isnan(self.low)

    def excludes(self, value: float) -> bool:
        """Whether a value lies outside the interval; of no interval, never."""
        return self.low > value or self.high < value

    @property
    def width(self) -> float | None:
        """Half of the interval, as a share of the value."""
        return (self.high - self.low) / 2 / abs(self.value) if self.bounded and self.value else None


def median_of(values: Sequence[float], clusters: Sequence[Hashable] | None = None) -> Estimate:
    """The median. ``clusters`` names the cluster of each value; without, every value is one of its own."""
    if not len(values):
        raise ValueError("there is no median of nothing; measure at least once")
    found = np.asarray(values, np.float64)
    numbers, count = _numbered(clusters, len(found))
    if count == 1:
        return Estimate(float(np.median(found)))
    order = np.argsort(found)
    often = np.cumsum(_drawn(count)[:, numbers[order]], axis=1)
    totals = often[:, -1:]
    lower = (often * 2 >= totals).argmax(axis=1)
    upper = (often * 2 > totals).argmax(axis=1)
    return _interval(float(np.median(found)), (found[order][lower] + found[order][upper]) / 2, count)


def mean_of(values: Sequence[float], clusters: Sequence[Hashable] | None = None) -> Estimate:
    """The mean, where each value counts once."""
    sums = np.column_stack([np.asarray(values, np.float64), np.ones(len(values))])
    return of_sums(sums, lambda total: total[..., 0] / total[..., 1], clusters)


def ratio_of_sums(rows: Sequence[tuple[float, float, float, float]], clusters: Sequence[Hashable]) -> Estimate:
    """All tokens over all seconds of one side, over the same of another: rows are (tokens, seconds, the other's tokens,
    the other's seconds). Long texts weigh more than short ones."""

    def ratio(total: Floats) -> Floats:
        return (total[..., 0] / total[..., 1]) / (total[..., 2] / total[..., 3])

    return of_sums(np.asarray(rows, np.float64), ratio, clusters)


def of_sums(
    rows: Floats, statistic: Callable[[Floats], Floats], clusters: Sequence[Hashable] | None = None
) -> Estimate:
    """Whatever is a function of column sums."""
    if not len(rows):
        raise ValueError("there is no mean of nothing; measure at least once")
    numbers, count = _numbered(clusters, len(rows))
    sums = np.zeros((count, rows.shape[1]))
    np.add.at(sums, numbers, rows)
    value = float(statistic(sums.sum(axis=0)))
    return Estimate(value) if count == 1 else _interval(value, statistic(_drawn(count) @ sums), count)


def _numbered(clusters: Sequence[Hashable] | None, count: int) -> tuple[NDArray[np.intp], int]:
    """The cluster of each value as a number from 0, and how many there are."""
    if clusters is None:
        return np.arange(count), count
    assert len(clusters) == count, "every value has a cluster"
    numbers: dict[Hashable, int] = {}
    found = [numbers.setdefault(cluster, len(numbers)) for cluster in clusters]
    return np.asarray(found, np.intp), len(numbers)


@lru_cache(maxsize=16)
def _drawn(count: int) -> Floats:
    """How often each of so many clusters is drawn in each resample; the same for everybody, so that the same data give
    the same interval."""
    return np.random.default_rng(count).multinomial(count, np.full(count, 1 / count), RESAMPLES).astype(np.float64)


def _interval(value: float, resampled: Floats, count: int) -> Estimate:
    """The percentile interval, with percentiles that a t distribution would have: few clusters underrate their own
    spread."""
    outside = (1 - CONFIDENCE) / 2
    wide = float(stats.norm.cdf(math.sqrt(count / (count - 1)) * stats.t.ppf(outside, count - 1)))
    low, high = np.quantile(resampled, [wide, 1 - wide])
    return Estimate(value, float(low), float(high))


def repeated_share(texts: Sequence[Sequence[int]]) -> float:
    """The share of 8-grams that occurred before in the same text. Where it is high, methods that look things up in the
    text are flattered."""
    grams = [list(zip(*(text[i:] for i in range(NGRAM)), strict=False)) for text in texts]
    total = sum(map(len, grams))
    return 1 - sum(len(set(found)) for found in grams) / total if total else 0.0
