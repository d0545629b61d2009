"""Seconds of a round by the number of nodes, measured directly: real rounds of a session with drafts of that size.

Sizes take turns in an order drawn anew for every repeat, so that a slow moment of the machine slows all of them alike;
the median of the repeats counts. The drafts are chains from the root with tokens drawn at random, which are hardly ever
accepted: what a round takes depends on its rows and not on what they say.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from paceline.context import Context, Ending, Ints
from paceline.drafters.base import Budget, Drafter
from paceline.engine.batch import Batch
from paceline.engine.loop import Session
from paceline.law import Sampling
from paceline.planning.base import Outcome, Planner, Room
from paceline.planning.curve import Reading
from paceline.planning.timing import Timing
from paceline.targets.base import SPARE_ROWS, Target, Want
from paceline.tree import DraftTree

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256)
"""Rounds that are measured, by the rows of each sequence: close together where drafts are small."""
SPARSE = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""The same for companies and lengths beyond the first, whose curves have the same bends."""
LEAST_REPEATS, MOST_REPEATS = 3, 9
DEAR = 6.0
"""A draft whose round takes so many plain rounds would have to bring as many tokens; larger ones are not measured,
unless a number of nodes is asked for."""
CHAINS = 3


class Filler(Drafter):
    """Drafts of exactly the size that it is asked for, and reads as many best tokens as it is told to."""

    name = "filler"

    def __init__(self, target: Target, top: int) -> None:
        self._vocabulary, self._top = target.vocab_size, top
        self._chains = min(CHAINS, target.vocab_size) if target.reach(0).trees else 1
        self._random = np.random.default_rng(0)
        self.needs = Want(top=top)

    def propose_one(self, state: Context, budget: Budget) -> DraftTree:
        parents = [node - self._chains if node >= self._chains else -1 for node in range(budget.nodes)]
        first = self._random.choice(self._vocabulary, size=min(self._chains, budget.nodes), replace=False)
        rest = self._random.integers(0, self._vocabulary, budget.nodes - len(first))
        return DraftTree.build([*first.tolist(), *rest.tolist()], parents, source=self.name)


@dataclass(eq=False)
class Turns(Planner):
    """Asks for every size in turn and notes what the rounds took, until it has seen enough."""

    filler: Filler
    sizes: Sequence[int]
    sequences: int
    seconds: float
    """For how long it goes on after so many ``repeats``, the reading of the prompt and the first pass among it."""
    cap: float | None
    repeats: int
    advance: Callable[[], None]
    taken: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    read: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    done: bool = False
    _order: list[int] = field(default_factory=list)
    _repeats: int = -1
    _size: int | None = None
    _random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    _started: float = field(default_factory=time.perf_counter)
    _first: float = 0.0

    def plan(self, rooms: Sequence[Room]) -> list[Budget]:
        """No draft as long as a sequence still reads its prompt: it would be part of what is timed."""
        self._size = self._next() if len(rooms) == self.sequences and not self.done else None
        return [Budget(self._size or 0, max(1, room.depth)) for room in rooms]

    def _next(self) -> int:
        if not self._order:
            self._order = list(self.sizes)[::-1]  # the first pass ascends, warms every shape and is not counted
            if self._repeats >= 0:
                self._random.shuffle(self._order)
        return self._order.pop()

    def review(self, outcomes: Sequence[Outcome]) -> None:
        if self._size is None or len(outcomes) < self.sequences:
            return
        took = max(outcome.seconds for outcome in outcomes)
        if self._repeats >= 0:
            reading = max(outcome.seconds_top for outcome in outcomes)
            self.taken[self._size].append(took - reading)
            self.read[self._size].append(reading)
        elif self._size == self.sizes[0]:
            self._first = took
        elif self.cap is not None and self._order and took > self.cap * self._first:
            self.sizes = self.sizes[: self.sizes.index(self._size) + 1]
            self._order = []
        if not self._order:
            self._repeated()

    def _repeated(self) -> None:
        self._repeats += 1
        self.advance()
        spent = time.perf_counter() - self._started
        enough = self._repeats >= self.repeats and spent * (1 + 1 / (self._repeats + 1)) > self.seconds
        self.done = enough or self._repeats >= MOST_REPEATS


def measured(
    target: Target,
    text: Ints,
    *,
    rows: Sequence[int],
    length: int,
    sequences: int = 1,
    top: int = 0,
    seconds: float = 5.0,
    cap: float | None = DEAR,
    repeats: int = LEAST_REPEATS,
    sampling: Sampling | None = None,
    advance: Callable[[], None] = lambda: None,
) -> tuple[list[Timing], list[Reading]]:
    """Rounds of ``sequences`` texts that hold about ``length`` tokens, each with so many ``rows``, and what reading the
    ``top`` best tokens took beside them. Sizes that take more than ``cap`` times a plain round are left out."""
    filler = Filler(target, top)
    sizes = sorted({count - 1 for count in rows})
    turns = Turns(filler, sizes, sequences, seconds, cap, repeats, advance)
    most = len(sizes) * (MOST_REPEATS + 1) * 4
    limit = target.context_length
    with Batch(target, at_once=None) as batch:
        prompt = np.resize(text, length)
        for number in range(sequences):  # of one prompt, which then is read once for all of them
            ending = Ending(max_new_tokens=most, context_length=limit)
            context = Context(prompt, sampling or Sampling(), ending, sample=number)
            held = target.open(len(prompt) + min(most, context.room) + max(rows) + SPARE_ROWS)
            batch.join(Session(context, target, held, filler, turns))
        sessions = batch.sessions
        try:
            while not turns.done and len(batch) == sequences:
                batch.step()
        finally:
            batch.close()
            for session in sessions:
                session.rows.close()
    counted = {size: took for size, took in turns.taken.items() if len(took) >= repeats}
    if not counted:
        raise ValueError(
            f"a text of {length} tokens leaves too little of the model's context to time rounds in; "
            "give smaller --lengths"
        )
    timings = [
        Timing(
            rows=sequences * (1 + size),
            seconds=statistics.median(counted[size]),
            length=length,
            sequences=sequences,
        )
        for size in sorted(counted)
    ]
    readings = [
        Reading(top, sequences * (1 + size), statistics.median(turns.read[size])) for size in sorted(counted) if top
    ]
    return timings, readings
