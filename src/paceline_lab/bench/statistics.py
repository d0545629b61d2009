"""Estimates with intervals, comparisons of many ratios, and the share of repeated 8-grams.

Measurements come in *clusters*: a prompt with all its turns and repeats. Texts of one prompt are similar, so the
bootstrap resamples whole prompts. Few prompts underestimate the spread, and times have a long tail. So an interval is
computed on the logarithm: the bootstrap's standard error times the t quantile for that many clusters. `docs/lab-log.md`
has its coverage beside that of other intervals. All values are times, speeds or ratios of them, and above zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from paceline.errors import InputError

RESAMPLES = 2000
CONFIDENCE = 0.95
NGRAM = 8
LOOPING = 0.2
"""Share of repeated 8-grams above which a text counts as a loop."""
STABLE = 1.3
"""Ratio of slowest to fastest time for the same text up to which a measurement counts as stable."""
ROUNDING = 1e-9
"""Ratios this near to 1 are 1."""

Floats = NDArray[np.float64]
Values = Sequence[float] | Floats
Clusters = Sequence[Hashable] | NDArray[Any] | None
"""The cluster of each value; None if every value is a separate cluster."""


@dataclass(frozen=True)
class Estimate:
    """A value and the bounds of its 95% interval. One cluster has no interval: both bounds are then nan, and no
    comparison with them holds."""

    value: float
    low: float = math.nan
    high: float = math.nan

    @property
    def bounded(self) -> bool:
        """Whether there is an interval."""
        return not math.isnan(self.low)

    def excludes(self, value: float) -> bool:
        """Whether a value lies outside the interval; never, where there is none."""
        return self.low > value or self.high < value


class SpeedVerdict(StrEnum):
    """The verdict of an interval on a feature that can be turned on."""

    ON = "on"
    OFF = "off"
    SAME = "makes no difference"
    UNKNOWN = "no interval"

    @classmethod
    def of(cls, gain: Estimate) -> SpeedVerdict:
        """``gain`` is the ratio of speeds with it and without it."""
        if not gain.excludes(1):
            return cls.SAME if gain.bounded else cls.UNKNOWN
        return cls.ON if gain.value > 1 else cls.OFF


def median_of(values: Values, clusters: Clusters = None) -> Estimate:
    """The median."""
    if not len(values):
        raise InputError("there is no median of nothing; measure at least once")
    found = np.asarray(values, np.float64)
    numbers, count = _numbered(clusters, len(found))
    if count == 1:
        return Estimate(float(np.median(found)))
    rank = np.argsort(found)
    often = np.cumsum(_drawn(count)[:, numbers[rank]], axis=1)
    half = often[:, -1:] / 2
    middle = found[rank][(often >= half).argmax(axis=1)] + found[rank][(often > half).argmax(axis=1)]
    return _estimate(float(np.median(found)), middle / 2, count)


def mean_of(values: Values, clusters: Clusters = None) -> Estimate:
    """The mean, in which each value counts once."""
    sums = np.column_stack([np.asarray(values, np.float64), np.ones(len(values))])
    return _of_sums(sums, lambda total: total[..., 0] / total[..., 1], clusters)


def mean_of_means(values: Values, groups: Sequence[Hashable], clusters: Clusters, weights: Values) -> Estimate:
    """The mean of the groups' means: a group weighs what it is given, however many values it has.

    ``groups`` names the group of each value; ``weights`` are those of the groups in the order of appearance. The spread
    is that of clusters around the means of their groups, with a t quantile of as many degrees of freedom as there are
    more clusters than groups.
    """
    found = np.asarray(values, np.float64)
    of, groups_there = _numbered(groups, len(found))
    cluster, count = _numbered(clusters, len(found))
    sizes, share = np.bincount(of), np.asarray(weights, np.float64) / np.sum(weights)
    means = np.bincount(of, found) / sizes
    pull = np.bincount(cluster, share[of] * (found - means[of]) / sizes[of])
    return _pulled(float(share @ means), pull, count - groups_there)


def mean_of_ratios(rows: Floats, groups: Sequence[Hashable], clusters: Clusters, weights: Values) -> Estimate:
    """The mean of the groups' `ratio_of_sums`, weighed as in `mean_of_means` and with the spread of clusters in their
    groups: how much each of them moves the ratio of its group, to the first order."""
    of, groups_there = _numbered(groups, len(rows))
    cluster, count = _numbered(clusters, len(rows))
    sums, share = np.zeros((groups_there, rows.shape[1])), np.asarray(weights, np.float64) / np.sum(weights)
    np.add.at(sums, of, rows)
    ratios = share * _speeds(sums)
    pull = np.bincount(cluster, ratios[of] * (rows / sums[of] @ np.array([1.0, -1.0, -1.0, 1.0])))
    return _pulled(float(ratios.sum()), pull, count - groups_there)


def ratio_of_sums(rows: Sequence[tuple[float, float, float, float]] | Floats, clusters: Clusters) -> Estimate:
    """All tokens over all seconds of one side, over the same of another: rows are (tokens, seconds, the other's tokens,
    the other's seconds). Long texts weigh more than short ones."""
    return _of_sums(np.asarray(rows, np.float64).reshape(-1, 4), _speeds, clusters)


@dataclass(frozen=True)
class Difference:
    """How many times as much of something one side has as another, pair by pair."""

    ratio: Estimate
    """The geometric mean, so that swapped sides give the inverse."""
    p: float
    """How often chance alone would bring a ratio as far from 1; nan of one cluster."""
    clusters: int


def difference(ratios: Values, clusters: Clusters = None) -> Difference:
    """A t test of the clusters' mean logarithms. Each cluster has the same weight, whatever its size."""
    numbers, count = _numbered(clusters, len(ratios))
    logs = np.bincount(numbers, np.log(np.asarray(ratios, np.float64))) / np.bincount(numbers)
    mean = float(logs.mean())
    if count == 1:
        return Difference(Estimate(math.exp(mean)), math.nan, 1)
    error = float(stats.sem(logs))
    reach = _t(count) * error
    p = 1.0 if abs(mean) < ROUNDING else 2 * float(stats.t.sf(abs(mean) / max(error, ROUNDING), count - 1))
    return Difference(Estimate(math.exp(mean), math.exp(mean - reach), math.exp(mean + reach)), p, count)


def holm(p_values: Sequence[float], level: float) -> list[bool]:
    """Which of many tests are significant by Holm's rule, which keeps the chance of any false one below ``level``: the
    smallest p is multiplied by the number of tests, the next by one less, and so on. A nan is never significant."""
    ranked = sorted((p, place) for place, p in enumerate(p_values) if not math.isnan(p))
    found = [False] * len(p_values)
    for before, (p, place) in enumerate(ranked):
        if p * (len(ranked) - before) > level:
            break
        found[place] = True
    return found


def ngrams(tokens: Sequence[int]) -> tuple[int, int]:
    """How many 8-grams a text has, and how many different ones."""
    grams = list(zip(*(tokens[start:] for start in range(NGRAM)), strict=False))
    return len(grams), len(set(grams))


def repeated_share(texts: Sequence[Sequence[int]]) -> float:
    """The share of 8-grams that occurred before in the same text. Where it is high, methods that look things up in the
    text are flattered."""
    counts = [ngrams(text) for text in texts]
    total = sum(count for count, _ in counts)
    return 1 - sum(different for _, different in counts) / total if total else 0.0


def _speeds(sums: Floats) -> Floats:
    return (sums[..., 0] / sums[..., 1]) / (sums[..., 2] / sums[..., 3])


def _of_sums(rows: Floats, statistic: Callable[[Floats], Floats], clusters: Clusters) -> Estimate:
    """Any function of column sums."""
    if not len(rows):
        raise InputError("there is no mean of nothing; measure at least once")
    numbers, count = _numbered(clusters, len(rows))
    sums = np.zeros((count, rows.shape[1]))
    np.add.at(sums, numbers, rows)
    return _estimate(float(statistic(sums.sum(axis=0))), statistic(_drawn(count) @ sums), count)


def _numbered(clusters: Clusters, count: int) -> tuple[NDArray[np.intp], int]:
    """The cluster of each value as a number from 0 in the order of appearance, and how many clusters there are."""
    if clusters is None:
        return np.arange(count), count
    assert len(clusters) == count, "every value has a cluster"
    numbers = {cluster: number for number, cluster in enumerate(dict.fromkeys(clusters))}
    return np.array([numbers[cluster] for cluster in clusters], np.intp), len(numbers)


@lru_cache(maxsize=16)
def _drawn(count: int) -> Floats:
    """How often each of ``count`` clusters is drawn in each resample. The seed is the count, so the same data always
    give the same interval."""
    return np.random.default_rng(count).multinomial(count, np.full(count, 1 / count), RESAMPLES).astype(np.float64)


def _estimate(value: float, resampled: Floats, count: int) -> Estimate:
    """From the spread of the resampled logarithms, corrected for ``count - 1`` degrees of freedom."""
    if count == 1 or value <= 0 or (resampled <= 0).any():
        return Estimate(value)
    reach = _t(count) * float(np.log(resampled).std()) * math.sqrt(count / (count - 1))
    return Estimate(value, value * math.exp(-reach), value * math.exp(reach))


def _pulled(value: float, pull: NDArray[Any], free: int) -> Estimate:
    """From how far each cluster pulls a value, with ``free`` degrees of freedom."""
    if free < 1 or value <= 0:
        return Estimate(value)
    reach = _t(free + 1) * math.sqrt(len(pull) / free * float(pull @ pull)) / value
    return Estimate(value, value * math.exp(-reach), value * math.exp(reach))


def _t(count: int) -> float:
    return float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1))
