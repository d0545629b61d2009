"""What a study is: what it needs to have calibrated, the runs that it makes, and how it reads them.

A study repeats a table or a figure of a paper on this machine. Its runs are runs of ``paceline bench run``, written and
kept as those are, so that a study which was interrupted goes on. Which way the paper's numbers went is written down
here; which way ours went is computed from the runs, and both are told.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from paceline.bench.run.record import Record
from paceline.bench.statistics import Estimate, difference
from paceline.bench.summary import Figures, Summary, of_cell
from paceline.planning.timing import Seconds
from paceline.vocabulary import Vocabulary

LEVEL = 0.05
"""Ratios this near to 1 count as level, where a paper says that nothing changes."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all runs of a study have in common."""

    method: str
    """The method that is looked at."""
    sizes: tuple[int, ...]
    """Draft sizes of those studies that try many."""
    prompts: int
    """How many prompts there are in all."""
    tokens: int
    dtype: str
    """The model's own, or the one asked for."""
    vocabulary: Vocabulary | None = None
    context_length: int | None = None
    texts: Callable[[], str] = lambda: ""
    """Running text, for studies that need long prompts."""


@dataclass(frozen=True, kw_only=True)
class Wish:
    """A calibration that a study needs."""

    label: str
    method: str
    threads: int | None = None
    dtype: str | None = None
    prompts: int | None = None


@dataclass(frozen=True, kw_only=True)
class Calibrated:
    """What came of one. ``tokens`` and ``seconds`` are of a round, by ``sizes``."""

    nodes: int
    sizes: list[int]
    tokens: list[float]
    seconds: list[Seconds]
    took: float
    """Seconds that it took."""

    @property
    def tokens_per_second(self) -> float:
        """Expected at the best size."""
        place = self.sizes.index(self.nodes) if self.nodes in self.sizes else None
        if place is not None:
            return self.tokens[place] / self.seconds[place]
        return max(t / s for t, s in zip(self.tokens, self.seconds, strict=True))


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A run of a study: options of ``paceline bench run``, where they are not those of the whole study."""

    name: str
    methods: tuple[str, ...]
    options: Mapping[str, str | None] = field(default_factory=dict)
    """Flags without their dashes; None for one that takes no value."""
    prompts: tuple[tuple[str, str], ...] = ()
    """Texts to go on from instead of the suite's: the cell's name, and the text."""
    nodes: bool = False
    """Whether to count, of every node that is sent, what its score was and whether it was accepted."""


class Way(StrEnum):
    """How a ratio stands to 1."""

    ABOVE = "above"
    BELOW = "below"
    EVEN = "level"


@dataclass(frozen=True, kw_only=True)
class Sign:
    """Something that the paper's numbers say, and what ours say to it."""

    claim: str
    paper: str
    """The paper's numbers."""
    ours: str
    """The numbers that were measured here."""
    wants: Way
    ratio: Estimate
    """The measured one: the claim is that it lies above 1, below, or near it."""

    @property
    def agrees(self) -> bool | None:
        """Whether ours went the same way; None where nothing was measured."""
        if math.isnan(self.ratio.value):
            return None
        return self.wants is way(self.ratio.value, even=self.wants is Way.EVEN)

    @property
    def told_apart(self) -> bool:
        """Whether chance alone would hardly show this; with one prompt nobody can tell."""
        return self.wants is Way.EVEN or self.ratio.excludes(1)

    @property
    def sentence(self) -> str:
        """Both ways in one sentence."""
        if self.agrees is None:
            return f"{self.claim}: in the paper {self.paper}; here it was not measured"
        verdict = "as in the paper" if self.agrees else "not as in the paper"
        unsure = " (chance alone could show this)" if self.ratio.bounded else " (without an interval)"
        doubt = "" if self.told_apart else unsure
        return f"{self.claim}: in the paper {self.paper}; here {self.ours}, {verdict}{doubt}"

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self) | {
            "wants": self.wants.value,
            "agrees": self.agrees,
            "told_apart": self.told_apart,
            "sentence": self.sentence,
        }


def way(ratio: float, *, even: bool) -> Way:
    """Above or below 1; with ``even`` also neither."""
    if even and abs(ratio - 1) <= LEVEL:
        return Way.EVEN
    return Way.ABOVE if ratio > 1 else Way.BELOW


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A line of a picture: points, and which entry it is of."""

    name: str
    points: tuple[tuple[float, float], ...]
    number: int = 1


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """A picture of a study's page."""

    title: str
    words: tuple[str, str]
    """What the axes are: across, and up."""
    lines: tuple[Drawn, ...]
    log: bool = False
    """Whether places across are far apart and drawn by their logarithm."""


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What a study found: a table, the signs, and what must be known of it."""

    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    signs: list[Sign]
    notes: list[str] = field(default_factory=list)
    drawings: list[Drawing] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a study has to read."""

    setting: Setting
    calibrated: Mapping[str, Calibrated]
    runs: Mapping[str, Summary]
    nodes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    """Stages and calibrations that could not be made, and why."""


