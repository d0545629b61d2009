"""Texts of a method on calibration prompts: written once with large drafts, which tell of smaller ones too, and once
with small drafts to hold against that.

Under the coupled rule the first text is plain decoding's own, so that needs no run of its own; the second run follows
it, so that both do the same work. Each method forgets before every prompt, as it does in benchmarks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.bench.calibrate.hindsight import Trail
from paceline.bench.run.contestant import Job
from paceline.bench.run.ours import Drafting, Ours
from paceline.context import Ints
from paceline.drafters.base import Drafter
from paceline.law import Sampling
from paceline.planning.base import Outcome
from paceline.planning.fixed import Fixed
from paceline.targets.base import Target


class Walk(Fixed):
    """One text with drafts of one size: its planner, which remembers what became of the drafts."""

    def __init__(self, nodes: int, prompt: Ints, advance: Callable[[], None]) -> None:
        super().__init__(nodes)
        self.tokens, self.prompt, self._advance = prompt, prompt, advance
        self.trails: list[Trail] = []
        self.seconds_draft = 0.0

    def review(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            self.trails.append(Trail.of(outcome.sent, outcome.tokens))
            self.seconds_draft += outcome.seconds_draft
        self._advance()

    @property
    def emitted(self) -> int:
        """Tokens that rounds emitted; the first token of a text comes with its prompt."""
        return sum(trail.emitted for trail in self.trails)


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
            walks.append(self._one(prompt, nodes, self.max_new_tokens, until=time.perf_counter() + share))
        return walks

    def follow(self, walks: Sequence[Walk], nodes: int, seconds: float) -> list[Walk]:
        """The same texts again with another size, as many as there is time for, and one at least. A text counts whole:
        part of one would have another end."""
        again, ends = list[Walk](), time.perf_counter() + seconds
        for walk in walks:
            started = time.perf_counter()
            again.append(self._one(walk.prompt, nodes, len(walk.tokens) - len(walk.prompt), script=walk.tokens))
            if 2 * time.perf_counter() - started > ends:
                break
        return again

    def _one(
        self, prompt: Ints, nodes: int, length: int, *, until: float | None = None, script: Ints | None = None
    ) -> Walk:
        walk, eos = Walk(nodes, prompt, self.advance), self.target.eos
        self.drafter.reset()
        how = Drafting(planner="fixed:0", make=lambda *_: self.drafter, planned=lambda *_: walk)
        ours = Ours(self.drafter.spec or self.drafter.name, self.target, how)
        job = Job(prompt=prompt, sampling=self.sampling, max_new_tokens=length, eos=eos, script=script, until=until)
        written = ours.write(job, time.perf_counter)
        walk.tokens = np.concatenate([prompt, np.asarray(written.tokens, np.int64)])
        return walk
