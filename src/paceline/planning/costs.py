"""Seconds of a round by the rows it scores: from earlier measurements, and from the rounds of texts being written.

The seconds of a forward rise with its rows in steps that no formula predicts. All sizes get slower or faster together,
when the machine heats up or does other work. So the logarithm of a round's seconds has two parts: the machine's *pace*,
which follows the last few rounds, and the *weight* of the round's size, which is learnt slowly from how rounds of that
size differ from others at the same pace. Weights rise with the rows: neighbouring sizes that fall are pooled, and
between sizes there are straight lines. A size that was not tried, or not recently, is assumed to be cheap, the more so
the less is known of it. The planner then tries it and learns; if it believed an old stall it would never find out.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from paceline.planning.timing import Timing

Floats = NDArray[np.float64]

EDGES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 192, 256, 384, 512, 1024, 2048)
"""The most rows of each size: close together where sizes are chosen from and rounds are many. Machines do rows by
eights and sixteens, so a round takes a step behind those numbers."""
TRUSTED = 2
"""So many rounds of a size must have been seen: the first of a shape often pays for preparing it."""
MEASURED = 30
"""A size that was measured on purpose counts as so many rounds."""
PROBED = 15
"""A size that was timed in a few forwards before the first text counts as so many: real rounds soon correct it."""
MOST = 30
"""More rounds of a size make it no surer: it may change."""
PACE = 0.25
"""The share of a round's surprise that counts as a change of the machine's pace."""
SWING = math.log(1.5)
"""The most that one round changes: it may have been held up."""
UNTRIED = 0.01
"""Seconds that one more row is assumed to take where nothing is known, as a share of a plain round."""
STEEP = 0.5
"""Beyond the largest size that was seen a row is assumed to take at least this share of what one took up to there;
all of it behind a probe, which reaches far enough."""
DOUBT = 1.0
"""Rounds that this assumption counts as."""
AGING = 200
"""After so many rounds of other sizes, a size's own count for a third of what they did."""
PLANNED = 64
"""Rows for which seconds are computed at once."""
SHORT = 1024
"""Texts up to this length count as equally long; beyond it, lengths within a factor of two do."""


@dataclass(eq=False)
class SizeClass:
    """Rounds of about as many rows: their weight is the logarithm of their seconds at a pace of 0."""

    rows: float = 0.0
    weight: float = 0.0
    rounds: int = 0
    last: int = 0
    """When it was seen, counted in rounds of all sizes."""

    def add(self, rows: int, weight: float) -> None:
        """A round was seen. Of the first two the quicker counts."""
        self.rounds = min(self.rounds + 1, MOST)
        share = 1 / self.rounds
        self.rows += share * (rows - self.rows)
        if self.rounds <= TRUSTED:
            self.weight = weight if self.rounds == 1 else min(weight, self.weight)
        else:
            self.weight += share * min(SWING, max(-SWING, weight - self.weight))


Curve = dict[int, SizeClass]
"""Size -> its rounds, of one batch size and one length of text."""


