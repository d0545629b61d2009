"""Steps that take turns in a race, and the table of their medians."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Any, Self, TypeAlias

from paceline.targets.base import Request, Rows, Target
from paceline.tree import Ints
from paceline_lab.bench.race import Clock, Contestant, Progress, Race, silent

Facts: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class TimedLine:
    """A line of a table of times."""

    facts: Facts
    """The conditions of the timing, by column."""
    milliseconds: Mapping[str, float]
    """Medians, by part."""
    figures: Facts = field(default_factory=dict)
    """Further results."""

    def about(self, **facts: Any) -> Self:
        """The same line of a larger table, which needs more facts."""
        return replace(self, facts={**facts, **self.facts})

    def found(self, **figures: Any) -> Self:
        """The same with more figures."""
        return replace(self, figures={**self.figures, **figures})

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        whole = asdict(self)
        return {**whole["facts"], "milliseconds": whole["milliseconds"], **whole["figures"]}


class TimedStep(Contestant[None, Mapping[str, float]]):
    """Work that is done again and again. A lap has the seconds of its parts."""

    def __init__(self, **facts: Any) -> None:
        self.facts, self.name = facts, " ".join(map(str, facts.values()))

    @abstractmethod
    def do(self, task: None, clock: Clock) -> Mapping[str, float]: ...


class TimedAct(TimedStep):
    """One act, timed whole, until ``settle`` returns."""

    def __init__(
        self, part: str, act: Callable[[], object], settle: Callable[[], None] = lambda: None, **facts: Any
    ) -> None:
        super().__init__(**facts)
        self._part, self._act, self._settle = part, act, settle

    def do(self, task: None, clock: Clock) -> Mapping[str, float]:
        began = clock()
        self._act()
        self._settle()
        return {self._part: clock() - began}


def medians(
    steps: Sequence[TimedStep], passes: int, warm: int = 1, progress: Progress = silent, doing: str = ""
) -> Iterator[TimedLine]:
    """``passes`` passes of all steps in turns, after ``warm`` others that are not counted."""
    race = Race(contestants=steps, tidy=False, progress=progress, doing=doing)
    heats = list(race.run([None], passes=warm + passes))[warm:]
    for step in steps:
        laps = [heat.laps[step.name].result for heat in heats]
        yield TimedLine(step.facts, {part: 1000 * median(lap[part] for lap in laps) for part in laps[0]})


def read_text(target: Target, tokens: Ints, room: int) -> Rows:
    """Rows that hold a text, and have room for ``room`` tokens more."""
    rows = target.open(len(tokens) + room)
    size = target.prefill_size(len(tokens))
    for start in range(0, len(tokens), size):
        piece = tokens[start : start + size]
        target.score([Request.of_prompt(rows, piece)])
        rows.keep(range(len(piece)))
    return rows
