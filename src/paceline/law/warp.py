"""Temperature and the cuts after it: a row of adjusted logits becomes a law.

The row is on the host by now. Sums run in numpy, whose order of addition depends on the row's length alone;
a sum split over threads could move a token across the top-p boundary when the number of threads changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from paceline.errors import InputError
from paceline.law.distribution import Distribution
from paceline.law.scores import Row
from paceline.law.table import Acts, function

if TYPE_CHECKING:
    from paceline.law.settings import Sampling

Weights = NDArray[np.float64]
Cut: TypeAlias = "Callable[..., NDArray[np.bool_]]"
"""``(candidates, *values)`` -> which of them are kept."""

LARGE = 4096
SKETCH = 2.0**-14


@dataclass(frozen=True, kw_only=True)
class Warps:
    """The settings that act at a temperature above 0, found once for a text.

    The cuts that kernels know are here as numbers, too. Other places cut by these numbers, each in its own way, and
    cannot share one function: `warped` is the law, and the order in which numpy adds up its sums decides texts;
    `device_rows` bounds a race without computing all weights; `draws` cuts only the best candidates of a draft, by
    operations that a device can record; `targets.hf.fused.chains` runs compiled inside a job of several threads.
    """

    temperature: float
    cuts: tuple[tuple[Cut, tuple[Any, ...]], ...] = field(compare=False)
    """Those that leave anything out, in order, with the values of their settings."""
    in_kernels: bool
    """Whether the numbers below are all of them."""
    most: int = 0
    """The number of most likely tokens that survive; 0 for all."""
    mass: float = 1.0
    """The share of a nucleus that survives; 1 for all."""
    least: float = 0.0
    """The least weight that survives, relative to the best."""

    @classmethod
    def of(cls, sampling: Sampling) -> Warps:
        if sampling.greedy:
            return cls(temperature=0.0, cuts=(), in_kernels=True)
        groups = list(sampling.groups(Acts.AS_CUT))
        known = {row.kernel: value for rows, values in groups for row, value in zip(rows, values, strict=True)}
        numbers: dict[str, Any] = {name: value for name, value in known.items() if name is not None}
        cuts = tuple((function(rows[0].host), values) for rows, values in groups if rows[0].host)
        return cls(temperature=sampling.temperature, cuts=cuts, in_kernels=None not in known, **numbers)

    @property
    def in_one_race(self) -> bool:
        """Whether the device finds a token in one wait: a nucleus is settled in several, and what no kernel knows on
        the host."""
        return self.in_kernels and self.mass == 1


class Survivors:
    """The tokens of a row that are left, as cuts see them. What a cut does not look at is not computed."""

    __slots__ = ("_peak", "_row", "_temperature", "_weights", "ids")

    def __init__(
        self, row: Row, ids: NDArray[np.int64], peak: float, temperature: float, weights: Weights | None = None
    ) -> None:
        self.ids = ids
        self._row, self._peak, self._temperature, self._weights = row, peak, temperature, weights

    @property
    def scores(self) -> Row:
        """Before temperature."""
        return self._row if self.ids.size == self._row.size else self._row[self.ids]

    @property
    def weights(self) -> Weights:
        """After temperature, relative to the best token's."""
        if self._weights is None:
            self._weights = tempered(self.scores, self._peak, self._temperature)
        return self._weights

    def kept(self, mask: NDArray[np.bool_]) -> Survivors:
        (places,) = mask.nonzero()
        weights = None if self._weights is None else self._weights[places]
        return Survivors(self._row, self.ids[places], self._peak, self._temperature, weights)


def warped(row: Row, warps: Warps) -> Distribution:
    """The law of sampling at a temperature above 0. The most likely token weighs exactly 1."""
    peak = float(row.max())
    check_peak(peak)
    if warps.mass < 1 and not warps.most and warps.in_kernels and (law := _sketched(row, peak, warps)) is not None:
        return law
    left = Survivors(row, _all_ids(row.size), peak, warps.temperature)
    for cut, values in warps.cuts:
        left = left.kept(cut(left, *values))
    possible = left.weights > 0
    if not possible.all():
        left = left.kept(possible)
    return Distribution(left.ids, left.weights)


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


def most_likely(left: Survivors, count: int) -> NDArray[np.bool_]:
    """The tokens of the ``count`` greatest scores, with all that tie with the last."""
    scores = left.scores
    if count >= scores.size:
        return np.ones(scores.size, np.bool_)
    place = scores.size - count
    kept: NDArray[np.bool_] = scores >= np.partition(scores, place)[place]
    return kept


def likely_enough(left: Survivors, least: float) -> NDArray[np.bool_]:
    return left.weights >= least


def nucleus(left: Survivors, share: float) -> NDArray[np.bool_]:
    """Which tokens have less than this share of the mass strictly before them, in descending order.

    Only a part is sorted: tokens lighter than ``(1 - share) mass / size`` hold less than ``1 - share`` of it
    together, so the heavier ones reach it (the bound is halved, as room for rounding). Values sort
    several times faster than ids, and name the least weight that survives; how many of its ties do is then a
    matter of counting.
    """
    weights = left.weights
    mass = float(weights.sum())
    descending = _descending(weights[weights >= 0.5 * (1 - share) * mass / weights.size])
    count = 1 + int(np.searchsorted(np.cumsum(descending[:-1]), share * mass))
    return _heaviest(weights, descending, count)


def _sketched(row: Row, peak: float, warps: Warps) -> Distribution | None:
    """The law of a large row under top-p, in half the time: exact weights are computed of those tokens only that may be
    in the nucleus. The mass of all is added up in float32, and is right to within `SKETCH`: an exponent of size e is
    wrong by less than ``e 2^-22``, and weights beyond e = 40 are nothing beside the best one. None where so much would
    change which tokens survive, where many may, and for other rows than large ones in float32."""
    if row.dtype != np.float32 or row.size < LARGE:
        return None
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        light = (row - np.float32(peak)) / np.float32(warps.temperature)
    mass = float(np.exp(light, out=light).sum())
    likely = light >= 0.25 * (1 - warps.mass) * mass / row.size
    if not 0 < np.count_nonzero(likely) <= row.size // 8:
        return None
    ids = np.flatnonzero(likely)
    weights = tempered(row[ids], peak, warps.temperature)
    descending = _descending(weights)
    edges = warps.mass * mass * np.array([1 - SKETCH, 1 + SKETCH])
    fewest, most = np.searchsorted(np.cumsum(descending[:-1]), edges)
    if fewest != most:
        return None
    kept = _heaviest(weights, descending, 1 + int(most)) & (weights >= warps.least)
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
