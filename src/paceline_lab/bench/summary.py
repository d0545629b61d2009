"""The results of a run: figures of every entry, in every cell of tasks and languages and over all of them.

A run is two tables: `Summary.texts` has a row per text, `Summary.rounds` a row per round. Speed-ups compare texts that
were written right after one another, an entry's with plain decoding's, so a machine that slows down slows both.
Intervals resample prompts, not texts: see `bench/statistics.py`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from paceline.engine.counters import RATIOS, SECONDS
from paceline.errors import InputError
from paceline_lab.bench.run.directory import Run
from paceline_lab.bench.run.record import ROUND_COLUMNS, SPLIT, Record, TextVerdict
from paceline_lab.bench.statistics import (
    LOOPING,
    Estimate,
    mean_of,
    mean_of_means,
    mean_of_ratios,
    median_of,
    ngrams,
    ratio_of_sums,
)

STALL = 5.0
"""A round that takes this many times the median round of its entry is a stall, mostly of the machine."""
PERCENTILES = (50, 90, 99)
CELL = ["entry", "task", "language"]
MOMENT = ["unit", "turn", "repeat", "prompt"]
"""The fields in which two compared texts are equal."""
COLUMNS = {
    **dict.fromkeys((*CELL, "prompt", "verdict"), "str"),
    **dict.fromkeys(("unit", "turn", "repeat", "tokens", "decoded", "flips", "grams", "different"), "int64"),
    **dict.fromkeys(("seconds", "seconds_first", "seconds_decode", "speed", "joules", "peak_bytes"), "float64"),
    **dict.fromkeys(("forwards", "counted_drafted", "counted_accepted", *SPLIT), "float64"),
}
"""Columns of texts: ``grams`` counts 8-grams, ``different`` those that are not the same; ``prefill`` to ``rest`` are
seconds. What a contestant does not report is nan."""
OF_ROUNDS = ["emitted", "accepted", "drafted", "drafting_rounds", "rounds", "stalls"]
"""Further columns of texts: sums over their rounds."""
SPEEDS = ["decoded", "seconds_decode", "decoded_base", "seconds_decode_base"]
"""Columns of pairs: tokens and seconds of both."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Figures:
    """One entry in one cell, or over several. What its contestant does not report is None."""

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
    """Tokens that a round emitted -> number of such rounds."""
    split: dict[str, float]
    """Seconds per text by what they were spent on; empty of a peer."""
    seconds_first: Estimate
    """The median time to the first token."""
    seconds: Estimate
    """The median time of a whole text."""
    joules_per_token: float | None
    peak_bytes: int | None
    repeated_8grams: float
    degenerate: int
    """Texts that repeat more than a fifth of their 8-grams."""
    rounds: int | None
    stalls: int | None
    """Rounds of more than five times the entry's median round."""
    verdicts: dict[str, int]
    flips_per_1000: float | None
    """Of texts that followed plain decoding's, tokens that would have been others."""
    latency: dict[str, dict[str, float]] = field(default_factory=dict)
    """Where prompts arrived on their own: percentiles of the seconds to the ``first`` and to the ``last`` token."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


@dataclass(frozen=True)
class Means:
    """An entry's means over tasks, or over languages: every task weighs the same, however many texts it has."""

    speed_up: Estimate | None
    tokens_per_round: float | None
    speed_up_of_means: Estimate | None
    """The mean of the ratios of means."""


