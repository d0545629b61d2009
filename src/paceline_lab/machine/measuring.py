"""One measuring of a model on this machine: seconds of rounds by their size, and texts with what drafts brought.

Calibration, advice, and advice on overlap ask it.

Seconds: real rounds of a batch with drafts of a size. Sizes race (`bench/race`): every pass has a round of each, and
the median of the passes counts. The drafts of `Filler` are chains from the root with random tokens, which are hardly
ever accepted: the seconds of a round depend on the number of its rows, not on their tokens. A real drafter can replace
it; its own seconds then count apart.

Texts: each is generated once with large drafts, from which rounds with smaller ones are simulated (`trails`), and once
with small drafts to check the simulation. Under the coupled rule the first text is plain decoding's own. The second run
follows it, so that both do the same work. Each method forgets before every prompt, or before each of the two passes if
it keeps what it learns, as in benchmarks.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from paceline.context import Context, Ending, Ints
from paceline.drafters.base import Budget, Drafter
from paceline.engine.batch import Batch
from paceline.engine.loop import Session
from paceline.engine.observe import Observed
from paceline.errors import InputError
from paceline.law import Sampling
from paceline.planning.base import Outcome, Planner, Room
from paceline.planning.curve import CurveReading
from paceline.planning.timing import Timing
from paceline.targets.base import SPARE_ROWS, Target, Want
from paceline.tree import DraftTree
from paceline.vocabulary import Vocabulary
from paceline_lab.bench.race import Clock, Contestant, Progress, Race, silent
from paceline_lab.bench.run.contestant import Job
from paceline_lab.bench.run.ours import DraftedBy, Ours
from paceline_lab.machine.trails import Trail

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256)
"""Rounds that are measured, by the rows of each sequence: close together where drafts are small."""
SPARSE = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""The same for batch sizes and lengths beyond the first, whose curves have the same bends."""
LEAST_REPEATS, MOST_REPEATS = 3, 9
EXPENSIVE = 6.0
"""The largest cost of a measured round, in plain rounds: its draft would have to bring as many tokens. ``max_nodes``
overrides it."""
CHAINS = 3


class Filler(Drafter):
    """Drafts of exactly the size that it is asked for; the ``top`` best tokens of every row are read for it."""

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


class RoundSeconds(NamedTuple):
    """Seconds of a round, of the reading of best tokens beside it, and of the drafting."""

    round: float
    reading: float
    drafting: float = 0.0

    @property
    def whole(self) -> float:
        """All of them together."""
        return sum(self)

    @classmethod
    def median(cls, rounds: Sequence[RoundSeconds]) -> RoundSeconds:
        """Of each of them."""
        return cls(*map(statistics.median, zip(*rounds, strict=True)))


class Rounds(Planner):
    """A batch of texts that is written round by round, with drafts of the size that is being timed."""

    def __init__(self, batch: Batch, sequences: int) -> None:
        self._batch, self._sequences = batch, sequences
        self._nodes = 0
        self._took: RoundSeconds | None = None

    def plan(self, rooms: Sequence[Room]) -> list[Budget]:
        """No draft while a sequence still reads its prompt, which would be part of what is timed."""
        nodes = self._nodes if len(rooms) == self._sequences else 0
        return [Budget(nodes, max(1, room.depth)) for room in rooms]

    def review(self, outcomes: Sequence[Outcome]) -> None:
        if len(outcomes) == self._sequences:
            seconds = max(outcome.seconds for outcome in outcomes)
            reading = max(outcome.seconds_top for outcome in outcomes)
            drafting = max(outcome.seconds_draft for outcome in outcomes)
            self._took = RoundSeconds(max(seconds - reading, 0.0), reading, drafting)

    @property
    def going(self) -> bool:
        """Whether all texts are being written still."""
        return len(self._batch) == self._sequences

    def step(self, nodes: int) -> RoundSeconds | None:
        """One round with drafts of that size; None where a text reads its prompt still, or has ended."""
        self._nodes, self._took = nodes, None
        self._batch.step()
        return self._took