class Costs:
    """The cost of rounds on one target. `frozen` ones never change: a text that is planned by them can be repeated."""

    def __init__(self, timings: Iterable[Timing] = (), probed: Iterable[Timing] = ()) -> None:
        """From a calibration's ``timings``, or from forwards of one sequence that were ``probed`` before the first
        text. Probed ones begin curves as long as no round was seen, and `frozen` costs leave them out."""
        self._curves: dict[tuple[int, int], Curve] = {}
        self._probed = tuple(probed)
        self._pace = 0.0
        self._now = 0
        self._kept: dict[tuple[int, int], Floats] = {}
        self._timings = tuple(timings)
        for timing in self._timings:
            for _ in range(MEASURED):
                self._size(timing).add(timing.rows, math.log(timing.seconds))
        if self._probed:
            self._curve(1, 0)

    @property
    def known(self) -> bool:
        """Whether anything was measured at all."""
        return any(map(_known, self._curves.values()))

    def knows_plain(self, sequences: int, length: int) -> bool:
        """Whether rounds without drafts were measured, of so many texts that are about so long."""
        return _trusted(self._curves.get(key_of(sequences, length), {}).get(size_of(sequences), SizeClass()))

    def frozen(self) -> Costs:
        """The costs as they were at first; where nothing was known, a second a round and a little more for each row."""
        return Costs(self._timings or (Timing(rows=1, seconds=1.0), Timing(rows=64, seconds=1.0 + 64 * UNTRIED)))

    def seconds(self, most: int, *, sequences: int = 1, length: int = 0) -> Floats:
        """Seconds of a round of 0 .. ``most`` rows in all, of ``sequences`` texts that are about ``length`` long. A
        round is planned by them several times, so they are kept until the next one is noted."""
        key = key_of(sequences, length)
        kept = self._kept.get(key)
        if kept is None or len(kept) <= most:
            kept = self._kept[key] = self._computed(max(most, PLANNED), key)
        return kept[: most + 1]

    def _computed(self, most: int, key: tuple[int, int]) -> Floats:
        known = [size for size in self._nearest(key).values() if _trusted(size)]
        plain = min(known, key=attrgetter("rows"))
        places, values = _rising([self._believed(size, plain) for size in known])
        rows = np.arange(most + 1, dtype=np.float64)
        found: Floats = np.interp(rows, places, values)
        slope = UNTRIED * values[0]
        if len(places) > 1:
            steep = 1.0 if self._probed else STEEP
            slope = max(slope, steep * (values[-1] - values[0]) / (places[-1] - places[0]))
        found += np.maximum(0.0, rows - places[-1]) * slope
        return found * math.exp(self._pace)

    def tried(self, *, sequences: int = 1, length: int = 0) -> float:
        """About the most rows of rounds that were seen: of such rounds, or of those most like them."""
        return max(size.rows for size in self._nearest(key_of(sequences, length)).values() if _trusted(size))

    def note(self, timing: Timing) -> None:
        """A round was seen."""
        self._kept.clear()
        size = self._size(timing)
        weight = math.log(max(timing.seconds, 1e-9)) - self._pace
        if _trusted(size):
            moved = PACE * min(SWING, max(-SWING, weight - size.weight))
            self._pace += moved
            weight -= moved
        size.add(timing.rows, weight)
        self._now += 1
        size.last = self._now

    def _believed(self, size: SizeClass, plain: SizeClass) -> SizeClass:
        """A size, less what it may be wrong by; ``plain`` is the one of fewest rows."""
        sure = size.rounds * math.exp((size.last - self._now) / AGING)
        guessed = plain.weight + math.log1p(UNTRIED * (size.rows - plain.rows))
        weight = (size.weight * sure + guessed * DOUBT) / (sure + DOUBT)
        return SizeClass(size.rows, min(size.weight, weight), size.rounds)

    def _size(self, timing: Timing) -> SizeClass:
        return self._curve(timing.sequences, timing.length).setdefault(size_of(timing.rows), SizeClass())

    def _curve(self, sequences: int, length: int) -> Curve:
        """The curve of this batch size and length."""
        key = key_of(sequences, length)
        if key not in self._curves:
            self._curves[key] = self._begun(key) if self._probed else {}
        return self._curves[key]

    def _begun(self, key: tuple[int, int]) -> Curve:
        """A new curve: what the most similar one has learnt, or else what was probed. A round of several sequences may
        take longer than that: each attends by itself."""
        learnt = [(_distance(key, other), other) for other, curve in self._curves.items() if _has_rounds(curve)]
        if not learnt:
            fitting = (timing for timing in self._probed if timing.rows >= key[0])
            return {size_of(one.rows): SizeClass(one.rows, math.log(one.seconds), PROBED) for one in fitting}
        nearest = self._curves[min(learnt)[1]]
        return {
            edge: replace(size, rounds=min(size.rounds, PROBED))
            for edge, size in nearest.items()
            if size.rows >= key[0] and _trusted(size)
        }

    def _nearest(self, key: tuple[int, int]) -> Curve:
        """The curve of this batch size and length, or of those most like them."""
        own = self._curves.get(key)
        if own is not None and _known(own):
            return own
        known = [(_distance(key, other), other) for other, curve in self._curves.items() if _known(curve)]
        assert known, "costs are read once something was measured"
        return self._curves[min(known)[1]]


def _trusted(size: SizeClass) -> bool:
    return size.rounds >= TRUSTED


def _has_rounds(curve: Curve) -> bool:
    """Whether rounds of texts are in it, and not only what was probed."""
    return any(size.last for size in curve.values())


def _known(curve: Curve) -> bool:
    return any(map(_trusted, curve.values()))


def _rising(sizes: Sequence[SizeClass]) -> tuple[list[float], list[float]]:
    """Rows and seconds that rise with them: neighbours that fall are pooled, each by how often it was seen."""
    pools: list[tuple[float, int, list[float]]] = []
    for size in sorted(sizes, key=attrgetter("rows")):
        pools.append((size.weight, size.rounds, [size.rows]))
        while len(pools) > 1 and pools[-2][0] >= pools[-1][0]:
            (upper, more, later), (lower, rounds, rows) = pools.pop(), pools.pop()
            pools.append(((lower * rounds + upper * more) / (rounds + more), rounds + more, rows + later))
    places = [row for _, _, rows in pools for row in rows]
    return places, [math.exp(weight) for weight, _, rows in pools for _ in rows]


def size_of(rows: int) -> int:
    """The size that a row count belongs to: the smallest edge not below it, beyond the last one the last."""
    return EDGES[min(bisect_left(EDGES, rows), len(EDGES) - 1)]


def key_of(sequences: int, length: int) -> tuple[int, int]:
    """The batch size and the class of length that share a curve."""
    return sequences, max(0, math.ceil(math.log2(max(1, length) / SHORT)))


def _distance(one: tuple[int, int], other: tuple[int, int]) -> float:
    return abs(math.log2(one[0] / other[0])) + abs(one[1] - other[1]) / 2
