"""Runs, and the entries of a run, held against each other, pair by pair.

Within a run, entries wrote the same prompt right after one another, so their times are compared. Two runs were made at
two times: whatever the machine did in between stands in both an entry's time and plain decoding's, so what is compared
is their ratio, the speed-up, prompt by prompt; that drift cancels. Of plain decoding itself only the raw ratio is
left, which cannot tell the machine from the code and is therefore never called faster or slower.

Many ratios are looked at in one comparison. They are called by Holm's rule all together: where nothing differs, at most
one comparison in twenty calls anything at all. The rule is held to one in a hundred, for it knows of chance within the
runs only, and not of what a process has for its whole life, such as where its memory lies.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import combinations
from typing import Any

import numpy as np

from paceline.bench.doubts import doubts
from paceline.bench.run.directory import Run
from paceline.bench.run.record import Record
from paceline.bench.sameness import differences, texts
from paceline.bench.statistics import Difference, Estimate, difference, holm
from paceline.bench.summary import Summary

LEVEL = 0.01
"""How often a comparison may call something by chance."""

Key = tuple[str, int]
"""A prompt's name and the turn."""


class Call(StrEnum):
    """What a ratio is called."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "not told apart"
    """Not told apart."""
    UNKNOWN = "unknown"
    """From one prompt there is nothing to call."""


@dataclass(frozen=True)
class Finding:
    """How one side stands to another in a task (None: in all of them)."""

    entry: str
    other: str
    """Another entry, or the same one of the base run."""
    task: str | None
    ratio: Estimate
    call: Call
    prompts: int
    p: float

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self) | {"call": self.call.value}


@dataclass(frozen=True)
class Look:
    """A ratio that is yet to be called."""

    entry: str
    other: str
    task: str | None
    found: Difference


def called(looks: Sequence[Look]) -> list[Finding]:
    """All looks of a comparison, called together."""
    seen = holm([look.found.p for look in looks], LEVEL)
    return [
        Finding(
            look.entry,
            look.other,
            look.task,
            look.found.ratio,
            _call(look.found.ratio, differs),
            look.found.clusters,
            look.found.p,
        )
        for look, differs in zip(looks, seen, strict=True)
    ]


def _call(ratio: Estimate, differs: bool) -> Call:
    if not ratio.bounded:
        return Call.UNKNOWN
    if not (differs and ratio.excludes(1)):
        return Call.SAME
    return Call.FASTER if ratio.value > 1 else Call.SLOWER


class Within:
    """The entries of one run against each other."""

    def __init__(self, run: Run, base: str | None = None) -> None:
        self.summary = Summary(run, base)
        self.findings = called(list(self._looks()))

    def between(self, entry: str, other: str, task: str | None = None) -> Finding | None:
        """How an entry stands to another; None where they have no texts in common."""
        for found in self.findings:
            if found.task == task and (found.entry, found.other) == (entry, other):
                return found
        return None

    def best(self, task: str | None = None) -> list[str]:
        """The fastest entry of a task, and those that are not told apart from it."""
        speed_ups = {
            entry: figures.speed_up.value
            for entry in self.summary.entries
            if (figures := self.summary.figures(entry, task)) is not None and figures.speed_up is not None
        }
        if not speed_ups:
            return []
        first = max(speed_ups, key=lambda entry: speed_ups[entry])
        return [entry for entry in speed_ups if entry == first or self._call(entry, first, task) is Call.SAME]

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        tasks: list[str | None] = [None, *self.summary.tasks]
        return {
            **self.summary.as_dict(),
            "warnings": doubts(self.summary),
            "best": {task or "all": self.best(task) for task in tasks},
            "differences": [found.as_dict() for found in self.findings],
        }

    def _call(self, entry: str, other: str, task: str | None) -> Call | None:
        found = self.between(entry, other, task) or self.between(other, entry, task)
        return None if found is None else found.call

    def _looks(self) -> Iterator[Look]:
        """Every entry against every one before it, so that what is best may be found after looking."""
        for task in (None, *self.summary.tasks):
            texts = {entry: self.summary.records(entry, task) for entry in self.summary.entries}
            for other, entry in combinations(self.summary.entries, 2):
                pairs = self.summary.pairs(texts[entry], other)
                if pairs:
                    ratios = [(one.speed or 0) / (two.speed or 1) for one, two in pairs]
                    yield Look(entry, other, task, difference(ratios, [one.unit for one, _ in pairs]))


class Between:
    """A run against an earlier one, the base."""

    def __init__(self, base: Run, run: Run, plain: str | None = None) -> None:
        self.base, self.run = Summary(base, plain), Summary(run, plain)
        if plain is None and self.base.base != self.run.base:
            raise ValueError(
                f"{base.path} is measured against {self.base.base} and {run.path} against {self.run.base}; "
                "name an entry of both with --base"
            )
        self.entries = [entry for entry in self.run.entries if entry in self.base.entries]
        self._old, self._new = _by_key(self.base), _by_key(self.run)
        common = self._keys(self.run.base)
        self.prompts = len({prompt for prompt, _ in common})
        self.tasks = [task for task in self.run.tasks if any(self._tasks[key] == task for key in common)]
        self.looks = list(self._looks())
        self.findings = called(self.looks)
        self.raw = list(self._raw())

    @property
    def notes(self) -> list[str]:
        """What must be known of the two: where they differ, and which texts are not the same."""
        if not self.prompts:
            return [
                f"the runs have no prompt in common that {self.run.base} wrote in both; there is nothing to compare"
            ]
        old, new = self.base.run, self.run.run
        common = {entry: list(self.common(entry)) for entry in self.entries}
        return [*differences(old, new), *texts(old, new, common), *self._uncalled()]

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "run": self.run.run.name,
            "base_run": self.base.run.name,
            "base": self.run.base,
            "prompts": self.prompts,
            "tasks": self.tasks,
            "speed_ups": [found.as_dict() for found in self.findings],
            "tokens_per_second": [found.as_dict() for found in self.raw],
            "notes": self.notes,
        }

    def common(self, entry: str) -> Iterator[tuple[Record, Record]]:
        """First texts that an entry wrote in both runs, older ones first."""
        for key in self._keys(entry):
            yield self._old[entry][key][0], self._new[entry][key][0]

    def _keys(self, entry: str) -> list[Key]:
        old, new = self._old.get(entry, {}), self._new.get(entry, {})
        return [key for key in new if key in old]

    @property
    def _tasks(self) -> dict[Key, str]:
        return {key: texts[0].task for found in self._new.values() for key, texts in found.items()}

    def _looks(self) -> Iterator[Look]:
        """The speed-up of an entry over that in the base run."""
        for entry in self.entries:
            if entry != self.run.base:
                yield from self._ratios(entry, relative=True)

    def _raw(self) -> Iterator[Finding]:
        """Tokens per second over those in the base run. They are not called: the runs were not made in turns."""
        for entry in self.entries:
            for look in self._ratios(entry, relative=False):
                found = look.found
                yield Finding(entry, entry, look.task, found.ratio, Call.UNKNOWN, found.clusters, float("nan"))

    def _ratios(self, entry: str, relative: bool) -> Iterator[Look]:
        tasks = self._tasks
        for task in (None, *self.tasks):
            ratios, clusters = list[float](), list[Hashable]()
            for key in self._keys(entry):
                if task not in (None, tasks[key]):
                    continue
                new, old = (self._log_speed(side, entry, key, relative) for side in (self._new, self._old))
                if new is not None and old is not None:
                    ratios.append(float(np.exp(new - old)))
                    clusters.append(self._old[entry][key][0].unit)
            if ratios:
                yield Look(entry, entry, task, difference(ratios, clusters))

    def _log_speed(
        self, side: Mapping[str, Mapping[Key, list[Record]]], entry: str, key: Key, relative: bool
    ) -> float | None:
        """The mean logarithm, over repeats, of an entry's speed or of its speed-up."""
        texts = side[entry][key]
        if not relative:
            speeds = [text.speed for text in texts if text.speed]
            return float(np.mean(np.log(speeds))) if speeds else None
        plain = {text.pair: text.speed for text in side.get(self.run.base, {}).get(key, ())}
        pairs = [(text.speed, plain.get(text.pair)) for text in texts]
        ratios = [one / two for one, two in pairs if one and two]
        return float(np.mean(np.log(ratios))) if ratios else None

    def _uncalled(self) -> Iterator[str]:
        """Intervals that exclude 1 by themselves and are not called, since many were looked at."""
        close = [found for found in self.findings if found.call is Call.SAME and found.ratio.excludes(1)]
        if close:
            yield (
                f"{len(close)} of {len(self.findings)} intervals exclude 1 and are not called: so many looks would "
                "find as much by chance"
            )


def across(runs: Sequence[Run], plain: str | None = None) -> list[Between]:
    """Each run against the first, all looks called together."""
    found = [Between(runs[0], run, plain) for run in runs[1:]]
    findings = iter(called([look for between in found for look in between.looks]))
    for between in found:
        between.findings = [next(findings) for _ in between.looks]
    return found


def _by_key(summary: Summary) -> dict[str, dict[Key, list[Record]]]:
    """Entry -> prompt and turn -> its texts in the order of repeats."""
    found: dict[str, dict[Key, list[Record]]] = {}
    for record in summary.run.records:
        found.setdefault(record.entry, {}).setdefault((record.prompt, record.turn), []).append(record)
    return found
