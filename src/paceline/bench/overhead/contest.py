"""Sides that write the same texts in turns, and how fast one is against another.

A call is timed whole, from the prompt's ids to the finished ids: reading the prompt counts, and so does whatever a side
sets up for a text. Every text is written once by every side before anything is timed, so that what is made once for a
shape of work is made by then; rounds are counted in that pass. Then each turn has every side write one text, one
right after the other, in an order that changes from turn to turn. Ratios are taken within a turn, where a machine that
slows down slows all sides.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

from paceline.bench.comparison import Parting, Progress, first_parting
from paceline.bench.rotation import order
from paceline.bench.statistics import Estimate, median_of, repeated_share
from paceline.context import Ints

Write = Callable[[Ints], list[int]]
"""From the ids of a prompt to the ids written after it."""


@dataclass(frozen=True)
class Trial:
    """One text, and how many forwards of the model that writes brought it: each brought a token at least, so where a
    prompt is read by a forward that brings none, that one is not among them."""

    tokens: list[int]
    rounds: int


@dataclass(frozen=True)
class Side:
    """One way to write. ``open``, which is not timed, gives a writer that holds nothing of the texts before; ``trial``
    writes untimed and counts."""

    name: str
    open: Callable[[], Write]
    trial: Callable[[Ints], Trial]


@dataclass(frozen=True)
class Call:
    """One text and what it took."""

    tokens: list[int]
    seconds: float

    @property
    def speed(self) -> float:
        """Tokens per second."""
        return len(self.tokens) / self.seconds


@dataclass(frozen=True)
class Turn:
    """One prompt, written by every side; calls stand in the order they were made."""

    prompt: int
    calls: dict[str, Call]

    def ratio(self, side: str, base: str) -> float:
        return self.calls[side].speed / self.calls[base].speed


@dataclass
class Contest:
    """One method as several sides have it, and the turns they took."""

    method: str
    sides: Sequence[Side]
    turns: list[Turn] = field(default_factory=list)
    trials: dict[str, list[Trial]] = field(default_factory=dict)
    """Of each side, one for every prompt."""

    def ratio(self, side: str, base: str) -> Estimate:
        """The median over all turns of a side's tokens per second over the base's."""
        return median_of([turn.ratio(side, base) for turn in self.turns])

    def ratio_of_totals(self, side: str, base: str) -> float:
        """The same from all tokens and all seconds, where slow texts weigh more."""
        return self._total(side) / self._total(base)

    def _total(self, side: str) -> float:
        calls = self.calls(side)
        return sum(len(call.tokens) for call in calls) / sum(call.seconds for call in calls)

    def calls(self, side: str) -> list[Call]:
        return [turn.calls[side] for turn in self.turns]

    def speed(self, side: str) -> float:
        """The median of tokens per second."""
        return median(call.speed for call in self.calls(side))

    def tokens_per_round(self, side: str) -> float:
        """Tokens over rounds, all prompts together: sides that draft alike agree."""
        trials = self.trials[side]
        return sum(len(trial.tokens) for trial in trials) / sum(trial.rounds for trial in trials)

    def parting(self, side: str, base: str) -> Parting | None:
        """The first place where a text of a side is not the base's; None where all are the same."""
        found = ((turn, first_parting([turn.calls[side]], [turn.calls[base]])) for turn in self.turns)
        return next((Parting(turn.prompt, parting.token) for turn, parting in found if parting is not None), None)

    def repetition(self, base: str) -> float:
        """The share of repeated 8-grams in the base's texts."""
        return repeated_share([call.tokens for call in self.calls(base)])

    @property
    def spread(self) -> float | None:
        """The largest ratio of the fastest to the slowest time that a side took for the same text: how far the machine
        can be trusted. None where every text was timed once."""
        times: dict[tuple[str, int], list[float]] = {}
        for turn in self.turns:
            for side, call in turn.calls.items():
                times.setdefault((side, turn.prompt), []).append(call.seconds)
        if all(len(seconds) < 2 for seconds in times.values()):
            return None
        return max(max(seconds) / min(seconds) for seconds in times.values())


def run(
    contests: Sequence[Contest],
    prompts: Sequence[Ints],
    *,
    passes: int,
    clock: Callable[[], float] = time.perf_counter,
    progress: Progress = lambda *_: None,
) -> None:
    """Have every prompt written ``passes`` times by every side of every contest, and once before that untimed."""
    total = len(prompts) * (1 + passes) * sum(len(contest.sides) for contest in contests)
    for done, doing in enumerate(_steps(contests, prompts, passes, clock)):
        progress(doing, done, total)


def _steps(
    contests: Sequence[Contest], prompts: Sequence[Ints], passes: int, clock: Callable[[], float]
) -> Iterator[str]:
    """Does the writing; says what is next before each text."""
    for prompt, contest in itertools.product(prompts, contests):
        for side in contest.sides:
            yield f"{contest.method}, {side.name}, warming up"
            contest.trials.setdefault(side.name, []).append(side.trial(prompt))
    numbered = itertools.product(range(passes), enumerate(prompts))
    for (turn, (number, prompt)), contest in itertools.product(numbered, contests):
        calls: dict[str, Call] = {}
        for side in order(contest.sides, turn, number):
            yield f"{contest.method}, {side.name}"
            write = side.open()
            started = clock()
            tokens = write(prompt)
            calls[side.name] = Call(tokens, clock() - started)
        contest.turns.append(Turn(number, calls))
