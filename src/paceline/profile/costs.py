"""Seconds of a round by the rows it scores: from earlier measurements, and from what is seen while texts are written.

What a forward of n rows takes has steps and knees that no formula foresees, and it moves with the length of the text,
with the company of other texts and with whatever else the machine does. So the curve is a table: of every size what the
last rounds took, made monotone, with straight lines between. Sizes that were not tried yet are assumed to be cheap: a
planner then tries them and learns, while one that assumes them to be dear never finds out.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paceline.profile.timing import Timing

Floats = NDArray[np.float64]

EDGES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 192, 256, 384, 512, 1024, 2048)
"""Row counts from which on a new size begins: close together where sizes are chosen from, and rounds are many."""
KEPT = 9
"""How many of the last rounds of a size are remembered; their median counts, since machines stall."""
TRUSTED = 2
"""So many rounds of a size must have been seen: the first of a shape often pays for preparing it."""
UNTRIED = 0.02
"""What one more row is assumed to take beyond the sizes that were tried, as a share of a plain round."""
SHORT = 1024
"""Texts up to this length count as equally long; beyond it, lengths within a factor of two do."""
PACE = 0.03
"""How fast all sizes follow what one of them shows of the machine's pace."""


@dataclass(eq=False)
class Curve:
    """Rounds of one company and one length of text. Seconds are kept at the pace they were seen at."""

    seen: dict[int, deque[tuple[int, float]]] = field(default_factory=dict)
    """Size -> rows and seconds of its last rounds."""
    _table: Floats | None = None

    @property
    def known(self) -> bool:
        return any(len(rounds) >= TRUSTED for rounds in self.seen.values())

    def add(self, rows: int, seconds: float) -> None:
        self.seen.setdefault(size_of(rows), deque(maxlen=KEPT)).append((rows, seconds))
        self._table = None

    def seconds(self, most: int) -> Floats:
        """Of 0 .. ``most`` rows."""
        if self._table is None or len(self._table) <= most:
            self._table = self._drawn(max(most, 64))
        return self._table[: most + 1]

    def _drawn(self, most: int) -> Floats:
        known = sorted(_middle(rounds) for rounds in self.seen.values() if len(rounds) >= TRUSTED)
        places = np.array([rows for rows, _ in known])
        values = np.maximum.accumulate(np.array([seconds for _, seconds in known]))
        rows = np.arange(most + 1, dtype=np.float64)
        drawn: Floats = np.interp(rows, places, values)
        drawn += np.maximum(0.0, rows - places[-1]) * UNTRIED * values[0]
        return drawn


class Costs:
    """The cost of rounds on one target. `frozen` ones stay what they are: a text that is planned by them can be
    written again."""

    def __init__(self, timings: Iterable[Timing] = ()) -> None:
        self._curves: dict[tuple[int, int], Curve] = {}
        self._pace = 1.0
        self._timings = tuple(timings)
        for timing in self._timings:
            curve = self._curves.setdefault(_key(timing.sequences, timing.length), Curve())
            for _ in range(TRUSTED):
                curve.add(timing.rows, timing.seconds)

    @property
    def known(self) -> bool:
        """Whether anything was measured at all."""
        return any(curve.known for curve in self._curves.values())

    def frozen(self) -> Costs:
        """What was known at first, or, where nothing was, rounds that take one second and grow by the row."""
        return Costs(self._timings or (Timing(rows=1, seconds=1.0), Timing(rows=64, seconds=1.0 + 64 * UNTRIED)))

    def seconds(self, most: int, *, sequences: int = 1, length: int = 0) -> Floats:
        """Seconds of a round of 0 .. ``most`` rows in all, of ``sequences`` texts that are about ``length`` long."""
        curve = self._nearest(_key(sequences, length))
        assert curve is not None, "somebody asks only once something is known"
        return curve.seconds(most) * self._pace

    def note(self, timing: Timing) -> None:
        """A round was seen."""
        key = _key(timing.sequences, timing.length)
        near = self._nearest(key)
        if near is not None:
            ratio = timing.seconds / max(1e-9, float(near.seconds(timing.rows)[timing.rows]) * self._pace)
            self._pace *= math.exp(PACE * math.log(min(2.0, max(0.5, ratio))))
        self._curves.setdefault(key, Curve()).add(timing.rows, timing.seconds / self._pace)

    def _nearest(self, key: tuple[int, int]) -> Curve | None:
        """The curve of this company and length, or of the company and length that are most alike."""
        own = self._curves.get(key)
        if own is not None and own.known:
            return own
        known = [(_distance(key, other), other) for other, curve in self._curves.items() if curve.known]
        return self._curves[min(known)[1]] if known else None


def size_of(rows: int) -> int:
    """The size that a row count belongs to: the largest edge not above it."""
    place = int(np.searchsorted(EDGES, rows, side="right")) - 1
    return EDGES[max(0, place)]


def _middle(rounds: deque[tuple[int, float]]) -> tuple[float, float]:
    """Their rows on average, and the median of their seconds: of an even number the lower one."""
    seconds = sorted(seconds for _, seconds in rounds)
    return sum(rows for rows, _ in rounds) / len(rounds), seconds[(len(seconds) - 1) // 2]


def _key(sequences: int, length: int) -> tuple[int, int]:
    return sequences, max(0, math.ceil(math.log2(max(1, length) / SHORT)))


def _distance(one: tuple[int, int], other: tuple[int, int]) -> float:
    return abs(math.log2(one[0] / other[0])) + abs(one[1] - other[1]) / 2
