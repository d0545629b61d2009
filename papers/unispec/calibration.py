"""Calibration as the paper has it: its Algorithm 1, lines 3 to 11, appendix F and Table 14.

Every draft size g_i has a separate run: the method writes the calibration prompts at that size. The run gives tau_i,
tokens per round, and s_i, the seconds of a forward: scoring, reading and judging, without drafting. A B-spline of
degree 2 with 8 uniform knots is fitted to the seconds and a cubic to the tokens, and g* is the argmax of their ratio
over all sizes between the smallest and the largest g_i.

The paper does not state how many runs there are, nor their sizes. Here there are `RUNS` between 1 and `MOST`, at equal
distances: one more than the spline has coefficients. With fewer runs least squares has many solutions, and the one of
least norm is taken, as scikit-learn's LinearRegression takes it. The runs take turns, prompt by prompt, so that a
machine that slows down slows all sizes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline_lab import Calibration, Prompt, Summary, as_lines, open_suite
from papers.driver import write

DEGREE, KNOTS, POWER = 2, 8, 3
RUNS, MOST = 10, 128
SEED, ROUNDS, TOLERANCE = 42, 1000, 1e-6
"""Settings of differential evolution, as the paper has them."""
LEAST = 1e-9
"""Seconds are at least this, whatever a fit says."""

Floats = NDArray[np.float64]
Fit = Callable[[Floats], Floats]


@dataclass(frozen=True, kw_only=True)
class Runs(Calibration):
    """A calibration by a run for each size; ``seconds`` are of forwards, ``took`` is the sum over all runs."""

    whole: list[float]
    """Seconds of a whole round, drafting included, by size."""


def even(least: int, most: int, runs: int = RUNS) -> list[int]:
    """``runs`` whole numbers at equal distances, both ends among them; all there are if those are fewer."""
    return sorted({round(size) for size in np.linspace(least, most, runs).tolist()})


def spline(sizes: Sequence[float], values: Sequence[float]) -> Fit:
    """SplineTransformer(degree=2, n_knots=8) and LinearRegression(): knots at equal distances over the range, and as
    many more beyond each end as the degree needs."""
    from scipy.interpolate import BSpline

    x = np.asarray(sizes, np.float64)
    low, high = float(x.min()), float(x.max())
    if low == high:
        return _level(values)
    step = (high - low) / (KNOTS - 1)
    knots = low + step * np.arange(-DEGREE, KNOTS + DEGREE)

    def basis(places: Floats) -> Floats:
        inside = np.clip(places, low, high)
        found: Floats = BSpline.design_matrix(inside, knots, DEGREE, extrapolate=True).toarray()
        return found

    return _fitted(basis, x, values)


def cubic(sizes: Sequence[float], values: Sequence[float]) -> Fit:
    """PolynomialFeatures(degree=3) and LinearRegression()."""
    return _fitted(lambda places: places[:, None] ** np.arange(1, POWER + 1), np.asarray(sizes, np.float64), values)


def _fitted(basis: Callable[[Floats], Floats], x: Floats, values: Sequence[float]) -> Fit:
    """Least squares with an intercept, on centered columns; of all solutions the one of least norm."""
    from scipy.linalg import lstsq

    columns, y = basis(x), np.asarray(values, np.float64)
    middle, level = columns.mean(axis=0), float(y.mean())
    cut = max(columns.shape) * float(np.finfo(np.float64).eps)
    weights = lstsq(columns - middle, y - level, cond=cut)[0]

    def fit(places: Floats) -> Floats:
        found: Floats = level + (basis(np.asarray(places, np.float64)) - middle) @ weights
        return found

    return fit


def _level(values: Sequence[float]) -> Fit:
    return lambda places: np.full(len(places), float(np.mean(values)))


def speed(tokens: Fit, seconds: Fit) -> Fit:
    return lambda sizes: tokens(sizes) / np.maximum(seconds(sizes), LEAST)


def best_size(tokens: Fit, seconds: Fit, least: int, most: int) -> int:
    """g*: of all whole numbers between two sizes the one of most tokens per second."""
    whole = np.arange(least, most + 1, dtype=np.float64)
    return least + int(np.argmax(speed(tokens, seconds)(whole)))


def evolved_size(tokens: Fit, seconds: Fit, least: int, most: int) -> float:
    """The same by the paper's search among all numbers, differential evolution."""
    from scipy.optimize import differential_evolution

    curve = speed(tokens, seconds)
    found = differential_evolution(
        lambda x: -float(curve(np.array([x[0]]))[0]),
        [(least, most)],
        seed=SEED,
        maxiter=ROUNDS,
        atol=TOLERANCE,
        tol=TOLERANCE,
    )
    return float(found.x[0])


def forward_seconds(run: Summary, entry: str) -> float:
    """The paper's s(g): the mean seconds of a round without its drafting."""
    return float(run.rounds[run.rounds.entry == entry].scoring.mean())


