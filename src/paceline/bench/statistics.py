"""What a handful of measurements says: a value and its interval, and how much of a text repeats itself.

Measurements come in *clusters*: a prompt with all its turns and repeats. A prompt that was written five times says
little more of other prompts than one that was written once, so whole prompts are drawn again to find how far a value
would move. Few of them underrate that, and times have a long tail to one side; therefore intervals stand on the
logarithm, as wide as a t distribution of so many clusters wants. The lab log has their coverage, and that of others
which were tried. Everything here is a time, a speed or a ratio of them, and above zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import stats

RESAMPLES = 2000
CONFIDENCE = 0.95
NGRAM = 8
ROUNDING = 1e-9
"""Ratios this near to 1 are 1."""

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


def median_of(values: Sequence[float], clusters: Sequence[Hashable] | None = None) -> Estimate:
    """The median. ``clusters`` names the cluster of each value; without, every value is one of its own."""
    if not len(values):
        raise ValueError("there is no median of nothing; measure at least once")
    found = np.asarray(values, np.float64)
    numbers, count = _numbered(clusters, len(found))
    if count == 1:
        return Estimate(float(np.median(found)))
    rank = np.argsort(found)
    often = np.cumsum(_drawn(count)[:, numbers[rank]], axis=1)
    half = often[:, -1:] / 2
    middle = found[rank][(often >= half).argmax(axis=1)] + found[rank][(often > half).argmax(axis=1)]
    return _estimate(float(np.median(found)), middle / 2, count)


def mean_of(values: Sequence[float], clusters: Sequence[Hashable] | None = None) -> Estimate:
    """The mean, where each value counts once."""
    sums = np.column_stack([np.asarray(values, np.float64), np.ones(len(values))])
    return _of_sums(sums, lambda total: total[..., 0] / total[..., 1], clusters)


def ratio_of_sums(rows: Sequence[tuple[float, float, float, float]], clusters: Sequence[Hashable]) -> Estimate:
    """All tokens over all seconds of one side, over the same of another: rows are (tokens, seconds, the other's tokens,
    the other's seconds). Long texts weigh more than short ones."""

    def ratio(total: Floats) -> Floats:
        return (total[..., 0] / total[..., 1]) / (total[..., 2] / total[..., 3])

    return _of_sums(np.asarray(rows, np.float64).reshape(-1, 4), ratio, clusters)


@dataclass(frozen=True)
class Difference:
    """How many times as much of something one side has as another, pair by pair."""

    ratio: Estimate
    """The geometric mean, so that turning the sides round turns the ratio round."""
    p: float
    """How often chance alone would bring a ratio as far from 1; nan of one cluster."""
    clusters: int


def difference(ratios: Sequence[float], clusters: Sequence[Hashable] | None = None) -> Difference:
    """From the ratios of pairs. Clusters weigh the same, whatever they hold; their mean logarithms are held against a
    t distribution."""
    numbers, count = _numbered(clusters, len(ratios))
    logs = np.bincount(numbers, np.log(np.asarray(ratios, np.float64))) / np.bincount(numbers)
    mean = float(logs.mean())
    if count == 1:
        return Difference(Estimate(math.exp(mean)), math.nan, 1)
    error = float(logs.std(ddof=1)) / math.sqrt(count)
    reach = _t(count) * error
    p = 1.0 if abs(mean) < ROUNDING else 2 * float(stats.t.sf(abs(mean) / max(error, ROUNDING), count - 1))
    return Difference(Estimate(math.exp(mean), math.exp(mean - reach), math.exp(mean + reach)), p, count)


def holm(p_values: Sequence[float], level: float) -> list[bool]:
    """Which of many looks show a difference, so that all looks together are wrong no more often than one may be: the
    smallest p counts once for every look, the next for one less (Holm). A look without a p is none."""
    looks = sorted((p, place) for place, p in enumerate(p_values) if not math.isnan(p))
    found = [False] * len(p_values)
    for before, (p, place) in enumerate(looks):
        if p * (len(looks) - before) > level:
            break
        found[place] = True
    return found


def repeated_share(texts: Sequence[Sequence[int]]) -> float:
    """The share of 8-grams that occurred before in the same text. Where it is high, methods that look things up in the
    text are flattered."""
    grams = [list(zip(*(text[i:] for i in range(NGRAM)), strict=False)) for text in texts]
    total = sum(map(len, grams))
    return 1 - sum(len(set(found)) for found in grams) / total if total else 0.0


def _of_sums(rows: Floats, statistic: Callable[[Floats], Floats], clusters: Sequence[Hashable] | None) -> Estimate:
    """Whatever is a function of column sums."""
    if not len(rows):
        raise ValueError("there is no mean of nothing; measure at least once")
    numbers, count = _numbered(clusters, len(rows))
    sums = np.zeros((count, rows.shape[1]))
    np.add.at(sums, numbers, rows)
    return _estimate(float(statistic(sums.sum(axis=0))), statistic(_drawn(count) @ sums), count)


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


def _estimate(value: float, resampled: Floats, count: int) -> Estimate:
    """With the spread of resampled logarithms, which is that of ``count - 1`` and not of ``count`` free values."""
    if count == 1 or value <= 0 or (resampled <= 0).any():
        return Estimate(value)
    reach = _t(count) * float(np.log(resampled).std()) * math.sqrt(count / (count - 1))
    return Estimate(value, value * math.exp(-reach), value * math.exp(reach))


def _t(count: int) -> float:
    return float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1))