Calibrations = Mapping[str, Calibrated]


@dataclass(frozen=True, kw_only=True)
class Study:
    """A table or figure of the UniSpec paper."""

    name: str
    source: str
    """Which one."""
    summary: str
    read: Callable[[Found], Findings]
    stages: Callable[[Setting, Calibrations], Sequence[Stage]] = lambda setting, calibrated: ()
    wishes: Callable[[Setting], Sequence[Wish]] = lambda setting: ()


# --- numbers that several studies need ---


def speed_up(summary: Summary, entry: str, task: str | None = None) -> Estimate | None:
    figures = summary.figures(entry, task)
    return None if figures is None else figures.speed_up


def tokens_per_round(summary: Summary, entry: str) -> float:
    figures = summary.figures(entry)
    return (figures.tokens_per_round if figures else None) or 0.0


def ratio(summary: Summary, entry: str, other: str) -> Estimate:
    """The speed of an entry over another's, pair by pair."""
    pairs = summary.pairs(entry, other)
    return difference(pairs.ratio, pairs.unit).ratio if len(pairs) else Estimate(float("nan"))


def rounds_ratio(summary: Summary, entry: str, other: str, of: Callable[[Record], float] | None = None) -> Estimate:
    """What a text says of its rounds, an entry's over another's, pair by pair: tokens per round, unless told."""
    of = of or of_tokens
    records, pairs = summary.run.records, summary.pairs(entry, other).dropna(subset=["rounds", "rounds_base"])
    both = zip(pairs.text, pairs.text_base, pairs.unit, strict=True)
    told = [(of(records[one]), of(records[two]), unit) for one, two, unit in both]
    told = [row for row in told if row[0] > 0 and row[1] > 0]
    if not told:
        return Estimate(float("nan"))
    return difference([one / two for one, two, _ in told], [unit for _, _, unit in told]).ratio


def of_tokens(record: Record) -> float:
    """Tokens per round of a text."""
    return len(record.tokens) / max(len((record.rounds or {}).get("emitted", ())), 1)


def of_seconds(record: Record) -> float:
    """The median round of a text, for machines stall."""
    columns = [column for name, column in (record.rounds or {}).items() if name.startswith("seconds_")]
    return float(np.median(np.sum(columns, axis=0)))


def seconds_per_round(summary: Summary, entry: str) -> float:
    """The median, for machines stall."""
    took = of_cell(summary.rounds, entry).seconds
    return float(took.median()) if len(took) else 0.0


def told(found: Estimate | None) -> str:
    """A speed-up with its interval."""
    if found is None:
        return ""
    return f"{found.value:.2f}" + (f" [{found.low:.2f}, {found.high:.2f}]" if found.bounded else "")


def against(summary: Summary, entry: str, other: str) -> str:
    """Two speed-ups, as a sign tells them."""
    one, two = speed_up(summary, entry), speed_up(summary, other)
    return f"{one.value:.2f}x against {two.value:.2f}x" if one and two else "untold"


HEAD = ("", "x plain [95%]", "tokens/round", "tokens/s", "text")


def row(summary: Summary, entry: str, name: str | None = None) -> tuple[str, ...]:
    """The figures of an entry, under `HEAD`."""
    figures = summary.figures(entry)
    if figures is None:
        return (name or entry, "", "", "", "")
    rate = "" if figures.tokens_per_second is None else f"{figures.tokens_per_second:.1f}"
    return name or entry, told(figures.speed_up), f"{tokens_per_round(summary, entry):.2f}", rate, texts(figures)


def rows_of(summary: Summary, names: Mapping[str, str]) -> list[tuple[str, ...]]:
    """The figures of all entries, some of which are told by names of the study's own."""
    return [row(summary, entry, names.get(entry)) for entry in summary.entries]


def rows_of_stages(runs: Mapping[str, Summary]) -> list[tuple[str, ...]]:
    """The figures of all that drafts, in every run."""
    return [row(run, entry, f"{name}  {entry}") for name, run in runs.items() for entry in run.entries[1:]]


def points(places: Sequence[float], values: Sequence[float]) -> tuple[tuple[float, float], ...]:
    """Of a line of a picture."""
    return tuple((float(place), float(value)) for place, value in zip(places, values, strict=True))


def speed_ups(entries: Sequence[str], places: Sequence[tuple[float, Summary, str | None]]) -> tuple[Drawn, ...]:
    """A line for each entry: its speed-up in every place, each of which is a run, or a task of one."""
    return tuple(
        Drawn(
            name=entry,
            number=number,
            points=tuple((x, one.value) for x, run, task in places if (one := speed_up(run, entry, task)) is not None),
        )
        for number, entry in enumerate(entries)
    )


def texts(figures: Figures) -> str:
    return ", ".join(f"{count} {verdict}" for verdict, count in figures.verdicts.items())
