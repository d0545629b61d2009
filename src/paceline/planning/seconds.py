"""Seconds by rows: classes of sizes, values that rise with them, and lines between and behind them.

All models of a round's time are made of these: the planner's costs (`costs`) and a calibration's curves (`curve`).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import Self

import numpy as np

from paceline.tree import Floats, Ints

EDGES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 192, 256, 384, 512, 1024, 2048)
"""The most rows of each size: close together where sizes are chosen from and rounds are many. Machines do rows by
eights and sixteens, so a round takes a step behind those numbers."""
TRUSTED = 2
"""Rounds of a size that must have been seen: the first of a shape often pays for preparing it."""
MOST = 30
"""More rounds of a size make it no surer: it may change."""
SWING = math.log(1.5)
"""The most that one round changes: it may have been held up."""


def size_of(rows: int) -> int:
    """The number of the size that a row count belongs to: the smallest edge not below it, or else the last one."""
    return min(bisect_left(EDGES, rows), len(EDGES) - 1)


class SizeClasses:
    """Rounds by their size, in arrays: about how many rows they had, their weight (the logarithm of their seconds at a
    pace of 0), how many there were, and when the last one was, counted in rounds of all sizes."""

    def __init__(self, table: Floats | None = None) -> None:
        self._table = np.zeros((4, len(EDGES))) if table is None else table
        self.rows, self.weights, self.rounds, self.last = self._table
        self.known = bool((self.rounds >= TRUSTED).any())
        """Whether any size was seen often enough."""

    def trusted(self) -> Self:
        """A copy of the sizes that were seen often enough, by their rows."""
        return type(self)(self._table[:, self.rounds >= TRUSTED])

    def begun(self, rows: int, rounds: int) -> SizeClasses:
        """A copy of the trusted sizes of ``rows`` rows and more, as if after ``rounds`` rounds at most."""
        table = np.where((self.rounds >= TRUSTED) & (self.rows >= rows), self._table, 0.0)
        np.fmin(table[2], rounds, out=table[2])
        return SizeClasses(table)

    def add(self, size: int, rows: int, weight: float, now: int = 0) -> None:
        """A round was seen. Of the first two of a size the quicker counts."""
        before, known, rounds, _ = self._table[:, size].tolist()
        rounds = min(rounds + 1, MOST)
        share = 1 / rounds
        if rounds > TRUSTED:
            weight = known + share * min(SWING, max(-SWING, weight - known))
        elif rounds > 1:
            weight = min(weight, known)
        self.put(size, before + share * (rows - before), weight, rounds, now)

    def set_unseen(self, rounds: int) -> None:
        """Let known sizes that no round of a text has had count as if they were seen so many times."""
        self.rounds[(self.last == 0) & (self.rounds > 0)] = rounds

    def put(self, size: int, rows: float, weight: float, rounds: float, now: int = 0) -> None:
        """Set the record of a size."""
        self._table[:, size] = rows, weight, rounds, now
        self.known |= rounds >= TRUSTED


def rising(rows: Floats, weights: Floats, rounds: Floats) -> tuple[Floats, Floats]:
    """Rows, and seconds that rise with them: neighbours that fall are pooled, each by how often it was seen."""
    if len(weights) == 1 or (weights[1:] > weights[:-1]).all():
        return rows, np.exp(weights)
    pools: list[tuple[float, float, int]] = []
    for weight, times in zip(weights.tolist(), rounds.tolist(), strict=True):
        pools.append((weight, times, 1))
        while len(pools) > 1 and pools[-2][0] >= pools[-1][0]:
            (upper, more, above), (lower, fewer, below) = pools.pop(), pools.pop()
            pools.append(((lower * fewer + upper * more) / (fewer + more), fewer + more, below + above))
    return rows, np.exp(np.repeat([weight for weight, *_ in pools], [count for *_, count in pools]))


def lines(rows: Ints | Floats, places: Floats, values: Floats, slope: float) -> Floats:
    """Straight lines between the places, as at the first one before it, and with this slope behind the last one."""
    found: Floats = np.interp(rows, places, values)
    found += np.maximum(0.0, rows - places[-1]) * slope
    return found
