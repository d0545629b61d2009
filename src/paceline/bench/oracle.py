"""How much a better draft could still gain on this device: the share of two limits that each entry reaches.

A round of n rows takes a time that the run itself measured. With that *curve* two questions have answers:

* *hindsight*: of the drafts that were there, had only those nodes been sent which were accepted. The text comes in the
  same rounds, each as small as it could have been, and drafting takes no time. What an entry lacks of this limit went
  into rows that were refused, and into drafting.
* *knowing*: a draft that knows the text sends n tokens at a time of which all are accepted, with the n that writes the
  text fastest. No draft of any kind is faster on this device. What an entry lacks of this limit it did not foresee.

A limit of a round is its own time, made shorter or longer as the curve says, so that a machine which stalls or slows
down does so in both. Reading the prompt counts in neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from paceline.bench.run.directory import Run
from paceline.bench.run.record import Record
from paceline.bench.statistics import Estimate, ratio_of_sums
from paceline.bench.summary import SECONDS, Summary, seconds_of_rounds

Floats = NDArray[np.float64]
DRAFTING = "seconds_draft"
NO_TIME = "the run's rounds took no time, so there is no limit to hold them against"


@dataclass(frozen=True)
class Curve:
    """Seconds of a round by how many rows it scores, as far as rounds went."""

    rows: Floats
    seconds: Floats

    @property
    def most(self) -> int:
        """The largest round that was seen."""
        return int(self.rows[-1])

    def at(self, rows: Any) -> Floats:
        """Straight lines between the sizes that were seen."""
        return np.asarray(np.interp(rows, self.rows, self.seconds), np.float64)

    def text(self, tokens: int) -> float:
        """The least seconds in which a text of so many tokens can be written by rounds of equal size and a rest."""
        size = np.arange(1, min(tokens, self.most) + 1)
        whole, rest = np.divmod(tokens, size)
        return float((whole * self.at(size) + np.where(rest > 0, self.at(rest), 0.0)).min())


def curve_of(rows: Floats, seconds: Floats) -> Curve:
    """The median of every size, made monotone: a larger round never takes less, and what says so is chance. Sizes count
    as often as they were seen."""
    if not len(rows) or seconds.max() <= 0:
        raise ValueError(NO_TIME)
    sizes, counts = np.unique(rows, return_counts=True)
    medians = np.array([np.median(seconds[rows == size]) for size in sizes])
    return Curve(sizes.astype(np.float64), np.asarray(isotonic_regression(medians, weights=counts).x, np.float64))


@dataclass(frozen=True)
class Share:
    """How near one entry came to its limits in one cell, or over all of them (None)."""

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

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


class Oracle:
    """The limits of a run. It must have been written one text at a time, for the time of a round in a batch belongs to
    several texts."""

    def __init__(self, run: Run, base: str | None = None) -> None:
        if run.about.recipe.get("qps") or (run.about.recipe.get("batch") or 1) > 1:
            raise ValueError(
                f"{run.path} was written several texts at a time, and a round's limit is of one; make a run without "
                "--batch and --qps"
            )
        self.summary = Summary(run, base)
        told = [record for record in run.records if record.rounds is not None and record.tokens]
        rows, seconds = (np.concatenate([np.zeros(0), *map(each, told)]) for each in (rows_of, _scoring))
        if not seconds.any():
            raise ValueError(f"{run.path}: {NO_TIME}")
        self.curve = curve_of(rows, seconds)

    def shares(self) -> list[Share]:
        """Of every entry that tells its rounds, in every cell and over all of them."""
        cells: list[tuple[str | None, str | None]] = [*self.summary.cells(), (None, None)]
        if len(cells) == 2:
            del cells[-1]
        found = (self.share(entry, *cell) for cell in cells for entry in self.summary.entries)
        return [share for share in found if share is not None]

    def share(self, entry: str, task: str | None = None, language: str | None = None) -> Share | None:
        """None of an entry that does not tell its rounds there."""
        records = _telling(self.summary.records(entry, task, language))
        base = _telling(self.summary.records(self.summary.base, task, language))
        if not records or not base:
            return None
        tokens, units = [len(record.tokens) for record in records], [record.unit for record in records]
        took = [float(seconds_of_rounds([record]).sum()) for record in records]
        plain = sum(len(r.tokens) for r in base) / sum(float(seconds_of_rounds([r]).sum()) for r in base)
        hindsight = [self._hindsight(record) for record in records]
        knowing = [self._pace(record) * self.curve.text(len(record.tokens)) for record in records]
        return Share(
            entry=entry,
            task=task,
            language=language,
            texts=len(records),
            speed_up=sum(tokens) / sum(took) / plain,
            hindsight=_part(hindsight, took, units),
            hindsight_speed_up=sum(tokens) / sum(hindsight) / plain,
            knowing=_part(knowing, took, units),
            knowing_speed_up=sum(tokens) / sum(knowing) / plain,
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        curve = dict(zip(map(int, self.curve.rows), self.curve.seconds.tolist(), strict=True))
        return {
            "base": self.summary.base,
            "seconds_by_rows": curve,
            "cells": [share.as_dict() for share in self.shares()],
        }

    def _hindsight(self, record: Record) -> float:
        """Seconds of its rounds, had each held what it accepted and nothing else."""
        assert record.rounds is not None, "only of those who tell them"
        least = np.asarray(record.rounds["accepted"], np.float64) + 1
        return float((_scoring(record) * self.curve.at(least) / self.curve.at(rows_of(record))).sum())

    def _pace(self, record: Record) -> float:
        """How much slower than the curve the machine was while a text was written, or how much faster."""
        return float(_scoring(record).sum() / self.curve.at(rows_of(record)).sum())


def rows_of(record: Record) -> Floats:
    """The rows of each round. Runs of the first format do not tell them: then root and draft."""
    assert record.rounds is not None, "only of those who tell them"
    rows = record.rounds.get("rows")
    return np.asarray(rows, np.float64) if rows else np.asarray(record.rounds["drafted"], np.float64) + 1


def _scoring(record: Record) -> Floats:
    """Seconds of each round without its drafting."""
    assert record.rounds is not None, "only of those who tell them"
    columns = [np.asarray(record.rounds[name], np.float64) for name in SECONDS if name != DRAFTING]
    return np.asarray(np.sum(columns, axis=0), np.float64)


def _telling(records: Sequence[Record]) -> list[Record]:
    return [one for one in records if one.rounds is not None and one.tokens and _scoring(one).sum() > 0]


def _part(limit: Sequence[float], took: Sequence[float], units: Sequence[int]) -> Estimate:
    return ratio_of_sums([(least, seconds, 1.0, 1.0) for least, seconds in zip(limit, took, strict=True)], units)