class Size(Contestant[None, "RoundSeconds | None"]):
    """Rounds with drafts of one size."""

    def __init__(self, nodes: int, rounds: Rounds) -> None:
        self.name, self._nodes, self._rounds = str(nodes), nodes, rounds

    def do(self, task: None, clock: Clock) -> RoundSeconds | None:
        return self._rounds.step(self._nodes)


class Walk:
    """One text with drafts of one size, and what became of the drafts."""

    def __init__(self, prompt: Ints, advance: Callable[[], None]) -> None:
        self.tokens, self.prompt, self._advance = prompt, prompt, advance
        self.trails: list[Trail] = []
        self.seconds_draft = 0.0

    def note(self, seen: Observed) -> None:
        """A round of it."""
        if not seen.round.prefill:
            self.trails.append(Trail.of(seen.draft, seen.verdict.tokens))
            self.seconds_draft += seen.round.seconds_draft
            self._advance()

    @property
    def emitted(self) -> int:
        """Tokens that rounds emitted; the first token of a text comes with its prompt."""
        return sum(trail.emitted for trail in self.trails)


@dataclass(kw_only=True)
class Measuring:
    """Measures a model with drafters that fit it. Progress is in seconds."""

    target: Target
    vocabulary: Vocabulary | None = None
    sampling: Sampling = field(default_factory=Sampling)
    max_new_tokens: int = 128
    seconds: float = math.inf
    """How long all of it may take, as progress shows it."""
    progress: Progress = silent
    started: float = field(default_factory=lambda: time.perf_counter())

    @property
    def passed(self) -> float:
        """Seconds since the beginning."""
        return time.perf_counter() - self.started

    def say(self, doing: str) -> None:
        """Report progress: the seconds that have passed, of those that there are, if they are known."""
        whole = round(self.seconds) if self.seconds < math.inf else 0
        self.progress(doing, min(round(self.passed), whole), whole)

    def rounds(
        self,
        drafter: Drafter,
        text: Ints,
        sizes: Iterable[int],
        *,
        length: int,
        sequences: int = 1,
        seconds: float = 5.0,
        cap: float | None = EXPENSIVE,
        repeats: int = LEAST_REPEATS,
        doing: str = "",
    ) -> dict[int, RoundSeconds]:
        """Rounds of ``sequences`` texts that hold about ``length`` tokens, by the size of each draft. After ``repeats``
        passes it goes on while the ``seconds`` last. Sizes of more than ``cap`` times the seconds of a plain round are
        left out."""
        started = time.monotonic()
        wanted: Sequence[int] = sorted(set(sizes))
        taken: dict[int, list[RoundSeconds]] = defaultdict(list)
        with _rounds(self.target, np.resize(text, length), sequences, wanted, drafter, self.sampling) as rounds:
            wanted = _warmed(rounds, wanted, cap)
            race = Race(contestants=[Size(size, rounds) for size in wanted], tidy=False)
            left = seconds - (time.monotonic() - started)
            for heat in race.run([None], passes=MOST_REPEATS, least=repeats, seconds=left):
                for name, lap in heat.laps.items():
                    if lap.result is not None:
                        taken[int(name)].append(lap.result)
                self.say(doing)
                if not rounds.going:
                    break
        counted = {size: RoundSeconds.median(taken[size]) for size in wanted if len(taken[size]) >= repeats}
        if not counted:
            raise InputError(
                f"a text of {length} tokens leaves too little of the model's context to time rounds in; "
                "give smaller --length"
            )
        return counted

    def timings(
        self, text: Ints, rows: Sequence[int], *, top: int = 0, sequences: int = 1, length: int, **how: Any
    ) -> tuple[list[Timing], list[CurveReading]]:
        """Rounds with ``rows`` rows of each sequence, and the seconds of reading the ``top`` best tokens beside them.
        The other arguments are those of `rounds`."""
        drafter, sizes = Filler(self.target, top), [count - 1 for count in rows]
        found = self.rounds(drafter, text, sizes, sequences=sequences, length=length, **how)
        timings = [
            Timing(rows=sequences * (1 + size), seconds=took.round, length=length, sequences=sequences)
            for size, took in found.items()
        ]
        reading = [CurveReading(top, sequences * (1 + size), took.reading) for size, took in found.items() if top]
        return timings, reading

    def walk(
        self, drafter: Drafter, prompts: Sequence[Ints], nodes: int, seconds: float, doing: str = ""
    ) -> list[Walk]:
        """Texts with drafts of up to ``nodes`` nodes. Each may take its share of the time that is left, and has a round
        at least."""
        drafter.reset()
        walks, ends = list[Walk](), time.perf_counter() + seconds
        for number, prompt in enumerate(prompts):
            share = (ends - time.perf_counter()) / (len(prompts) - number)
            walks.append(self._text(drafter, prompt, nodes, doing, until=time.perf_counter() + share))
        return walks

    def follow(
        self, drafter: Drafter, walks: Sequence[Walk], nodes: int, seconds: float, doing: str = ""
    ) -> list[Walk]:
        """The same texts again with another size, as many as there is time for, and one at least. A text counts whole:
        part of one would have another end."""
        drafter.reset()
        again, ends = list[Walk](), time.perf_counter() + seconds
        for walk in walks:
            started = time.perf_counter()
            again.append(self._text(drafter, walk.prompt, nodes, doing, script=walk.tokens))
            if 2 * time.perf_counter() - started > ends:
                break
        return again

    def _text(
        self,
        drafter: Drafter,
        prompt: Ints,
        nodes: int,
        doing: str,
        *,
        until: float | None = None,
        script: Ints | None = None,
    ) -> Walk:
        walk = Walk(prompt, partial(self.say, doing))
        if not drafter.keeps:
            drafter.reset()
        how = DraftedBy(
            vocabulary=self.vocabulary,
            planner=f"fixed:{nodes}",
            make=lambda *_: drafter,
            watch=lambda _, seen: walk.note(seen),
        )
        job = Job(
            prompt=prompt,
            sampling=self.sampling,
            max_new_tokens=self.max_new_tokens if script is None else len(script) - len(prompt),
            eos=self.target.eos,
            script=script,
            until=until,
        )
        written = Ours(drafter.spec or drafter.name, self.target, how).write(job, time.perf_counter)
        walk.tokens = np.concatenate([prompt, np.asarray(written.tokens, np.int64)])
        return walk


