"""Equations 1 to 6: the line through texts, the speed-up formula, and their break-even acceptance rates.

The paper's letters: ``alpha`` is the share of drafted tokens that is accepted, ``k`` the tokens of a draft, ``r`` the
bytes of the draft model over those of the target, ``beta`` an overhead in plain tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from paceline_lab import Estimate

CONFIDENCE = 0.95
Floats = NDArray[np.float64]
Values = Sequence[float] | Floats


# --- the formula


def round_cost(k: int, r: float, beta: float) -> float:
    """Time of a round over that of a plain token: k + 1 passes of the draft model, one of the target, and an overhead
    that grows with the square of k."""
    return (k + 1) * r + 1 + beta * k**2


def speed_up(alpha: float, k: int, r: float, beta: float) -> float:
    """Equation 5."""
    return (1 + alpha * k) / round_cost(k, r, beta)


def printed_form(k: int, r: float, beta: float) -> float:
    """Equation 6, the break-even as the paper has it."""
    return r + beta * k


def exact_form(k: int, r: float, beta: float) -> float:
    """The acceptance rate at which equation 5 is 1."""
    return (round_cost(k, r, beta) - 1) / k


Form = Callable[[int, float, float], float]
PRINTED, EXACT = "r + beta k", "equation 5 solved"
FORMS: Mapping[str, Form] = {PRINTED: printed_form, EXACT: exact_form}


def beta_of(points: Mapping[int, float], r: float, form: Form) -> float:
    """The overhead that fits break-even points best, by least squares over k. Each form is beta k and a rest."""
    return sum(k * (alpha - form(k, r, 0.0)) for k, alpha in points.items()) / sum(k**2 for k in points)


def means(points: Iterable[tuple[int, float]]) -> dict[int, float]:
    """Draft length -> the mean of its break-even points. Those above 1 are left out, as in the paper: no text was
    there."""
    reached = [(k, alpha) for k, alpha in points if alpha <= 1]
    return {k: float(np.mean([alpha for size, alpha in reached if size == k])) for k in sorted({k for k, _ in reached})}


# --- the line


@dataclass(frozen=True)
class Line:
    """Tokens per second by acceptance rate (equation 1), and where they are plain decoding's (equation 2)."""

    texts: int
    floor: float
    """Tokens per second if nothing were accepted."""
    slope: float
    r2: float
    acceptance: float
    speed: float
    """The mean of the texts, as is ``acceptance``."""
    base: float
    """Plain decoding's tokens per second."""
    break_even: Estimate
    """nan where speed does not rise with acceptance."""
    certain: bool
    """Whether the slope is above 0 beyond chance. If not, the interval says little."""

    @property
    def said(self) -> str:
        """The break-even in percent, and whether an acceptance rate can reach it."""
        found = self.break_even
        if math.isnan(found.value):
            return "none suffices"
        reach = f" ± {100 * (found.high - found.value):.1f}" if found.bounded else ""
        percent = f"{100 * found.value:.1f}{reach}%"
        if found.value > 1:
            return f"none suffices ({percent})"
        return percent if found.value >= 0 else f"any suffices ({percent})"


def fitted(acceptance: Values, speed: Values, base: Values) -> Line:
    """Ordinary least squares, and the break-even with its interval by the delta method.

    ``base`` are plain decoding's speeds; a single one counts as known. They count as independent of the other speeds,
    so the interval is wider than it need be if a slow machine slowed both."""
    x, y, plain = (np.asarray(one, np.float64) for one in (acceptance, speed, base))
    if len(x) < 2:
        raise ValueError(f"a line needs two texts that have drafts, and there {'is one' if len(x) else 'are none'}")
    if not len(plain):
        raise ValueError("plain decoding has no text to be compared with")
    middle = float(x.mean())
    spread = float(((x - middle) ** 2).sum())
    if spread <= len(x) * np.finfo(np.float64).eps:
        raise ValueError(f"all {len(x)} texts have the same acceptance rate, {middle:.1%}, which gives no line")
    slope = float((x - middle) @ (y - y.mean())) / spread
    floor = float(y.mean()) - slope * middle
    left, total = y - floor - slope * x, float(((y - y.mean()) ** 2).sum())
    free = len(x) - 2
    variance, t = (float(left @ left) / free, _t(free)) if free else (math.nan, math.nan)
    level = float(plain.mean())
    at = (level - floor) / slope if slope > 0 else math.nan
    of_base = float(plain.var(ddof=1)) / len(plain) if len(plain) > 1 else 0.0
    # delta method: variances of floor + at x slope, with their covariance, and of the base, over the slope's square
    of_line = variance * (1 / len(x) + (at - middle) ** 2 / spread)
    reach = t * math.sqrt(of_line + of_base) / slope if slope > 0 else math.nan
    return Line(
        texts=len(x),
        floor=floor,
        slope=slope,
        r2=1 - float(left @ left) / total if total else math.nan,
        acceptance=middle,
        speed=float(y.mean()),
        base=level,
        break_even=Estimate(at, at - reach, at + reach),
        certain=slope > t * math.sqrt(variance / spread),
    )


def _t(free: int) -> float:
    return float(stats.t.ppf((1 + CONFIDENCE) / 2, free))
