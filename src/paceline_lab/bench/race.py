"""The race engine: contestants do the same tasks in turns, and each is timed.

A *heat* is one task, done by every contestant, one right after another. A machine that slows down slows all of them,
so ratios are taken within a heat. Each contestant runs with the caches that the one before has filled, so the order
changes from heat to heat (`order`).

Before a contestant is timed, the device has finished the work of the one before, and Python's garbage is collected. The
command line, the calibration of drafts and the bench all measure with this engine. They define the tasks and results.
"""

from __future__ import annotations

import gc
import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")
Done = TypeVar("Done", covariant=True)
Member = TypeVar("Member")

Clock = Callable[[], float]
"""Seconds since some moment."""
Progress = Callable[[str, int, int], None]
"""Called with the current work, the amount done, and the whole amount; 0 if that is not known."""


def silent(doing: str, done: int, total: int) -> None:
    """Ignores progress."""


class Contestant(ABC, Generic[Task, Result]):
    """One way to do a task."""

    name: str
    """Its name in tables."""

    def begin(self) -> None:
        """Prepare for a new task, untimed: forget what earlier tasks taught, if keeping it were unfair."""

    @abstractmethod
    def do(self, task: Task, clock: Clock) -> Result:
        """Do the task. All of this is timed; a contestant that times parts of it reads the same ``clock``."""


class Gauge(Protocol):
    """A quantity besides time that is measured during a task."""

    def start(self) -> None: ...
    def stop(self, seconds: float) -> float | None: ...


@dataclass(frozen=True)
class Lap(Generic[Done]):
    """One contestant's part of a heat."""

    result: Done
    seconds: float
    place: int = 0
    """0 for the contestant that went first."""
    gauges: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Heat(Generic[Done]):
    """One task, done by every contestant. ``task`` is the number of the task, ``turn`` that of the pass over all tasks.
    ``laps`` are in the order in which the contestants went, by their names."""

    task: int
    turn: int
    laps: Mapping[str, Lap[Done]]


def order(members: Sequence[Member], turn: int, task: int) -> list[Member]:
    """Balanced order (Williams Latin square).

    Over as many turns as there are members each goes first once with every task; likewise over as many tasks in a turn.
    Over as many heats, or twice as many where the number of members is odd, each comes directly after every other one
    equally often.
    """
    count, row = len(members), turn + task
    steps = [(place + 1) // 2 * (1 if place % 2 else -1) for place in range(count)]  # 0, 1, -1, 2, -2 ...
    if count % 2 and row // count % 2:
        steps = [step - steps[-1] for step in reversed(steps)]
    return [members[(row + step) % count] for step in steps]


@dataclass(kw_only=True)
class Race(Generic[Task, Result]):
    """Contestants, and how to time them."""

    contestants: Sequence[Contestant[Task, Result]]
    clock: Clock = time.perf_counter
    settle: Callable[[], None] = lambda: None
    """Waits until the device has done its work."""
    gauges: Mapping[str, Gauge] = field(default_factory=dict)
    tidy: bool = True
    """Whether garbage is collected before every lap; not for tasks of milliseconds, which it would slow down."""
    progress: Progress = silent
    doing: str = ""
    """Stands before the contestant's name in the progress."""
    done: int = 0
    """Laps so far, warm-up included."""
    total: int = 0

    def heat(self, task: Task, turn: int, number: int) -> Heat[Result]:
        """Have every contestant do a task. ``turn`` and ``number`` choose the order."""
        laps: dict[str, Lap[Result]] = {}
        for place, contestant in enumerate(order(self.contestants, turn, number)):
            self._tell(contestant)
            self._ready()
            started = self.clock()
            result = contestant.do(task, self.clock)
            self.settle()
            seconds = self.clock() - started
            readings = {name: gauge.stop(seconds) for name, gauge in self.gauges.items()}
            laps[contestant.name] = Lap(result, seconds, place, readings)
            self.done += 1
        return Heat(number, turn, laps)

    def run(
        self,
        tasks: Sequence[Task],
        *,
        passes: int,
        least: int = 1,
        seconds: float = float("inf"),
        warm_up: Sequence[Task] = (),
    ) -> Iterator[Heat[Result]]:
        """Every task by every contestant, ``passes`` times, after the tasks of the ``warm_up``, which load every weight
        and are not reported. Leaving the iterator stops the race; the heats so far count.

        After ``least`` passes none is begun that would end more than ``seconds`` after the beginning. The first pass
        leaves out tasks that would, but for one, and is then the only one.
        """
        end = time.monotonic() + seconds
        self.total = len(self.contestants) * (len(warm_up) + passes * len(tasks))
        try:
            self._warm_up(warm_up)
            started = time.monotonic()
            for turn, (number, task) in itertools.product(range(passes), enumerate(tasks)):
                heats, now = turn * len(tasks) + number, time.monotonic()
                each = (now - started) / max(1, heats)
                first = turn == 0 and number > 0
                if (first and now + each > end) or (number == 0 and turn >= least and now + each * len(tasks) > end):
                    return
                for contestant in self.contestants:
                    contestant.begin()
                yield self.heat(task, turn, number)
        finally:
            self.end()

    def end(self) -> None:
        """Have garbage collections look at all objects again."""
        if self.tidy:
            gc.unfreeze()

    def _warm_up(self, tasks: Sequence[Task]) -> None:
        for task, contestant in itertools.product(tasks, self.contestants):
            self._tell(contestant, ", warming up")
            contestant.begin()
            contestant.do(task, self.clock)
            self.done += 1

    def _tell(self, contestant: Contestant[Task, Result], more: str = "") -> None:
        self.progress(f"{self.doing}{contestant.name}{more}", self.done, self.total)

    def _ready(self) -> None:
        """Prepare a lap: collect garbage now and exempt the objects that are left, so that collections during the lap
        are short; wait for the device; start the gauges."""
        if self.tidy:
            gc.collect()
            gc.freeze()
        self.settle()
        for gauge in self.gauges.values():
            gauge.start()
