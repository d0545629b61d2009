"""The entries of a run against each other, and runs against an earlier one, pair by pair.

Within a run, entries wrote the same prompt right after one another, so their times are compared. Two runs were made at
two times: whatever the machine did in between affects an entry and plain decoding alike, so the compared number is
their ratio, the speed-up, prompt by prompt; the drift cancels. Plain decoding itself has only the raw ratio, which
cannot tell the machine from the code and is therefore never called faster or slower.

A comparison has many ratios. Holm's rule judges them together: where nothing differs, at most one comparison in
twenty calls anything at all. The rule is held to one in a hundred, for it knows only of chance within the runs, and
not of what a process has for its whole life, such as where its memory lies.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from itertools import combinations, permutations
from typing import Any

import numpy as np
import pandas as pd

from paceline.errors import InputError
from paceline_lab.bench.run.directory import Run
from paceline_lab.bench.statistics import Estimate, difference, holm
from paceline_lab.bench.summary import Summary, of_cell
from paceline_lab.bench.texts import first_difference
from paceline_lab.bench.warnings import warnings

LEVEL = 0.01
"""How often a comparison may call something by chance."""
FEW = 6
"""With fewer prompts than these, methods that are not told apart may still differ by much."""
TOO_FEW = "too few prompts to decide"
TEXT = ["entry", "prompt", "turn"]
"""The fields in which a text of one run equals its counterpart in another."""
WHICH_TEXTS = ("methods", "peers", "limit", "tasks", "langs", "repeat")
"""Parts of a recipe that say which texts there are, not what is in them."""
SAME_TEXT = ("the model's fingerprint", "the model's dtype", "temperature", "seed", "ignore_eos", "rule")
"""Where these facts are equal, an entry must write the same text."""


class RatioName(StrEnum):
    """The verdict on a ratio."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "not told apart"
    UNKNOWN = "no interval"
    """Of one prompt alone: neither a difference nor the lack of one can be found."""


DISTINCT = (RatioName.FASTER, RatioName.SLOWER)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """How one side compares with another in a task (None: in all of them)."""

    entry: str
    other: str
    """Another entry, or the same one of the base run."""
    task: str | None
    ratio: Estimate
    call: RatioName = RatioName.UNKNOWN
    prompts: int
    p: float

    @classmethod
    def of(cls, entry: str, other: str, task: str | None, ratios: pd.Series, units: pd.Series) -> Finding:
        """Of the ratios of pairs, not judged yet."""
        found = difference(ratios, units)
        return cls(entry=entry, other=other, task=task, ratio=found.ratio, prompts=found.clusters, p=found.p)

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self) | {"call": self.call.value}


def too_few(summary: Summary, task: str | None = None) -> bool:
    """Whether a task, or all of them, has too few prompts to call methods equal that are not told apart."""
    prompts: int = of_cell(summary.texts, summary.base, task).prompt.nunique()
    return 0 < prompts < FEW


def judged(findings: Sequence[Finding]) -> list[Finding]:
    """All findings of a comparison, judged together."""
    significant = holm([one.p for one in findings], LEVEL)
    return [replace(one, call=_call(one.ratio, differs)) for one, differs in zip(findings, significant, strict=True)]


def fastest(summary: Summary, entries: Sequence[str]) -> str | None:
    """The one of these entries that is faster than each of the others beyond chance."""
    pairs = {(entry, other): summary.pairs(entry, other) for entry, other in permutations(entries, 2)}
    found = [Finding.of(*names, None, one.ratio, one.unit) for names, one in pairs.items() if len(one)]
    beaten = Counter(one.entry for one in judged(found) if one.call is RatioName.FASTER)
    return next((entry for entry, count in beaten.items() if count == len(entries) - 1), None)


def _call(ratio: Estimate, differs: bool) -> RatioName:
    if not ratio.bounded:
        return RatioName.UNKNOWN
    if not (differs and ratio.excludes(1)):
        return RatioName.SAME
    return RatioName.FASTER if ratio.value > 1 else RatioName.SLOWER


