"""What a run found: figures of every entry, in every cell of the table of tasks and languages and over all of them.

Speed-ups are taken between texts that were written right after one another, entry against plain decoding, so that a
machine that slows down slows both. Intervals draw units again, not texts: see `bench/statistics.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.bench.run.directory import Run
from paceline.bench.run.record import ROUND_COLUMNS, SPLIT, Record, Verdict
from paceline.bench.statistics import Estimate, mean_of, median_of, ratio_of_sums, repeated_share

STALL = 5.0
"""A round of so many times the median round of its entry is a stall: of the machine, mostly."""
LOOPING = 0.2
"""Share of repeated 8-grams above which a text counts as a loop."""
PERCENTILES = (50, 90, 99)

Floats = NDArray[np.float64]
SECONDS = tuple(column for column in ROUND_COLUMNS if column.startswith("seconds_"))


@dataclass(frozen=True)
class Figures:
    """One entry in one cell, or over several. What its contestant does not tell is None."""

    entry: str
    texts: int
    tokens: int
    tokens_per_second: float | None
    """All decoded tokens over all seconds of decoding."""
    speed_up: Estimate | None
    """The mean of ratios: over all pairs, the speed of a text over that of the base's. The base's own is exactly 1."""
    speed_up_of_means: Estimate | None
    """The ratio of means: all tokens over all seconds, over the base's; of the same pairs."""
    tokens_per_round: float | None
    mean_accepted: float | None
    accepted_per_draft: float | None
    acceptance_rate: float | None
    coverage: float | None
    acceptance_per_position: list[float]
    """Of the rounds that drafted, the share that accepted more than i tokens."""
    drafted_per_position: list[float]
    """Of the rounds that drafted, the share whose draft was deeper than i."""
    rounds_by_tokens: dict[int, int]
    """How many tokens a round emitted -> how many rounds did."""
    split: dict[str, float]
    """Seconds per text by what they went to; empty of a peer."""
    seconds_first: Estimate | None
    """The median time to the first token."""
    seconds: Estimate | None
    """The median time of a whole text."""
    joules_per_token: float | None
    peak_bytes: int | None
    repeated_8grams: float
    degenerate: int
    """Texts that repeat more than a fifth of their 8-grams."""
    rounds: int | None
    stalls: int | None
    """Rounds of more than five times the entry's median round. None where rounds are not told."""
    verdicts: dict[str, int]
    flips_per_1000: float | None
    """Of texts that were walked, tokens that would have been others."""
    latency: dict[str, dict[str, float]] = field(default_factory=dict)
    """Where prompts arrived on their own: percentiles of the seconds to the ``first`` and to the ``last`` token."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


class Summary:
    """Figures of a run, made when they are asked for and kept."""

    def __init__(self, run: Run, base: str | None = None) -> None:
        """``base`` is the entry that speed-ups are over: plain decoding, where none is named."""
        if base is not None and base not in run.entries:
            raise ValueError(f"{run.path} has no entry {base!r}; it has {', '.join(run.entries)}")
        self.run = run
        self.entries = run.entries
        self.base = base or self.entries[0]
        self.tasks = list(dict.fromkeys(record.task for record in run.records))
        self.languages = list(dict.fromkeys(record.language for record in run.records))
        self._figures: dict[tuple[str, str | None, str | None], Figures | None] = {}

    def figures(self, entry: str, task: str | None = None, language: str | None = None) -> Figures | None:
        """An entry's figures over the texts of a task, a language, both or all. None where it has no texts there."""
        asked = entry, task, language
        if asked not in self._figures:
            records = self.records(entry, task, language)
            self._figures[asked] = self._made(entry, records) if records else None
        return self._figures[asked]

    def cells(self) -> list[tuple[str, str]]:
        """Tasks and languages that have texts."""
        return list(dict.fromkeys((record.task, record.language) for record in self.run.records))

    def records(self, entry: str, task: str | None = None, language: str | None = None) -> list[Record]:
        """An entry's texts in a cell, a row, a column or all of them."""
        return [
            record
            for record in self._by_entry.get(entry, ())
            if task in (None, record.task) and language in (None, record.language)
        ]

    def pairs(self, records: Iterable[Record], other: str | None = None) -> list[tuple[Record, Record]]:
        """Texts beside another entry's of the same moment, the base's where none is named; where both have a speed."""
        others = self._moments[other or self.base]
        found = ((record, others.get((*record.pair, record.prompt))) for record in records)
        return [(one, two) for one, two in found if two is not None and one.speed and two.speed]

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain data."""
        return {
            "run": self.run.name,
            "base": self.base,
            "entries": self.entries,
            "tasks": self.tasks,
            "languages": self.languages,
            "overall": self._rows(None, None),
            "by_task": {task: self._rows(task, None) for task in self.tasks},
            "by_language": {language: self._rows(None, language) for language in self.languages},
            "cells": [
                {"task": task, "language": language, "entries": self._rows(task, language)}
                for task, language in self.cells()
            ],
        }

    def stall_bound(self, entry: str) -> float:
        """Seconds from which a round of an entry is a stall."""
        return self._stall_bounds[entry]

    def _rows(self, task: str | None, language: str | None) -> dict[str, dict[str, Any]]:
        found = {entry: self.figures(entry, task, language) for entry in self.entries}
        return {entry: figures.as_dict() for entry, figures in found.items() if figures is not None}

    @cached_property
    def _by_entry(self) -> dict[str, list[Record]]:
        found: dict[str, list[Record]] = {}
        for record in self.run.records:
            found.setdefault(record.entry, []).append(record)
        return found

    @cached_property
    def _moments(self) -> dict[str, dict[tuple[int, int, int, str], Record]]:
        """Of each entry, its texts by what they have in common with other entries' texts."""
        return {
            entry: {(*record.pair, record.prompt): record for record in self._by_entry.get(entry, ())}
            for entry in self.entries
        }

    @cached_property
    def _stall_bounds(self) -> dict[str, float]:
        times = {entry: seconds_of_rounds(records) for entry, records in self._by_entry.items()}
        return {entry: STALL * float(np.median(found)) if len(found) else np.inf for entry, found in times.items()}

    def _made(self, entry: str, records: list[Record]) -> Figures:
        shares = [repeated(tuple(record.tokens)) for record in records]
        tokens = sum(len(record.tokens) for record in records)
        walked = [record for record in records if record.verdict is Verdict.FOLLOWED]
        metered = [record for record in records if record.joules is not None]
        units = [record.unit for record in records]
        of_ratios, of_means = self._speed_ups(entry, records)
        return Figures(
            entry=entry,
            texts=len(records),
            tokens=tokens,
            tokens_per_second=_ratio(sum(r.decoded for r in records), sum(r.seconds_decode for r in records)),
            speed_up=of_ratios,
            speed_up_of_means=of_means,
            **_of_rounds(records, self.stall_bound(entry)),
            split=_split(records),
            seconds_first=median_of([record.seconds_first for record in records], units),
            seconds=median_of([record.seconds for record in records], units),
            joules_per_token=_ratio(sum(r.joules or 0 for r in metered), sum(len(r.tokens) for r in metered)),
            peak_bytes=max((record.peak_bytes for record in records if record.peak_bytes is not None), default=None),
            repeated_8grams=repeated_share([record.tokens for record in records]),
            degenerate=sum(share > LOOPING for share in shares),
            verdicts=dict(Counter(record.verdict.value for record in records)),
            flips_per_1000=_ratio(1000 * sum(r.flips for r in walked), sum(len(r.tokens) for r in walked)),
            latency=_latency(records) if self.run.about.recipe.get("qps") else {},
        )

    def _speed_ups(self, entry: str, records: Sequence[Record]) -> tuple[Estimate | None, Estimate | None]:
        """The mean of ratios and the ratio of means."""
        if entry == self.base:
            return Estimate(1.0, 1.0, 1.0), Estimate(1.0, 1.0, 1.0)
        pairs = self.pairs(records)
        if not pairs:
            return None, None
        units = [one.unit for one, _ in pairs]
        sums = [(one.decoded, one.seconds_decode, base.decoded, base.seconds_decode) for one, base in pairs]
        return mean_of([speed_up(one, base) for one, base in pairs], units), ratio_of_sums(sums, units)


