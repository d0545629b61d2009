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
from collections.abc import Iterable
from threading import RLock

import numpy as np

from paceline.planning.seconds import EDGES, SWING, TRUSTED, SizeClasses, lines, rising, size_of
from paceline.planning.timing import Timing
from paceline.tree import Floats

MEASURED = 30
"""The rounds that a size counts for if it was measured on purpose."""
PROBED = 15
"""Rounds for a size that was timed in a few forwards before the first text: real rounds soon correct it."""
CONFIRMED = math.log(1.25)
"""How much quicker than a probe a first round of its size may be, as a logarithm, and still confirm it."""
PACE = 0.25
"""The share of a round's surprise that counts as a change of the machine's pace."""
UNTRIED = 0.01
"""Seconds that one more row is assumed to take where nothing is known, as a share of a plain round of at most `TEXTS`
sequences: a plain round of many more is worth so much that a row of it would never be tried."""
TEXTS = 8
STEEP = 0.5
"""Beyond the largest size that was seen a row is assumed to take at least this share of what one took up to there;
all of it behind a probe, which reaches far enough."""
DOUBT = 1.0
"""Rounds that this assumption counts as."""
AGING = 200
"""After this many rounds of other sizes, a size's own rounds have a third of their weight."""
PLANNED = 64
"""Rows for which seconds are computed at once."""
SHORT = 1024
"""Texts up to this length count as equally long; beyond it, lengths within a factor of two do."""