class Within:
    """The entries of one run against each other."""

    def __init__(self, run: Run, base: str | None = None) -> None:
        self.summary = Summary(run, base)
        self.findings = judged(list(self._findings()))

    def _findings(self) -> Iterator[Finding]:
        """Every entry against every one before it, so that the best may be found afterwards."""
        for task in (None, *self.summary.tasks):
            for other, entry in combinations(self.summary.entries, 2):
                pairs = self.summary.pairs(entry, other, task)
                if len(pairs):
                    yield Finding.of(entry, other, task, pairs.ratio, pairs.unit)

    def best(self, task: str | None = None) -> list[str]:
        """The fastest entry of a task, and those that are not told apart from it; none where there is no interval, or
        where few prompts tell none apart."""
        speed_ups = {
            entry: figures.speed_up.value
            for entry in self.summary.entries
            if (figures := self.summary.figures(entry, task)) is not None and figures.speed_up is not None
        }
        first = max(speed_ups, key=lambda entry: speed_ups[entry], default=None)
        against = [found for found in self.findings if found.task == task and first in (found.entry, found.other)]
        if any(found.call is RatioName.UNKNOWN for found in against):
            return []
        if too_few(self.summary, task) and not any(found.call in DISTINCT for found in against):
            return []
        alike = {one for found in against if found.call is RatioName.SAME for one in (found.entry, found.other)}
        return [entry for entry in speed_ups if entry == first or entry in alike]

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        tasks: list[str | None] = [None, *self.summary.tasks]
        return {
            **self.summary.as_dict(),
            "warnings": warnings(self.summary),
            "best": {task or "all": self.best(task) for task in tasks},
            "differences": [found.as_dict() for found in self.findings],
        }


class Between:
    """A run against an earlier one, the base."""

    def __init__(self, base: Run, run: Run, plain: str | None = None) -> None:
        self.base, self.run = Summary(base, plain), Summary(run, plain)
        if plain is None and self.base.base != self.run.base:
            raise InputError(
                f"{base.path} is measured against {self.base.base} and {run.path} against {self.run.base}; "
                "name an entry of both with --base"
            )
        self.entries = [entry for entry in self.run.entries if entry in self.base.entries]
        old, new = (one.texts.reset_index(names="text").drop_duplicates(TEXT) for one in (self.base, self.run))
        self.common = new.merge(old, on=TEXT, suffixes=("", "_base"))
        plain_texts = self.common[self.common.entry == self.run.base]
        self.prompts = plain_texts.prompt.nunique()
        self.tasks = [task for task in self.run.tasks if (plain_texts.task == task).any()]
        self.findings = judged(list(self._findings(relative=True)))
        self.raw = [replace(one, p=math.nan) for one in self._findings(relative=False)]
        """Tokens per second over those of the base run, which are not judged: the runs were not made in turns."""

    def _findings(self, *, relative: bool) -> Iterator[Finding]:
        """The speed-up of each entry over that in the base run, or the same of its speed."""
        new, old = (_logs(one, relative=relative) for one in (self.run, self.base))
        both = new.merge(old, on=TEXT, suffixes=("", "_base"))
        both["ratio"] = np.exp(both["log"] - both.log_base)
        for entry in self.entries:
            for task in (None, *self.tasks) if entry != self.run.base or not relative else ():
                found = of_cell(both, entry, task)
                if len(found):
                    yield Finding.of(entry, entry, task, found.ratio, found.unit_base)

    @property
    def decided(self) -> bool:
        """Whether anything is called, or there are prompts enough to say that nothing can be."""
        return self.prompts >= FEW or any(found.call in DISTINCT for found in self.findings)

    @property
    def notes(self) -> list[str]:
        """Where the two runs differ, and which texts are not the same."""
        if not self.prompts:
            runs = f"{self.run.run.name} and {self.base.run.name}"
            return [f"{runs} cannot be compared: they have no prompt in common that {self.run.base} wrote in both"]
        old, new = self.base.run, self.run.run
        return [*differences(old, new), *other_texts(old, new, self.common), *self._not_significant()]

    def _not_significant(self) -> Iterator[str]:
        """Intervals that exclude 1 by themselves, but not after correction for their number."""
        if not self.decided:
            yield TOO_FEW
            return
        close = [found for found in self.findings if found.call is RatioName.SAME and found.ratio.excludes(1)]
        if close:
            yield (
                f"{len(close)} of {len(self.findings)} intervals exclude 1 and are not called faster or "
                "slower: among that many, chance explains them"
            )

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "run": self.run.run.name,
            "base_run": self.base.run.name,
            "base": self.run.base,
            "prompts": self.prompts,
            "tasks": self.tasks,
            "decided": self.decided,
            "speed_ups": [found.as_dict() for found in self.findings],
            "tokens_per_second": [found.as_dict() for found in self.raw],
            "notes": self.notes,
        }


