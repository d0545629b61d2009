"""Where numbers lie in a picture: scales, and the round numbers that stand beside them."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

WIDE = 1.0
NARROW = 0.6
"""How wide characters are, in the font's size. Most are narrower, so what is thought to fit does."""


@dataclass(frozen=True)
class Scale:
    """Values from ``low`` to ``high`` on the stretch of a picture from ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """Where a value lies; one from outside lies at the nearer end."""
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)


def round_steps(low: float, high: float, about: int) -> list[float]:
    """Round numbers, about so many, of which the first is not above ``low`` and the last not below ``high``."""
    if not high > low:
        high = low + (abs(low) or 1.0)
    step = _round_step((high - low) / max(about, 1))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def _round_step(least: float) -> float:
    """The smallest of 1, 2, 2.5 and 5 times a power of ten that is no less."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= least * (1 - 1e-9))


def written(value: float) -> str:
    """A number beside an axis, without needless digits."""
    return f"{value:.6g}"


def width_of(text: str, size: float) -> float:
    """No less than a text takes at a font size."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" or ord(c) > 0x1F000 for c in text)
    return size * (WIDE * wide + NARROW * (len(text) - wide))


def fitted(text: str, width: float, size: float) -> str:
    """A text that takes no more than a width: where it is too long its middle makes room for dots, for names of
    methods and paths differ at both ends."""
    if width_of(text, size) <= width:
        return text
    kept = next(
        (n for n in range(len(text) - 1, 1, -1) if width_of(_ends(text, n), size) <= width),
        1,
    )
    return _ends(text, kept)


def _ends(text: str, kept: int) -> str:
    front = (kept + 1) // 2
    return f"{text[:front]}…{text[len(text) - (kept - front) :] if kept > front else ''}"


@dataclass(frozen=True)
class Line:
    """A straight line, as near to points as can be."""

    slope: float
    height: float
    """Its value at 0."""
    r2: float
    """How much of the points' spread it explains."""

    def at(self, x: float) -> float:
        return self.height + self.slope * x

    def __str__(self) -> str:
        sign = "+" if self.height >= 0 else "−"
        return f"y = {self.slope:.2f} x {sign} {abs(self.height):.2f}".replace("-", "−")


def nearest_line(points: Sequence[tuple[float, float]]) -> Line | None:
    """The line of least squares; None where the points do not decide one: fewer than three, or all above one place."""
    if len(points) < 3:
        return None
    count = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / count, sum(y for _, y in points) / count
    xx = sum((x - mean_x) ** 2 for x, _ in points)
    xy = sum((x - mean_x) * (y - mean_y) for x, y in points)
    yy = sum((y - mean_y) ** 2 for _, y in points)
    if xx <= 1e-12 * count:
        return None
    slope = xy / xx
    return Line(slope, mean_y - slope * mean_x, xy * xy / (xx * yy) if yy > 0 else 1.0)