class Costs:
    """The cost of rounds on one target. `frozen` ones never change: a text that is planned by them can be repeated.

    The planners of all threads share them."""

    def __init__(self, timings: Iterable[Timing] = (), probed: Iterable[Timing] = ()) -> None:
        """From a calibration's ``timings``, or from forwards of one sequence that were ``probed`` before the first
        text. Probed ones begin curves as long as no round was seen, and `frozen` costs leave them out."""
        self._lock = RLock()
        self._curves: dict[tuple[int, int], SizeClasses] = {}
        self._probed = tuple(probed)
        self._pace = 0.0
        self._now = 0
        self._kept: dict[tuple[int, int], tuple[Floats, float]] = {}
        self._timings = tuple(timings)
        for timing in self._timings:
            curve, size = self._curve(timing.sequences, timing.length), size_of(timing.rows)
            for _ in range(MEASURED):
                curve.add(size, timing.rows, math.log(timing.seconds))
        if self._probed:
            self._curve(1, 0)

    @property
    def known(self) -> bool:
        """Whether anything was measured at all."""
        with self._lock:
            return any(curve.known for curve in self._curves.values())

    def knows_plain(self, sequences: int, length: int) -> bool:
        """Whether rounds without drafts were measured, of ``sequences`` texts of about ``length`` tokens."""
        curve = self._curves.get(key_of(sequences, length))
        return curve is not None and bool(curve.rounds[size_of(sequences)] >= TRUSTED)

    def since_plain(self, sequences: int, length: int) -> int:
        """How many rounds were seen since the last one without drafts, of ``sequences`` texts of about ``length``
        tokens. While all rounds have drafts, expensive rows and a slower machine look the same."""
        curve = self._curves.get(key_of(sequences, length))
        return 0 if curve is None else self._now - int(curve.last[size_of(sequences)])

    def frozen(self) -> Costs:
        """The costs as they were at first; where nothing was known, a second a round and a little more for each row."""
        return Costs(self._timings or (Timing(rows=1, seconds=1.0), Timing(rows=64, seconds=1.0 + 64 * UNTRIED)))

    def doubt(self) -> None:
        """Believe a probe no more than a few rounds, until a round confirms it: drafts that are left out because of it
        would never show that it was wrong."""
        with self._lock:
            self._kept.clear()
            for curve in self._curves.values() if self._probed else ():
                curve.set_unseen(TRUSTED)

    def seconds(self, most: int, *, sequences: int = 1, length: int = 0) -> Floats:
        """Seconds of a round of 0 .. ``most`` rows in all, of ``sequences`` texts that are about ``length`` long."""
        return self._read(most, key_of(sequences, length))[0][: most + 1]

    def tried(self, *, sequences: int = 1, length: int = 0) -> float:
        """About the most rows of rounds that were seen: of such rounds, or of those most like them."""
        return self._read(0, key_of(sequences, length))[1]

    def _read(self, most: int, key: tuple[int, int]) -> tuple[Floats, float]:
        """Seconds by rows, at least up to ``most``, and about the most rows that were seen. A round is planned by them
        several times, so they are kept until the next one is noted."""
        with self._lock:
            kept = self._kept.get(key)
            if kept is None or len(kept[0]) <= most:
                kept = self._kept[key] = self._computed(max(most, PLANNED), key)
            return kept

    def _computed(self, most: int, key: tuple[int, int]) -> tuple[Floats, float]:
        known = self._nearest(key).trusted()
        places, values = rising(known.rows, self._believed(known), known.rounds)
        slope = _untried(float(places[0])) * values[0]
        if len(places) > 1:
            steep = 1.0 if self._probed else STEEP
            slope = max(slope, steep * (values[-1] - values[0]) / (places[-1] - places[0]))
        return lines(np.arange(most + 1), places, values * math.exp(self._pace), slope * math.exp(self._pace)), places[
            -1
        ]

    def note(self, timing: Timing) -> None:
        """A round was seen."""
        with self._lock:
            self._kept.clear()
            curve, size = self._curve(timing.sequences, timing.length), size_of(timing.rows)
            weight = math.log(max(timing.seconds, 1e-9)) - self._pace
            if curve.rounds[size] >= TRUSTED:
                moved = PACE * min(SWING, max(-SWING, weight - float(curve.weights[size])))
                self._pace += moved
                weight -= moved
            self._now += 1
            if self._probed and not curve.last[size] and timing.rows > timing.sequences and curve.rounds[size]:
                confirmed = weight >= curve.weights[size] - CONFIRMED
                curve.set_unseen(PROBED if confirmed else TRUSTED)
            curve.add(size, timing.rows, weight, self._now)

    def _believed(self, known: SizeClasses) -> Floats:
        """The weights of sizes, less what they may be wrong by."""
        sure = known.rounds * np.exp((known.last - self._now) / AGING)
        guessed = known.weights[0] + np.log1p(_untried(float(known.rows[0])) * (known.rows - known.rows[0]))
        believed: Floats = np.fmin(known.weights, (known.weights * sure + guessed * DOUBT) / (sure + DOUBT))
        return believed

    def _curve(self, sequences: int, length: int) -> SizeClasses:
        """The curve of this batch size and length."""
        key = key_of(sequences, length)
        if key not in self._curves:
            self._curves[key] = self._begun(sequences, key) if self._probed else SizeClasses()
        return self._curves[key]

    def _begun(self, sequences: int, key: tuple[int, int]) -> SizeClasses:
        """A new curve: what the most similar one has learnt, or else what was probed. A round of several sequences may
        take longer than that: each attends by itself."""
        learnt = [(_distance(key, other), other) for other, curve in self._curves.items() if curve.last.any()]
        if learnt:
            return self._curves[min(learnt)[1]].begun(sequences, PROBED)
        begun = SizeClasses()
        for one in self._probed:
            if one.rows >= sequences:
                begun.put(size_of(one.rows), one.rows, math.log(one.seconds), PROBED)
        return begun

    def _nearest(self, key: tuple[int, int]) -> SizeClasses:
        """The curve of this batch size and length, or of those most like them."""
        own = self._curves.get(key)
        if own is not None and own.known:
            return own
        if not self.known:
            return self.frozen()._nearest(key)
        return self._curves[min((_distance(key, other), other) for other, c in self._curves.items() if c.known)[1]]


def _untried(plain: float) -> float:
    """The share of a plain round of ``plain`` rows that an untried row is assumed to take."""
    return UNTRIED * min(1.0, TEXTS / plain)


def key_of(sequences: int, length: int) -> tuple[int, int]:
    """The classes of batch sizes and of lengths that share a curve. Batches of more than six sequences come in classes,
    since those of a server have another size in each round."""
    return EDGES[size_of(sequences)], max(0, math.ceil(math.log2(max(1, length) / SHORT)))


def _distance(one: tuple[int, int], other: tuple[int, int]) -> float:
    return abs(math.log2(one[0] / other[0])) + abs(one[1] - other[1]) / 2