def calibration_of(run: Summary, entries: Mapping[int, str]) -> Runs:
    """A calibration from runs of a method, whose entries are named by their draft sizes."""
    sizes = sorted(entries)
    tokens, seconds, whole = list[float](), list[float](), list[float]()
    for size in sizes:
        figures, rounds = run.figures(entries[size]), run.rounds[run.rounds.entry == entries[size]]
        if figures is None or not figures.tokens_per_round:
            raise ValueError(f"{entries[size]} has no rounds to calibrate by; give longer texts")
        tokens.append(figures.tokens_per_round)
        seconds.append(forward_seconds(run, entries[size]))
        whole.append(float(rounds.seconds.mean()))
    best = best_size(cubic(sizes, tokens), spline(sizes, seconds), sizes[0], sizes[-1])
    took = float(run.texts[run.texts.entry.isin(entries.values())].seconds.sum())
    return Runs(nodes=best, sizes=sizes, tokens=tokens, seconds=seconds, whole=whole, took=took)


def write_prompts(
    file: Path,
    count: int,
    *,
    suite: str,
    tasks: list[str] | None,
    languages: list[str] | None,
    limit: int,
    data: Path | None,
) -> tuple[int, list[str]]:
    """Keep ``count`` prompts of a suite as a file, from all over its cells, and others than the ``limit`` of each cell
    that a race writes. Returns how many there are, and notes if there are too few."""
    opened = partial(open_suite, suite, data=data, tasks=tasks, languages=languages)
    raced = {prompt.key for prompt in opened(limit=limit).prompts}
    every = opened().prompts
    others = [prompt for prompt in every if prompt.key not in raced]
    own = [prompt for prompt in every if prompt.key in raced]
    picked = _spread(others, count)
    again = _spread(own, count - len(picked))
    write(file, as_lines([*picked, *again]))
    there, notes = len(picked) + len(again), list[str]()
    if again:
        why = "the suite has no more others"
        notes.append(f"{len(again)} of {there} prompts of the calibration are of the race, too: {why}")
    if there < count:
        notes.append(f"calibrated on {there} prompts and not on {count}: the suite has no more")
    return there, notes


def _spread(prompts: Sequence[Prompt], count: int) -> list[Prompt]:
    """At equal distances; all of them where there are no more."""
    few = min(count, len(prompts))
    return [prompts[number * len(prompts) // few] for number in range(few)]


# --- what is kept


@dataclass(frozen=True)
class Kept:
    """Calibrations in a folder, by their labels, with the options that they were made under."""

    file: Path
    asked: Mapping[str, Any]
    found: dict[str, Calibration]

    @classmethod
    def read(cls, folder: Path, asked: Mapping[str, Any] | None = None) -> Kept:
        """Those of a folder. ValueError where they were made under other options than are ``asked`` for."""
        file = folder / "calibrated.json"
        if not file.exists():
            return cls(file, asked or {}, {})
        kept = json.loads(file.read_text(encoding="utf8"))
        if "asked" not in kept:
            raise ValueError(f"{file} was written by another version; delete it, or give another --out")
        then = kept["asked"]
        asked = then if asked is None else json.loads(json.dumps(asked, default=str))
        if changed := [name for name, value in asked.items() if value != then.get(name)]:
            option = changed[0]
            raise ValueError(
                f"{file} was made with --{option.replace('_', '-')} {then.get(option)}, not {asked[option]}; "
                "give another --out"
            )
        found = {label: (Runs if "whole" in one else Calibration)(**one) for label, one in kept["found"].items()}
        return cls(file, asked, found)

    def of(self, *labels: str) -> Calibration:
        """The first that is there."""
        if (label := next((one for one in labels if one in self.found), None)) is None:
            known = ", ".join(self.found) or "none"
            raise ValueError(f"{self.file} has no calibration of {labels[-1]}; it has {known}")
        return self.found[label]

    def add(self, label: str, found: Calibration) -> None:
        self.found[label] = found
        kept = {"asked": self.asked, "found": {label: vars(one) for label, one in self.found.items()}}
        write(self.file, f"{json.dumps(kept, indent=1, default=str)}\n")


def named(places: Sequence[str], *labels: str) -> dict[str, tuple[str, Calibration]]:
    """Of each folder, ``NAME=DIR`` or ``DIR``, the first of these calibrations: name -> model and calibration."""
    found = dict[str, tuple[str, Calibration]]()
    for place in places:
        name, _, folder = place.rpartition("=") if not Path(place).exists() else (Path(place).name, "", place)
        if not name or name in found:
            raise ValueError(f"{place!r} needs another name; write NAME=DIR")
        kept = Kept.read(Path(folder))
        found[name] = str(kept.asked.get("model", "")), kept.of(*labels)
    return found