class Summary:
    """Tables and figures of a run. Each is computed at its first use and kept."""

    def __init__(self, run: Run, base: str | None = None) -> None:
        """``base`` is the entry that speed-ups are over, by default plain decoding."""
        if base is not None and base not in run.entries:
            raise InputError(f"{run.path} has no entry {base!r}; it has {', '.join(run.entries)}")
        self.run = run
        self.entries = run.entries
        self.base = base or self.entries[0]
        self.tasks = list(dict.fromkeys(record.task for record in run.records))
        self.languages = list(dict.fromkeys(record.language for record in run.records))
        self._figures: dict[tuple[str, ...], dict[tuple[str, ...], Figures]] = {}
        self._pairs: dict[str, pd.DataFrame] = {}

    @cached_property
    def texts(self) -> pd.DataFrame:
        """A row per text, in the order of `Run.records`."""
        found = pd.DataFrame([_row(record) for record in self.run.records], columns=[*COLUMNS]).astype(COLUMNS)
        found["looping"] = found.different < (1 - LOOPING) * found.grams
        known = {"metered": found.joules.notna(), "forwarded": found.forwards.notna()}
        known["followed"] = found.verdict == TextVerdict.FOLLOWED
        found = found.assign(**{name: found.tokens.where(those, 0) for name, those in known.items()})
        found["flips"] = found.flips.where(known["followed"], 0)
        reporting = [number for number, record in enumerate(self.run.records) if record.rounds is not None]
        found = found.join(self.rounds.groupby("text")[OF_ROUNDS].sum().reindex(reporting, fill_value=0.0))
        return found.assign(**{name: found[name].fillna(found[f"counted_{name}"]) for name in ("drafted", "accepted")})

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """A row per round: ``text`` is the number of its text, ``seconds`` its whole time, ``scoring`` the same without
        drafting.

        The round that reads the prompt is left out: its token comes with the prompt, and its seconds are the prompt's.
        Records do not name it; it is a text's first, without a draft and without seconds.
        """
        reporting = [
            (n, record, record.rounds) for n, record in enumerate(self.run.records) if record.rounds is not None
        ]
        lengths = [len(rounds["emitted"]) for _, _, rounds in reporting]
        found = pd.DataFrame({name: _joined(rounds[name] for _, _, rounds in reporting) for name in ROUND_COLUMNS})
        found["text"] = np.repeat(np.array([number for number, _, _ in reporting], np.int64), lengths)
        for name in CELL:
            found[name] = np.repeat(np.array([getattr(record, name) for _, record, _ in reporting], object), lengths)
        found["seconds"] = found[SECONDS].sum(axis=1)
        found["scoring"] = found[SECONDS[1:]].sum(axis=1)
        of_prompt = ~found.text.duplicated() & (found.drafted == 0) & (found.seconds == 0)
        found = found[~of_prompt].reset_index(drop=True)
        found["drafting_rounds"] = found.drafted > 0
        found["stalls"] = found.seconds > STALL * found.groupby("entry").seconds.transform("median")
        return found.assign(rounds=1)

    def records(self, entry: str) -> list[Record]:
        """An entry's texts."""
        return [record for record in self.run.records if record.entry == entry]

    def pairs(self, entry: str, other: str, task: str | None = None) -> pd.DataFrame:
        """An entry's texts of a task, or all, beside another's of the same moment: columns that end in ``_base``, and
        the ``ratio`` of their speeds. Texts without a speed are left out."""
        return of_cell(self.beside(other), entry, task)

    def beside(self, other: str) -> pd.DataFrame:
        """The pairs of all entries with one."""
        if other not in self._pairs:
            figures = "tokens", "decoded", "seconds_decode", "speed", "emitted", "rounds", "forwards"
            texts = self.texts[[*CELL, *MOMENT, *figures]]
            texts = texts.reset_index(names="text")
            theirs = texts[texts.entry == other].drop(columns=CELL)
            both = texts.merge(theirs, on=MOMENT, suffixes=("", "_base"))
            self._pairs[other] = both.assign(ratio=both.speed / both.speed_base).dropna(subset="ratio")
        return self._pairs[other]

    def cells(self) -> list[tuple[str, str]]:
        """Tasks and languages that have texts."""
        return list(dict.fromkeys((record.task, record.language) for record in self.run.records))

    def figures(self, entry: str, task: str | None = None, language: str | None = None) -> Figures | None:
        """An entry's figures over the texts of a task, a language, both or all. None where it has no texts there."""
        asked = {"entry": entry, "task": task, "language": language}
        cell = {name: value for name, value in asked.items() if value is not None}
        by = tuple(cell)
        if by not in self._figures:
            self._figures[by] = self._computed([*by])
        return self._figures[by].get(tuple(cell.values()))

    def means(self, entry: str, over: str = "task", language: str | None = None) -> Means:
        """The mean over tasks, of a language or of all; or ``over`` languages, each of which is the mean over its
        tasks."""
        asked = [(task, language) for task in self.tasks] if over == "task" else self.cells()
        found = {place: figures for place in asked if (figures := self.figures(entry, *place)) is not None}
        tasks = Counter(of for _, of in found)
        share = {(task, of): 1 / tasks[of] for task, of in found}
        per_round = [(figures.tokens_per_round, share[place]) for place, figures in found.items()]
        known = [(value, weight) for value, weight in per_round if value is not None]
        tokens = sum(value * weight for value, weight in known) / sum(weight for _, weight in known) if known else None
        if entry == self.base:
            return Means(Estimate(1.0, 1.0, 1.0), tokens, Estimate(1.0, 1.0, 1.0))
        pairs = of_cell(self.beside(self.base), entry, language=language)
        if pairs.empty:
            return Means(None, tokens, None)
        places = list(zip(pairs.task, [language] * len(pairs) if over == "task" else pairs.language, strict=True))
        paired = Counter(of for _, of in dict.fromkeys(places))
        how = places, pairs.unit, [1 / paired[of] for _, of in dict.fromkeys(places)]
        of_means = mean_of_ratios(pairs[SPEEDS].to_numpy(np.float64), *how)
        return Means(mean_of_means(pairs.ratio, *how), tokens, of_means)

    def _computed(self, by: list[str]) -> dict[tuple[str, ...], Figures]:
        """The figures of each group of texts."""
        texts = self.texts.groupby(by, sort=False)
        rounds, pairs = (dict(iter(table.groupby(by))) for table in (self.rounds, self.beside(self.base)))
        sums, split = (table.to_dict("records") for table in (texts.sum(numeric_only=True), texts[[*SPLIT]].mean()))
        known, found = (texts.rounds.count(), texts.peak_bytes.max()), {}
        for (key, group), total, shares, counted, peak in zip(texts, sums, split, *known, strict=True):
            found[key] = Figures(
                entry=key[0],
                texts=len(group),
                **_ratios(total, reported=counted > 0),
                **_speed_ups(pairs.get(key), alone=key[0] == self.base),
                **_distributions(rounds.get(key)),
                split={} if math.isnan(shares[SPLIT[0]]) else shares,
                seconds_first=median_of(group.seconds_first, group.unit),
                seconds=median_of(group.seconds, group.unit),
                peak_bytes=None if math.isnan(peak) else int(peak),
                verdicts=dict(Counter(group.verdict)),
                latency=_latency(group) if self.run.about.recipe.get("qps") else {},
            )
        return found

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain data."""
        return {
            "run": self.run.name,
            "base": self.base,
            "entries": self.entries,
            "tasks": self.tasks,
            "languages": self.languages,
            "overall": self._plain(None, None),
            "mean_of_tasks": {entry: asdict(self.means(entry)) for entry in self.entries},
            "mean_of_languages": {entry: asdict(self.means(entry, "language")) for entry in self.entries},
            "by_task": {task: self._plain(task, None) for task in self.tasks},
            "by_language": {language: self._plain(None, language) for language in self.languages},
            "cells": [
                {"task": task, "language": language, "entries": self._plain(task, language)}
                for task, language in self.cells()
            ],
        }

    def _plain(self, task: str | None, language: str | None) -> dict[str, dict[str, Any]]:
        found = {entry: self.figures(entry, task, language) for entry in self.entries}
        return {entry: figures.as_dict() for entry, figures in found.items() if figures is not None}


def of_cell(table: pd.DataFrame, entry: str, task: str | None = None, language: str | None = None) -> pd.DataFrame:
    """The rows of an entry in a cell, a row or a column of the tasks and languages, or all of its rows."""
    chosen = table.entry == entry
    for column, value in (("task", task), ("language", language)):
        if value is not None:
            chosen &= table[column] == value
    return table[chosen]


def _row(record: Record) -> dict[str, Any]:
    """A text as a row of the table."""
    grams, different = ngrams(record.tokens)
    split = dict.fromkeys(SPLIT, 0.0) | record.split if record.split is not None else {}
    plain = {name: getattr(record, name) for name in COLUMNS if hasattr(record, name)}
    plain |= {"counted_drafted": record.drafted, "counted_accepted": record.accepted}
    return {**plain, **split, "tokens": len(record.tokens), "grams": grams, "different": different}


def _joined(columns: Iterable[Any]) -> Floats:
    return np.concatenate([np.zeros(0), *columns])


def _ratios(total: dict[str, float], *, reported: bool) -> dict[str, Any]:
    """Figures that are ratios of sums. Of a peer that does not report its rounds, forwards are counted instead."""
    per_round = ("emitted", "rounds") if reported else ("forwarded", "forwards")
    return {
        "tokens": int(total["tokens"]),
        "tokens_per_second": _ratio(total["decoded"], total["seconds_decode"]),
        "tokens_per_round": _ratio(*(total[name] for name in per_round)),
        **{name: _ratio(total[part], total[whole]) for name, (part, whole) in RATIOS.items() if part in total},
        "joules_per_token": _ratio(total["joules"], total["metered"]),
        "repeated_8grams": 1 - total["different"] / total["grams"] if total["grams"] else 0.0,
        "degenerate": int(total["looping"]),
        "rounds": int(total["rounds"]) if reported else None,
        "stalls": int(total["stalls"]) if reported else None,
        "flips_per_1000": _ratio(1000 * total["flips"], total["followed"]),
    }


def _speed_ups(pairs: pd.DataFrame | None, *, alone: bool) -> dict[str, Any]:
    """The mean of ratios and the ratio of means; of the base ``alone`` both are 1."""
    if alone or pairs is None:
        return dict.fromkeys(("speed_up", "speed_up_of_means"), Estimate(1.0, 1.0, 1.0) if alone else None)
    return {
        "speed_up": mean_of(pairs.ratio, pairs.unit),
        "speed_up_of_means": ratio_of_sums(pairs[SPEEDS].to_numpy(), pairs.unit),
    }


def _distributions(rounds: pd.DataFrame | None) -> dict[str, Any]:
    """How many tokens rounds emitted, and how deep drafts went and were accepted."""
    if rounds is None:
        return {"acceptance_per_position": [], "drafted_per_position": [], "rounds_by_tokens": {}}
    drafting = rounds[rounds.drafting_rounds]
    deepest = int(drafting.depth.max()) if len(drafting) else 0
    emitted, counts = np.unique(rounds.emitted.astype(int), return_counts=True)
    return {
        "acceptance_per_position": _beyond(drafting.accepted, deepest),
        "drafted_per_position": _beyond(drafting.depth, deepest),
        "rounds_by_tokens": dict(zip(emitted.tolist(), counts.tolist(), strict=True)),
    }


def _beyond(counts: pd.Series, deepest: int) -> list[float]:
    """The share of counts that are more than 0, more than 1 and so on."""
    above = np.searchsorted(np.sort(counts), np.arange(deepest), side="right")
    return ((len(counts) - above) / max(len(counts), 1)).tolist()  # type: ignore[no-any-return]


def _latency(texts: pd.DataFrame) -> dict[str, dict[str, float]]:
    times = {"first": texts.seconds_first, "last": texts.seconds}
    return {
        which: {f"p{percent}": float(np.percentile(seconds, percent)) for percent in PERCENTILES}
        for which, seconds in times.items()
    }


def _ratio(part: float, whole: float) -> float | None:
    return float(part / whole) if whole else None
