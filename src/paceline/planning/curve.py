"""Seconds of a round by its rows, read off what was measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.errors import InputError
from paceline.files.shape import Amount, Count
from paceline.planning.seconds import lines
from paceline.planning.timing import Rows, Timing
from paceline.tree import Floats


class CurveReading(NamedTuple):
    """Seconds to read the ``top`` best tokens after each row, by the number of rows."""

    top: Count
    rows: Rows
    seconds: Amount


class Curves:
    """A curve for every batch size and length of text that was measured: straight lines between the measured row
    counts, and beyond the largest one the last line goes on."""

    def __init__(self, timings: Iterable[Timing]) -> None:
        found: dict[tuple[int, int], dict[int, float]] = {}
        for timing in timings:
            found.setdefault((timing.sequences, timing.length), {})[timing.rows] = timing.seconds
        if not found:
            raise InputError("a curve of seconds needs timings; measure some with 'paceline calibrate'")
        self._curves = {
            key: (np.array(sorted(sizes), np.float64), np.array([sizes[rows] for rows in sorted(sizes)]))
            for key, sizes in found.items()
        }

    def scaled(self, ratio: Callable[[Floats], Floats]) -> Curves:
        """The same, if rounds of n rows take ``ratio`` of n times as long."""
        return Curves(
            Timing(rows=int(rows), seconds=float(took), length=length, sequences=sequences)
            for (sequences, length), (sizes, seconds) in self._curves.items()
            for rows, took in zip(sizes, seconds * ratio(sizes), strict=True)
        )

    @property
    def keys(self) -> list[tuple[int, int]]:
        """Sequences and lengths that were measured."""
        return sorted(self._curves)

    def nearest(self, sequences: int, length: int) -> tuple[int, int]:
        """The measured batch size and length most like these: the batch size counts before the length."""

        def apart(key: tuple[int, int]) -> tuple[float, float]:
            return abs(math.log(key[0] / sequences)), abs(math.log((key[1] + 1) / (length + 1)))

        return min(self._curves, key=apart)

    def seconds(self, rows: NDArray[np.integer] | Floats, sequences: int = 1, length: int = 0) -> Floats:
        """Seconds of rounds of ``rows`` rows in all."""
        sizes, seconds = self._curves[self.nearest(sequences, length)]
        slope = 0.0 if len(sizes) == 1 else float((seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2]))
        return lines(np.asarray(rows, np.float64), sizes, seconds, max(0.0, slope))


def with_reading(timings: Iterable[Timing], readings: Iterable[CurveReading], top: int) -> tuple[Timing, ...]:
    """Timings of rounds after which the ``top`` best tokens of every row are read; as they are, if none are.

    What was read of the nearest number of tokens stands for it.
    """
    by_top: dict[int, dict[int, float]] = {}
    for reading in readings:
        by_top.setdefault(reading.top, {})[reading.rows] = reading.seconds
    timings = tuple(timings)
    if not top or not by_top:
        return timings
    rows = by_top[min(by_top, key=lambda known: abs(known - top))]
    sizes, taken = np.array(sorted(rows), np.float64), np.array([rows[size] for size in sorted(rows)])
    read = lines(np.array([timing.rows for timing in timings]), sizes, taken, float(taken[-1] / sizes[-1])).tolist()
    return tuple(replace(one, seconds=one.seconds + more) for one, more in zip(timings, read, strict=True))