def speed_up(one: Record, base: Record) -> float:
    """How many times as fast as another a text was written."""
    assert one.speed and base.speed, "pairs have speeds"
    return one.speed / base.speed


def seconds_of_rounds(records: Sequence[Record]) -> Floats:
    """How long each round took, draft and all."""
    found = np.zeros(sum(len(record.rounds["emitted"]) for record in records if record.rounds is not None))
    for column in SECONDS:
        found += _column(records, column)
    return found


@lru_cache(maxsize=65536)
def repeated(tokens: tuple[int, ...]) -> float:
    """The share of repeated 8-grams of one text."""
    return repeated_share([tokens])


def _column(records: Iterable[Record], column: str) -> Floats:
    found = [record.rounds[column] for record in records if record.rounds is not None]
    return np.concatenate([np.zeros(0), *found])


def _of_rounds(records: Sequence[Record], stall: float) -> dict[str, Any]:
    """Everything that rounds tell. Of a peer, at most how many tokens a forward brought."""
    told = [record for record in records if record.rounds is not None]
    if not told:
        return _of_forwards(records)
    emitted, accepted, drafted, depth = (
        _column(told, column) for column in ("emitted", "accepted", "drafted", "depth")
    )
    rounds, drafting = len(emitted), drafted > 0
    deepest = int(depth[drafting].max(initial=0))
    return {
        "tokens_per_round": _ratio(emitted.sum(), rounds),
        "mean_accepted": _ratio(accepted.sum(), rounds),
        "accepted_per_draft": _ratio(accepted.sum(), drafting.sum()),
        "acceptance_rate": _ratio(accepted.sum(), drafted.sum()),
        "coverage": _ratio(drafting.sum(), rounds),
        "acceptance_per_position": _beyond(accepted[drafting], deepest),
        "drafted_per_position": _beyond(depth[drafting], deepest),
        "rounds_by_tokens": {int(n): int(k) for n, k in zip(*np.unique(emitted, return_counts=True), strict=True)},
        "rounds": rounds,
        "stalls": int((seconds_of_rounds(told) > stall).sum()),
    }


