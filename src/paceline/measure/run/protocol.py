"""The order of things in a run.

Every prompt is written by every contestant, one right after the other, in an order that changes from prompt to prompt
and from repeat to repeat; so a machine that slows down slows all of them. Before anything is timed each contestant
writes a little, greedily, which loads every weight and shows whether it writes plain decoding's text at all.

Two ways to write. *Free*: everybody writes on its own and is compared with plain decoding. *Followed*: plain decoding's
text is written first, untimed, and our methods then walk it through real forwards and real choices, so that all do the
same work although the arithmetic of a half-precision type would let their texts part. Other libraries cannot be led
and write freely in both.

The next turn of a conversation follows plain decoding's answer for everybody.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from paceline.context import Ints
from paceline.law import Sampling
from paceline.measure.energy import Meter
from paceline.measure.rotation import order
from paceline.measure.run.contestant import Clock, Contestant, Job, Written, cut
from paceline.measure.run.directory import Run, add, write_about
from paceline.measure.run.judge import Judge
from paceline.measure.run.memory import Peak
from paceline.measure.run.ours import Ours
from paceline.measure.run.record import Record
from paceline.measure.run.telling import Spell, kept
from paceline.measure.workload import Prompt, Workload

WARM_UP = 16
"""Tokens that each contestant writes before it is timed."""

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


@dataclass(kw_only=True)
class Referee:
    """Has a workload written and keeps the records. The first contestant is plain decoding."""

    run: Run
    workload: Workload
    contestants: list[Contestant]
    plan: Plan
    encode: Encode
    text: Spell
    judge: Judge
    peak: Peak
    meter: Meter | None = None
    clock: Clock = time.perf_counter
    progress: Progress = lambda *_: None
    lengths: Mapping[str, int] = field(default_factory=dict)
    """How many tokens can follow a prompt, of those whose text has an end that is known."""
    shortened: set[str] = field(default_factory=set)
    """Prompts whose beginning did not fit into the model's context."""

    @property
    def plain(self) -> Ours:
        first = self.contestants[0]
        assert isinstance(first, Ours), "plain decoding is one of our methods"
        return first

    def sit(self) -> None:
        """Write all units that are not there yet."""
        units = list(self.units())
        done = {(record.unit, record.repeat) for record in self.run.records}
        todo = [(repeat, unit) for repeat in range(self.plan.repeat) for unit in range(len(units))]
        missing = [(repeat, unit) for repeat, unit in todo if (unit, repeat) not in done]
        partings = self._warm_up() if missing else []
        for repeat, unit in missing:
            told = f"{units[unit][0].task}/{units[unit][0].language}"
            self.progress(told, len(todo) - len(missing), len(todo))
            add(self.run, self._unit(units[unit], unit, repeat))
            missing = missing[1:]
        if shortened := sorted(self.shortened):
            self.run.about.workload["shortened"] = sorted({*self.run.about.workload.get("shortened", []), *shortened})
        self._settle(partings)
        self.run.about.finished = True
        write_about(self.run)

    def units(self) -> Iterator[tuple[Prompt, ...]]:
        """What is written at a time: a prompt, or as many as make a batch, or everything where prompts arrive."""
        prompts = self.workload.prompts
        size = len(prompts) if self.plan.qps is not None else self.plan.batch
        yield from (prompts[start : start + size] for start in range(0, len(prompts), max(1, size)))

    def _unit(self, prompts: Sequence[Prompt], unit: int, repeat: int) -> list[Record]:
        if self.plan.qps is not None or self.plan.batch > 1:
            from paceline.measure.run.together import write_together

            return write_together(self, prompts, unit, repeat)
        return self._alone(prompts[0], unit, repeat)

    def _alone(self, prompt: Prompt, unit: int, repeat: int) -> list[Record]:
        for contestant in self.contestants:
            contestant.begin()
        records: list[Record] = []
        answers: list[str] = []
        for turn in range(len(prompt.turns)):
            job = self.job(prompt, turn, answers)
            if self.plan.follow:
                job = self.followed(job)
            texts = list(self._timed(job, unit, repeat))
            plain = next(written.tokens for who, written, _ in texts if who is self.plain)
            for who, written, rest in texts:
                finding = self.judge.find(who, written, job, plain)
                if who is self.plain:
                    finding = finding._replace(verdict=type(finding.verdict).REFERENCE)
                where: dict[str, Any] = {"unit": unit, "turn": turn, "repeat": repeat, **rest}
                records.append(kept(who, prompt, job, written, finding, self.text, **where))
            answers.append("".join(self.text(job.prompt.tolist(), plain)))
        return records

    def _timed(self, job: Job, unit: int, repeat: int) -> Iterator[tuple[Contestant, Written, dict[str, Any]]]:
        for place, who in enumerate(order(self.contestants, repeat, unit)):
            self.peak.start()
            if self.meter is not None:
                self.meter.start()
            started = self.clock()
            written = who.write(job, self.clock)
            seconds = self.clock() - started
            joules = None if self.meter is None else self.meter.stop(seconds)
            yield who, written, {"place": place, "seconds": seconds, "joules": joules, "peak": self.peak.read()}

    def job(self, prompt: Prompt, turn: int, answers: Sequence[str]) -> Job:
        """What is to be written after a turn. A prompt that leaves no room in the context loses its beginning."""
        ids = self.encode(prompt, turn, answers)
        limit, length = self.plan.context_length, self.plan.max_new_tokens
        length = min(length, self.lengths.get(prompt.key, length))
        if limit is not None and len(ids) + length > limit:
            ids = ids[-max(1, limit - length) :]
            self.shortened.add(prompt.key)
        return Job(prompt=ids, sampling=self.plan.sampling, max_new_tokens=length, eos=self.plan.eos)

    def followed(self, job: Job) -> Job:
        """The same job with plain decoding's text to walk."""
        text = self.plain.write(job, self.clock).tokens
        return replace(job, script=np.concatenate([job.prompt, np.asarray(text, np.int64)]))

    def _warm_up(self) -> list[Parted]:
        """Everybody writes a little of the first prompt: greedily, which shows whether it is plain decoding's text, and
        as it will be done. Gives back the texts that are not."""
        first = self.job(self.workload.prompts[0], 0, ())
        greedy = replace(first, sampling=Sampling(), max_new_tokens=min(WARM_UP, first.max_new_tokens))
        plain: list[int] | None = None
        partings = []
        for who in self.contestants:
            self.progress(f"{who.name}, warming up", 0, 0)
            written = who.write(greedy, self.clock)
            plain = plain or written.tokens
            same = cut(written.tokens, greedy) == plain
            if not same:
                partings.append(Parted(who, written, greedy, plain))
            self.run.about.warm_up[who.name] = {"tokens": len(written.tokens), "same": same}
            who.write(replace(first, max_new_tokens=min(WARM_UP, first.max_new_tokens)), self.clock)
            who.begin()
        write_about(self.run)
        return partings

    def _settle(self, partings: Sequence[Parted]) -> None:
        """Say of the texts of the warm-up why they are others. It may load a wider model, so it waits for the end."""
        for who, written, job, plain in partings:
            finding = self.judge.find(who, written, job, plain)
            told = {"verdict": str(finding.verdict), "parts_at": finding.parts_at}
            self.run.about.warm_up[who.name].update(told)


class Parted(NamedTuple):
    """A text of the warm-up that is not plain decoding's."""

    who: Contestant
    written: Written
    job: Job
    plain: list[int]
