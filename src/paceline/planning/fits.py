"""Curves through measured points, and the best size under them: UniSpec's forms as changed here, and the points.

UniSpec (its Table 14) fits the seconds of a forward by a B-spline of degree 2 with 8 uniform knots and the tokens of a
round by a cubic, both by least squares, and finds the best draft size g* = argmax tokens(g) / seconds(g). Here the
seconds are those of a whole round, the knots stand at quantiles of the sizes, close together where sizes are small, and
all whole numbers are tried instead of searched by differential evolution. Fits smooth noise away, and real features
with it: a forward gets more expensive in steps, and tokens rise steeply over the first few nodes and hardly any more,
which no cubic does. So the curves' size is taken unless by the points it would lose more than `DOUBT` or be slower than
the smallest size; then the best size of the points is taken. `papers/unispec` has the paper's own procedure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.errors import InputError
from paceline.planning.timing import Nodes

Floats = NDArray[np.float64]
Curve = Callable[[Floats], Floats]

DEGREE, KNOTS, POWER = 2, 8, 3
DOUBT = 0.02
"""The share of the best throughput among the points that the fitted curves' choice may miss."""
LEAST = 1e-9
"""Seconds are at least this, whatever a fit says."""


@dataclass(frozen=True, kw_only=True)
class Spline:
    """A B-spline: its knots, ends repeated, and its coefficients."""

    knots: tuple[float, ...]
    coefficients: tuple[float, ...]

    def __call__(self, sizes: Floats) -> Floats:
        from scipy.interpolate import BSpline

        inside = np.clip(sizes, self.knots[0], self.knots[-1])
        found: Floats = BSpline(np.array(self.knots), np.array(self.coefficients), DEGREE)(inside)
        return found


@dataclass(frozen=True, kw_only=True)
class Cubic:
    """A polynomial: coefficients of the powers, the constant first, of size / ``scale``."""

    coefficients: tuple[float, ...]
    scale: float

    def __call__(self, sizes: Floats) -> Floats:
        found: Floats = np.polynomial.polynomial.polyval(sizes / self.scale, np.array(self.coefficients))
        return found


def spline(sizes: Sequence[float], values: Sequence[float]) -> Spline:
    """The curve of seconds. The knots stand at quantiles of the sizes; where there are fewer sizes than 8 knots can be
    fitted from, there are fewer knots."""
    from scipy.interpolate import make_lsq_spline

    x, y = np.asarray(sizes, np.float64), np.asarray(values, np.float64)
    if len(x) < 2:
        raise InputError(f"a curve needs seconds of 2 sizes or more, and has {len(x)}")
    if len(x) <= DEGREE:
        x, y = np.linspace(x[0], x[-1], DEGREE + 2), np.interp(np.linspace(x[0], x[-1], DEGREE + 2), x, y)
    count = max(2, min(KNOTS, len(x) - DEGREE + 1))
    inner = np.quantile(x, np.linspace(0, 1, count))[1:-1]
    knots = np.concatenate([[x[0]] * (DEGREE + 1), inner, [x[-1]] * (DEGREE + 1)])
    fitted = make_lsq_spline(x, y, knots, DEGREE)
    return Spline(knots=tuple(knots.tolist()), coefficients=tuple(fitted.c.tolist()))


def cubic(sizes: Sequence[float], values: Sequence[float]) -> Cubic:
    """The curve of tokens; of a lower power where there are too few sizes."""
    x, y = np.asarray(sizes, np.float64), np.asarray(values, np.float64)
    scale = max(1.0, float(x.max(initial=0.0)))
    found = np.polynomial.polynomial.polyfit(x / scale, y, min(POWER, len(x) - 1))
    return Cubic(coefficients=tuple(found.tolist()), scale=scale)


def best_size(tokens: Curve, seconds: Curve, least: int, most: int) -> int:
    """The whole number of nodes with the most tokens per second."""
    sizes = np.arange(least, most + 1, dtype=np.float64)
    return least + int(np.argmax(tokens(sizes) / np.maximum(seconds(sizes), LEAST)))


@dataclass(frozen=True, kw_only=True)
class Optimum:
    """The best size under both kinds of curves, and which of the two was believed."""

    nodes: Nodes
    fitted: Nodes
    """By the curves."""
    direct: Nodes
    """By the points."""
    seconds: Spline
    tokens: Cubic
    loss: float
    """The share of throughput that the fitted size would lose by the points."""


def optimum(sizes: Sequence[int], tokens: Sequence[float], seconds: Sequence[float]) -> Optimum:
    """The best number of nodes among those between the smallest and the largest size; sizes ascend."""
    x = [float(size) for size in sizes]
    fitted_seconds, fitted_tokens = spline(x, seconds), cubic(x, tokens)

    fitted = best_size(fitted_tokens, fitted_seconds, sizes[0], sizes[-1])
    whole = np.arange(sizes[0], sizes[-1] + 1, dtype=np.float64)
    speeds = np.interp(whole, x, tokens) / np.maximum(np.interp(whole, x, seconds), LEAST)
    direct = sizes[0] + int(np.argmax(speeds))
    loss = 1 - float(speeds[fitted - sizes[0]] / speeds.max())
    trusted = loss <= DOUBT and speeds[fitted - sizes[0]] >= speeds[0]
    return Optimum(
        nodes=fitted if trusted else direct,
        fitted=fitted,
        direct=direct,
        seconds=fitted_seconds,
        tokens=fitted_tokens,
        loss=loss,
    )
