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
UNTRIED = 0.01
"""What one more row is assumed to take beyond the sizes that were tried, as a share of a plain round."""
SHORT = 1024
"""Texts up to this length count as equally long; beyond it, lengths within a factor of two do."""
FOLLOWED = 0.7
"""How much of what one size shows of the machine's pace is believed of those that were not seen meanwhile."""


@dataclass(eq=False)
class Size:
    """The last rounds of about as many rows."""

    rounds: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=KEPT))
    pace: float = 0.0
    """The machine's pace, as a logarithm, when the last of them was seen."""
    _middle: tuple[float, float] = 0.0, 0.0

    @property
    def trusted(self) -> bool:
        return len(self.rounds) >= TRUSTED

    def middle(self, pace: float) -> tuple[float, float]:
        """Their rows on average, and the median of their seconds at a pace: of an even number the lower one."""
        rows, seconds = self._middle
        return rows, seconds if pace == self.pace else seconds * math.exp(pace - self.pace)

    def add(self, rows: int, seconds: float, pace: float) -> float:
        """A round was seen. Returns by how much, as a logarithm, the size has moved from what was expected of it."""
        factor = math.exp(pace - self.pace)
        expected = self.middle(pace)[1] if self.trusted else None
        self.rounds = deque([(n, before * factor) for n, before in self.rounds] + [(rows, seconds)], maxlen=KEPT)
        took = sorted(seconds for _, seconds in self.rounds)
        self._middle = sum(rows for rows, _ in self.rounds) / len(took), took[(len(took) - 1) // 2]
        self.pace = pace
        return 0.0 if expected is None else math.log(self.middle(pace)[1] / expected)


Curve = dict[int, Size]
"""Size -> its rounds: of one company and one length of text."""


class Costs:
    """The cost of rounds on one target. `frozen` ones stay what they are: a text that is planned by them can be
    written again."""

    def __init__(self, timings: Iterable[Timing] = ()) -> None:
        self._curves: dict[tuple[int, int], Curve] = {}
        self._pace = 0.0
        self._timings = tuple(timings)
        for timing in self._timings:
            for _ in range(TRUSTED):
                self._size(timing).add(timing.rows, timing.seconds, self._pace)

    @property
    def known(self) -> bool:
        """Whether anything was measured at all."""
        return any(map(_known, self._curves.values()))

    def frozen(self) -> Costs:
        """What was known at first, or, where nothing was, rounds that take one second and grow by the row."""
        return Costs(self._timings or (Timing(rows=1, seconds=1.0), Timing(rows=64, seconds=1.0 + 64 * UNTRIED)))

    def seconds(self, most: int, *, sequences: int = 1, length: int = 0) -> Floats:
        """Seconds of a round of 0 .. ``most`` rows in all, of ``sequences`` texts that are about ``length`` long."""
        curve = self._nearest(_key(sequences, length))
        known = sorted(size.middle(self._pace) for size in curve.values() if size.trusted)
        places = np.array([rows for rows, _ in known])
        values = np.maximum.accumulate(np.array([seconds for _, seconds in known]))
        rows = np.arange(most + 1, dtype=np.float64)
        found: Floats = np.interp(rows, places, values)
        found += np.maximum(0.0, rows - places[-1]) * UNTRIED * values[0]
        return found

    def note(self, timing: Timing) -> None:
        """A round was seen. Sizes that are not seen for a while are believed to have moved as those that are."""
        size = self._size(timing)
        moved = size.add(timing.rows, max(timing.seconds, 1e-9), self._pace)
        self._pace += FOLLOWED * moved
        size.pace = self._pace

    def _size(self, timing: Timing) -> Size:
        curve = self._curves.setdefault(_key(timing.sequences, timing.length), {})
        return curve.setdefault(size_of(timing.rows), Size())

    def _nearest(self, key: tuple[int, int]) -> Curve:
        """The curve of this company and length, or of the company and length that are most alike."""
        own = self._curves.get(key)
        if own is not None and _known(own):
            return own
        known = [(_distance(key, other), other) for other, curve in self._curves.items() if _known(curve)]
        assert known, "nobody asks before anything was measured"
        return self._curves[min(known)[1]]


def _known(curve: Curve) -> bool:
    return any(size.trusted for size in curve.values())


def size_of(rows: int) -> int:
    """The size that a row count belongs to: the largest edge not above it."""
    place = int(np.searchsorted(EDGES, rows, side="right")) - 1
    return EDGES[max(0, place)]


def _key(sequences: int, length: int) -> tuple[int, int]:
    return sequences, max(0, math.ceil(math.log2(max(1, length) / SHORT)))


def _distance(one: tuple[int, int], other: tuple[int, int]) -> float:
    return abs(math.log2(one[0] / other[0])) + abs(one[1] - other[1]) / 2
