"""What everybody of a run writes at: the plan, the texts that are asked for, and the instruments."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from paceline.bench.energy import Meter
from paceline.bench.run.contestant import Clock, Contestant, Job
from paceline.bench.run.directory import Run, write_about
from paceline.bench.run.judge import Judge
from paceline.bench.run.memory import Peak
from paceline.bench.run.ours import Ours
from paceline.bench.run.telling import Spell
from paceline.bench.suites import Prompt
from paceline.context import Ints
from paceline.law import Sampling

Encode = Callable[[Prompt, int, Sequence[str]], Ints]
"""A prompt, the number of a turn and the answers so far -> the ids that are to be gone on from."""
Progress = Callable[[str, int, int], None]


@dataclass(kw_only=True)
class Plan:
    """How to write, the same for all contestants."""

    sampling: Sampling
    max_new_tokens: int
    eos: frozenset[int]
    follow: bool
    repeat: int = 1
    batch: int = 1
    qps: float | None = None
    context_length: int | None = None

    @property
    def together(self) -> bool:
        """Whether several texts are written at once, or may be."""
        return self.qps is not None or self.batch > 1


@dataclass(kw_only=True)
class Desk:
    """The first contestant is plain decoding."""

    run: Run
    contestants: list[Contestant]
    plan: Plan
    encode: Encode
    text: Spell
    judge: Judge
    peak: Peak
    meter: Meter | None = None
    settle: Callable[[], None] = lambda: None
    """Waits until the device has done what it was given."""
    clock: Clock = time.perf_counter
    progress: Progress = lambda *_: None
    where: tuple[str, int, int] = "", 0, 0
    """What is being written, how many units were before it, and of how many."""
    lengths: Mapping[str, int] = field(default_factory=dict)
    """How many tokens can follow a prompt, of those whose text has an end that is known."""

    @property
    def plain(self) -> Ours:
        first = self.contestants[0]
        assert isinstance(first, Ours), "plain decoding is one of our methods"
        return first

    def make_ready(self, who: Contestant) -> None:
        """Before a text is timed. What is alive stays out of later collections, which are then short."""
        cell, number, count = self.where
        self.progress(f"{cell}, {who.name}", number, count)
        gc.collect()
        gc.freeze()
        self.settle()
        self.peak.start()
        if self.meter is not None:
            self.meter.start()

    def job(self, prompt: Prompt, turn: int, answers: Sequence[str]) -> Job:
        """What is to be written after a turn. A prompt that leaves no room in the context loses its beginning."""
        ids = self.encode(prompt, turn, answers)
        limit, length = self.plan.context_length, self.plan.max_new_tokens
        length = min(length, self.lengths.get(prompt.key, length))
        if limit is not None and len(ids) + length > limit:
            ids = ids[-max(1, limit - length) :]
            self._shorten(prompt.key)
        return Job(prompt=ids, sampling=self.plan.sampling, max_new_tokens=length, eos=self.plan.eos)

    def _shorten(self, key: str) -> None:
        told = self.run.about.workload.setdefault("shortened", [])
        if key not in told:
            told.append(key)
            told.sort()
            write_about(self.run)

    def followed(self, job: Job) -> Job:
        """The same job with plain decoding's text to walk."""
        text = self.plain.write(job, self.clock).tokens
        return replace(job, script=np.concatenate([job.prompt, np.asarray(text, np.int64)]))
