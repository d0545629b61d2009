"""The possible gain of better drafts on this device: the share of two limits that each entry reaches.

The run itself measured the seconds of a round by its rows. This *curve* gives two limits:

* *hindsight*: the same rounds with only the accepted nodes of each draft, and no time for drafting. The missing part
  went into refused rows and into drafting.
* *knowing*: a draft that knows the text sends n tokens at a time, all are accepted, and n is the fastest on this
  device. No draft is faster. The missing part went into tokens that were not predicted.

The time of each round is scaled by the curve, so a machine that stalls or slows down affects an entry and its limits
alike. Reading the prompt does not count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import isotonic_regression

from paceline.errors import InputError
from paceline_lab.bench.run.directory import Run
from paceline_lab.bench.statistics import Estimate, Floats, ratio_of_sums
from paceline_lab.bench.summary import Summary, of_cell

NO_TIME = "the run's rounds took no time, so there is no limit to hold them against"


@dataclass(frozen=True)
class Curve:
    """Seconds of a round by its rows, up to the largest round of the run."""

    rows: Floats
    seconds: Floats

    @property
    def most(self) -> int:
        """Rows of the largest round."""
        return int(self.rows[-1])

    def at(self, rows: Any) -> Floats:
        """Interpolated between the sizes that occurred."""
        return np.asarray(np.interp(rows, self.rows, self.seconds), np.float64)

    def text(self, tokens: int) -> float:
        """The least seconds for a text of ``tokens`` tokens in rounds of equal size and one for the rest."""
        size = np.arange(1, min(tokens, self.most) + 1)
        whole, rest = np.divmod(tokens, size)
        return float((whole * self.at(size) + np.where(rest > 0, self.at(rest), 0.0)).min())


def curve_of(rows: Floats, seconds: Floats) -> Curve:
    """The median of every size, made monotone, since larger rounds take less only by chance. The weight of a size is
    the number of its rounds."""
    if not len(rows) or seconds.max() <= 0:
        raise InputError(NO_TIME)
    sizes = pd.Series(seconds).groupby(rows).agg(["median", "size"])
    monotone = isotonic_regression(sizes["median"], weights=sizes["size"]).x
    return Curve(sizes.index.to_numpy(np.float64), np.asarray(monotone, np.float64))


@dataclass(frozen=True)
class Share:
    """The shares of one entry in one cell, or over all cells (None)."""

    entry: str
    task: str | None
    language: str | None
    texts: int
    speed_up: float
    """Over the base, of rounds alone."""
    hindsight: Estimate
    """The share of the limit of its own drafts: its speed over that speed."""
    hindsight_speed_up: float
    """That limit, over the base."""
    knowing: Estimate
    """The share of the limit of a draft that knows the text."""
    knowing_speed_up: float


class Oracle:
    """The limits of a run of single texts. A round of a batch belongs to several texts and has no limit."""

    def __init__(self, run: Run, base: str | None = None) -> None:
        if run.about.recipe.get("qps") or (run.about.recipe.get("batch") or 1) > 1:
            raise InputError(
                f"{run.path} was written several texts at a time, and limits are those of one text; make a run without "
                "--batch and --qps"
            )
        self.summary = Summary(run, base)
        rounds = self.summary.rounds
        rounds = rounds[rounds.text.map(self.summary.texts.tokens) > 0]
        if not rounds.scoring.any():
            raise InputError(f"{run.path}: {NO_TIME}")
        self.curve = curve_of(rounds["rows"].to_numpy(), rounds.scoring.to_numpy())
        self._texts = self._limits(rounds)

    def _limits(self, rounds: pd.DataFrame) -> pd.DataFrame:
        """A row per text: the seconds that its rounds took, and those of both limits."""
        curve = self.curve.at(rounds["rows"])
        hindsight = rounds.scoring * self.curve.at(rounds.accepted + 1) / curve
        each = rounds[["text", "seconds", "scoring"]].assign(curve=curve, hindsight=hindsight)
        texts = each.groupby("text").sum().query("scoring > 0")
        texts = texts.join(self.summary.texts[["entry", "task", "language", "unit", "emitted"]])
        pace = texts.scoring / texts.curve
        return texts.assign(knowing=pace * texts.emitted.map(self.curve.text))

    def shares(self) -> Iterator[Share]:
        """Of every entry that reports its rounds, in every cell and over all of them."""
        cells: list[tuple[str | None, str | None]] = [*self.summary.cells(), (None, None)]
        for cell in cells if len(cells) > 2 else cells[:1]:
            shares = (self.share(entry, *cell) for entry in self.summary.entries)
            yield from (share for share in shares if share is not None)

    def share(self, entry: str, task: str | None = None, language: str | None = None) -> Share | None:
        """None of an entry that does not report its rounds there."""
        mine, base = (of_cell(self._texts, one, task, language) for one in (entry, self.summary.base))
        if mine.empty or base.empty:
            return None
        tokens, plain = mine.emitted.sum(), base.emitted.sum() / base.seconds.sum()
        limits = {
            name: ratio_of_sums(mine[[name, "seconds"]].assign(a=1.0, b=1.0).to_numpy(), mine.unit)
            for name in ("hindsight", "knowing")
        }
        return Share(
            entry=entry,
            task=task,
            language=language,
            texts=len(mine),
            speed_up=float(tokens / mine.seconds.sum() / plain),
            **limits,
            hindsight_speed_up=float(tokens / mine.hindsight.sum() / plain),
            knowing_speed_up=float(tokens / mine.knowing.sum() / plain),
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        curve = dict(zip(map(int, self.curve.rows), self.curve.seconds.tolist(), strict=True))
        cells = [asdict(share) for share in self.shares()]
        return {"base": self.summary.base, "seconds_by_rows": curve, "cells": cells}
