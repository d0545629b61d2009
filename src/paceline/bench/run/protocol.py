"""The order of things in a run.

Every prompt is written by every contestant, one right after the other, in an order that changes from prompt to prompt
and from repeat to repeat; so a machine that slows down slows all of them. Before anything is timed each contestant
writes a little, greedily, which loads every weight and shows whether it writes plain decoding's text at all.

Two ways to write. *Free*: everybody writes on its own and is compared with plain decoding. *Followed*: plain decoding's
text is written first, untimed, and our methods then walk it through real forwards and real choices, so that all do the
same work although the arithmetic of a half-precision type would let their texts part. Other libraries cannot be led
and write freely in both.

The next turn of a conversation follows plain decoding's answer for everybody.

Nothing that one leaves undone is done in another's time: the device has finished, and Python's garbage is collected,
before a text is begun.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from paceline.bench.run.alone import write_alone
from paceline.bench.run.contestant import Contestant, Job, Written, cut
from paceline.bench.run.desk import Desk
from paceline.bench.run.directory import add, drop_torn, go_on, write_about
from paceline.bench.run.record import Record
from paceline.bench.run.together import rehearse, write_together
from paceline.bench.suites import Prompt, Workload
from paceline.law import Sampling

WARM_UP = 16
"""Tokens that each contestant writes before it is timed."""
GRAIN = 256
"""Devices other than the CPU prepare a forward for every length that they have not seen, rounded up to about so many
tokens."""


@dataclass(kw_only=True)
class Referee(Desk):
    """Has a workload written and keeps the records."""

    workload: Workload

    def sit(self) -> None:
        """Write all units that are not there yet."""
        units = list(self.units())
        turns = dict(enumerate(sum(len(prompt.turns) for prompt in unit) for unit in units))
        drop_torn(self.run, lambda unit: len(self.contestants) * turns.get(unit, 0))
        done = {(record.unit, record.repeat) for record in self.run.records}
        todo = [(repeat, unit) for repeat in range(self.plan.repeat) for unit in range(len(units))]
        missing = [(repeat, unit) for repeat, unit in todo if (unit, repeat) not in done]
        if not missing and self.run.about.finished:
            return
        go_on(self.run)
        partings = self._warm_up()
        try:
            for number, (repeat, unit) in enumerate(missing, start=len(todo) - len(missing)):
                self.where = f"{units[unit][0].task}/{units[unit][0].language}", number, len(todo)
                if unit == 0 or number == len(todo) - len(missing):
                    self._remember(units[:unit], repeat)
                add(self.run, self._unit(units[unit], unit, repeat))
        finally:
            gc.unfreeze()
        self._explain(partings)
        self.run.about.finished = True
        write_about(self.run)

    def _remember(self, units: Sequence[Sequence[Prompt]], repeat: int) -> None:
        """A pass over the prompts begins, or goes on after these: everybody knows what it has learnt in this pass, and
        nothing else. Where that is something, the texts that were there are written again, and not kept."""
        for who in self.contestants:
            who.forget()
        learning = [who for who in self.contestants if who is self.plain or who.remembers]
        if len(learning) > 1:
            again = replace(self, contestants=learning)
            for unit, prompts in enumerate(units):
                again.where = "learning again what was learnt before", unit, len(units)
                again._unit(prompts, unit, repeat)

    def units(self) -> Iterator[tuple[Prompt, ...]]:
        """What is written at a time: a prompt, or as many as make a batch, or everything where prompts arrive."""
        prompts = self.workload.prompts
        size = len(prompts) if self.plan.qps is not None else self.plan.batch
        yield from (prompts[start : start + size] for start in range(0, len(prompts), max(1, size)))

    def _unit(self, prompts: Sequence[Prompt], unit: int, repeat: int) -> list[Record]:
        if self.plan.together:
            return write_together(self, prompts, unit, repeat)
        return write_alone(self, prompts[0], unit, repeat)

    def _warm_up(self) -> list[Parted]:
        """Everybody writes a little of the first prompt, greedily, which shows whether it is plain decoding's text; and
        then as it will be done. Gives back the texts that are not."""
        jobs = self._rehearsed()
        greedy = replace(jobs[0], sampling=Sampling(), max_new_tokens=min(WARM_UP, jobs[0].max_new_tokens))
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
            for job in jobs:
                who.write(job, self.clock)
            self._rehearse_together(who)
        write_about(self.run)
        return partings

    def _rehearsed(self) -> list[Job]:
        """What is written before anything is timed: a little on the CPU; elsewhere a whole text of every length, so
        that no forward is of a shape that was never seen."""
        if self._on_cpu:
            job = self.job(self.workload.prompts[0], 0, ())
            return [replace(job, max_new_tokens=min(WARM_UP, job.max_new_tokens))]
        jobs: dict[tuple[int, int], Job] = {}
        for prompt in self.workload.prompts:
            job = self.job(prompt, 0, ())
            jobs.setdefault((len(job.prompt) // GRAIN, (len(job.prompt) + job.max_new_tokens) // GRAIN), job)
        return list(jobs.values())

    def _rehearse_together(self, who: Contestant) -> None:
        """Where texts are written together, also so: forwards have other shapes then."""
        if not self.plan.together:
            return
        jobs = [self.job(prompt, 0, ()) for prompt in next(self.units())[: self.plan.batch]]
        if self._on_cpu:
            jobs = [replace(job, max_new_tokens=min(WARM_UP, job.max_new_tokens)) for job in jobs]
        rehearse(who, jobs, self.clock)

    @property
    def _on_cpu(self) -> bool:
        return self.plain.target.device.type == "cpu"

    def _explain(self, partings: Sequence[Parted]) -> None:
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