def _beyond(counts: Floats, deepest: int) -> list[float]:
    """The share of counts that are more than 0, more than 1 and so on."""
    above = np.searchsorted(np.sort(counts), np.arange(deepest), side="right")
    return ((len(counts) - above) / max(len(counts), 1)).tolist()  # type: ignore[no-any-return]


def _of_forwards(records: Sequence[Record]) -> dict[str, Any]:
    told = [record for record in records if record.forwards is not None]
    nothing = ("mean_accepted", "accepted_per_draft", "acceptance_rate", "coverage", "rounds", "stalls")
    return {
        "tokens_per_round": _ratio(sum(len(r.tokens) for r in told), sum(r.forwards or 0 for r in told)),
        **dict.fromkeys(nothing),
        "acceptance_per_position": [],
        "drafted_per_position": [],
        "rounds_by_tokens": {},
    }


def _split(records: Sequence[Record]) -> dict[str, float]:
    told = [record.split for record in records if record.split is not None]
    return {part: sum(split.get(part, 0.0) for split in told) / len(told) for part in SPLIT} if told else {}


def _latency(records: Sequence[Record]) -> dict[str, dict[str, float]]:
    times = {"first": [r.seconds_first for r in records], "last": [r.seconds for r in records]}
    return {
        which: {f"p{percent}": float(np.percentile(seconds, percent)) for percent in PERCENTILES}
        for which, seconds in times.items()
    }


def _ratio(part: float, whole: float) -> float | None:
    return float(part / whole) if whole else None