def _logs(summary: Summary, *, relative: bool) -> pd.DataFrame:
    """The mean logarithm, over repeats, of the speed-up or else the speed of each text."""
    table = summary.beside(summary.base) if relative else summary.texts.dropna(subset="speed")
    table = table.assign(log=np.log(table.ratio if relative else table.speed))
    return table.groupby(TEXT, sort=False, as_index=False).agg({"log": "mean", "task": "first", "unit": "first"})


def across(runs: Sequence[Run], plain: str | None = None) -> list[Between]:
    """Each run against the first, all findings judged together."""
    found = [Between(runs[0], run, plain) for run in runs[1:]]
    findings = iter(judged([one for between in found for one in between.findings]))
    for between in found:
        between.findings = [next(findings) for _ in between.findings]
    return found


# --- whether two runs are runs of the same thing: settings, model, machine, and the texts themselves ---


def facts(run: Run) -> dict[str, Any]:
    """The conditions of a run, by names in words: model, recipe, and where it was begun."""
    about, first = run.about, next(iter(run.about.sittings), {})
    git = first.get("git") or {}
    return {
        **{f"the model's {name}": value for name, value in about.model.items()},
        **{name: value for name, value in about.recipe.items() if name not in WHICH_TEXTS},
        **{f"the version of {name}": value for name, value in (first.get("versions") or {}).items()},
        **{f"the machine's {name}": value for name, value in (first.get("machine") or {}).items()},
        "the number of threads": first.get("threads"),
        "the commit": None if not git else (git.get("commit") or "") + (" with changes" if git.get("changed") else ""),
    }


def differences(old: Run, new: Run) -> Iterator[str]:
    """A sentence for each fact that both runs have and that differs, and for the entries that only one has. Entries
    that changed alike share one."""
    was, now = facts(old), facts(new)
    for name in was:
        if name in now and was[name] != now[name]:
            yield f"{name} was {_said(was[name])} and is {_said(now[name])}"
    changed: dict[tuple[str, str, str], list[str]] = {}
    before = {entry["name"]: entry for entry in old.about.entries}
    for entry in new.about.entries:
        for name, value in entry.items() if entry["name"] in before else ():
            earlier = before[entry["name"]].get(name, value)
            if name not in ("name", "ours") and earlier != value:
                changed.setdefault((name, _said(earlier), _said(value)), []).append(entry["name"])
    for (name, earlier, value), entries in changed.items():
        yield f"{', '.join(entries)}: {name} was {earlier} and is {value}"
    for one, other in ((new, old), (old, new)):
        if only := [entry for entry in one.entries if entry not in other.entries]:
            yield f"only in {one.name}: {', '.join(only)}"


def other_texts(old: Run, new: Run, common: pd.DataFrame) -> Iterator[str]:
    """Which entries wrote other texts than before, where they must be the same. ``common`` has the numbers of the texts
    that each wrote in both, ``text`` and ``text_base``. Of a text that was shorter in one run, only so much counts."""
    was, now = facts(old), facts(new)
    if any(was.get(name) != now.get(name) for name in SAME_TEXT):
        return
    for entry, pairs in common.groupby("entry", sort=False):
        partings = []
        for number, before in zip(pairs.text, pairs.text_base, strict=True):
            record, tokens = new.records[number], old.records[before].tokens
            place = first_difference(record.tokens, tokens)
            if place is not None and place < min(len(record.tokens), len(tokens)):
                partings.append((record.prompt, place + 1))
        if partings:
            prompt, place = partings[0]
            yield (
                f"{len(partings)} of {len(pairs)} texts of {entry} are not the ones it wrote before, though seed, "
                f"weights and settings are: the first is {prompt}, from token {place} on"
            )


def _said(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "not given" if value is None else str(value)
