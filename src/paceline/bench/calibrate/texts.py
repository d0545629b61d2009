"""Runs of a method on calibration prompts: a deep one that is told again for smaller sizes, and one to hold against it.

Under the coupled rule the text of the deep run is plain decoding's own, so it needs no run of its own; the other run
follows it, so that both do the same work. Each method forgets before every prompt, as it does in benchmarks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from paceline.bench.calibrate.hindsight import Trail
from paceline.context import Context, Ending, Ints
from paceline.drafters.base import Drafter
from paceline.engine.follow import FollowingDice
from paceline.engine.loop import Session
from paceline.engine.serial import run
from paceline.law import Dice, KeyedDice, Sampling
from paceline.planning.base import Outcome
from paceline.planning.fixed import Fixed
from paceline.targets.base import SPARE_ROWS, Target


@dataclass(frozen=True, eq=False)
class Walk:
    """One text of a run."""

    tokens: Ints
    """All of it, prompt included."""
    prompt_length: int
    trails: tuple[Trail, ...]
    seconds_draft: float

    @property
    def emitted(self) -> int:
        return len(self.tokens) - self.prompt_length


@dataclass(eq=False)
class Witness(Fixed):
    """Drafts of one size, of which it remembers what became."""

    nodes: int
    trails: list[Trail] = field(default_factory=list)
    seconds_draft: float = 0.0

    def __post_init__(self) -> None:
        super().__init__(self.nodes)

    def review(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            self.trails.append(Trail.of(outcome.sent, outcome.tokens))
            self.seconds_draft += outcome.seconds_draft


@dataclass(frozen=True, kw_only=True)
class Course:
    """How texts are written."""

    target: Target
    drafter: Drafter
    sampling: Sampling
    max_new_tokens: int
    advance: Callable[[], None] = lambda: None

    def walk(self, prompts: Sequence[Ints], nodes: int, seconds: float) -> list[Walk]:
        """Texts with drafts of up to ``nodes`` nodes. Each may take its share of the time that is left, and has a round
        at least."""
        walks, ends = list[Walk](), time.perf_counter() + seconds
        for number, prompt in enumerate(prompts):
            share = (ends - time.perf_counter()) / (len(prompts) - number)
            walks.append(self._one(prompt, nodes, time.perf_counter() + share))
        return walks

    def follow(self, walks: Sequence[Walk], nodes: int, seconds: float) -> list[Walk]:
        """The same texts again with another size, as many as there is time for, and one at least. A text counts whole:
        part of one would have another end."""
        again, ends = list[Walk](), time.perf_counter() + seconds
        for walk in walks:
            started = time.perf_counter()
            again.append(self._one(walk.tokens[: walk.prompt_length], nodes, None, walk.tokens))
            if 2 * time.perf_counter() - started > ends:
                break
        return again

    def _one(self, prompt: Ints, nodes: int, ends: float | None, script: Ints | None = None) -> Walk:
        self.drafter.reset()
        witness = Witness(nodes)
        limit = self.max_new_tokens if script is None else len(script) - len(prompt)
        ending = Ending(max_new_tokens=limit, eos=self.target.eos, context_length=self.target.context_length)
        context = Context(prompt, self.sampling, ending)
        dice: Dice = KeyedDice(context.noise)
        session = Session(
            context,
            self.target,
            self.target.open(len(context) + context.room + SPARE_ROWS),
            self.drafter,
            witness,
            dice=dice if script is None else FollowingDice(dice, script),
        )
        try:
            rounds = 0
            for _ in run(session):
                if ends is not None and len(witness.trails) > rounds:
                    rounds = len(witness.trails)
                    self.advance()
                    if time.perf_counter() > ends:
                        break
        finally:
            session.rows.close()
        written = context.prompt_length + sum(trail.emitted for trail in witness.trails)
        return Walk(
            context.tokens[:written].copy(), context.prompt_length, tuple(witness.trails), witness.seconds_draft
        )