@contextmanager
def _rounds(
    target: Target, prompt: Ints, sequences: int, sizes: Sequence[int], drafter: Drafter, sampling: Sampling
) -> Iterator[Rounds]:
    """Texts that have read their prompt; it is the same one, which then is read once for all of them."""
    most = len(sizes) * (MOST_REPEATS + 1) * 4
    ending = Ending(max_new_tokens=most, context_length=target.context_length)
    sessions = list[Session]()
    with Batch(target, at_once=None) as batch:
        rounds = Rounds(batch, sequences)
        try:
            for number in range(sequences):
                context = Context(prompt, sampling, ending, sample=number)
                held = target.open(len(prompt) + min(most, context.room) + max(sizes) + 1 + SPARE_ROWS)
                sessions.append(Session(context, target, held, drafter, rounds))
                batch.join(sessions[-1])
            while rounds.going and rounds.step(0) is None:
                pass
            yield rounds
        finally:
            batch.close()
            for session in sessions:
                session.rows.close()


def _warmed(rounds: Rounds, sizes: Sequence[int], cap: float | None) -> Sequence[int]:
    """The sizes to measure, after a round of each that warms its shape and is not counted: up to the first that takes
    more than ``cap`` times the smallest."""
    smallest = 0.0
    for place, size in enumerate(sizes):
        took = rounds.step(size)
        if took is None:
            break
        if place == 0:
            smallest = took.whole
        elif cap is not None and took.whole > cap * smallest:
            return sizes[: place + 1]
    return sizes
