"""The order of a run.

All contestants generate a text for each prompt, or for each batch of prompts, in turns (`bench/race`). Before anything
is timed each generates a few tokens greedily. This loads every weight and shows whether its text equals plain
decoding's.

There are two modes. *Free*: each contestant generates on its own, and its text is compared with plain decoding's.
*Followed*: plain decoding's text is recorded first, untimed, and our methods follow it through real forwards and real
choices. All then do the same work, although near ties of a half-precision type would make their texts differ. Where a
prompt says how it goes on, all methods, plain decoding among them, follow that text instead. Other libraries cannot
follow a text and generate freely in both modes.

The next turn of a conversation follows plain decoding's answer, for every contestant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from paceline.context import Ints
from paceline.law import Sampling
from paceline_lab.bench.race import Race
from paceline_lab.bench.run.contestant import Job, TextContestant, Work, Written, cut
from paceline_lab.bench.run.directory import Run, add, go_on, keep_whole, write_about
from paceline_lab.bench.run.emulation import KnownTexts
from paceline_lab.bench.run.judge import Judge
from paceline_lab.bench.run.keeping import Spell, kept, times
from paceline_lab.bench.run.ours import Ours
from paceline_lab.bench.run.record import Record, TextVerdict
from paceline_lab.bench.suites import Prompt, Workload

WARM_UP = 16
"""Tokens that each contestant writes before it is timed."""
GRAIN = 256
"""Tokens. Devices other than the CPU prepare a forward for every new length, rounded up to about a multiple of this."""

Encode = Callable[[Prompt, int, Sequence[str]], Ints]
"""A prompt, the number of a turn and the answers so far -> the ids that the answer follows."""


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """Settings of the generation, the same for all contestants."""

    sampling: Sampling
    max_new_tokens: int
    eos: frozenset[int]
    follow: bool
    repeat: int = 1
    batch: int = 1
    qps: float | None = None
    context_length: int | None = None

    @property
    def at_once(self) -> int | None:
        """The number of texts in progress at once; None for one text alone."""
        return self.batch if self.batch > 1 or self.qps is not None else None

    def arrivals(self, count: int, repeat: int) -> list[float]:
        """When prompts come: all at once, or ``qps`` of them in a second on average with exponential gaps, at the same
        moments for every contestant."""
        if self.qps is None:
            return [0.0] * count
        gaps = np.random.default_rng(self.sampling.seed + repeat).exponential(1 / self.qps, count)
        return [float(when) for when in np.cumsum(gaps) - gaps[0]]


class Parted(NamedTuple):
    """A text of the warm-up that is not plain decoding's."""

    contestant: TextContestant
    written: Written
    job: Job
    plain: list[int]


@dataclass(kw_only=True)
class Referee:
    """Runs a workload and keeps the records. The first contestant is plain decoding."""

    run: Run
    race: Race[Work, list[Written]]
    contestants: list[TextContestant]
    conditions: Conditions
    workload: Workload
    encode: Encode
    text: Spell
    judge: Judge
    known: KnownTexts = field(default_factory=lambda: KnownTexts(texts={}, starts={}))
    """The texts that are replayed or followed, of prompts that say how they go on."""

    @property
    def plain(self) -> Ours:
        first = self.contestants[0]
        assert isinstance(first, Ours), "plain decoding is one of our methods"
        return first

    def sit(self) -> None:
        """Write all units that are not there yet."""
        units = list(self.units())
        turns = [sum(len(prompt.turns) for prompt in unit) for unit in units]
        keep_whole(self.run, lambda unit: len(self.contestants) * (turns[unit] if unit < len(turns) else 0))
        done = {(record.unit, record.repeat) for record in self.run.records}
        todo = [(repeat, unit) for repeat in range(self.conditions.repeat) for unit in range(len(units))]
        missing = [(repeat, unit) for repeat, unit in todo if (unit, repeat) not in done]
        if not missing and self.run.about.finished:
            return
        go_on(self.run)
        partings = self._warm_up()
        heats = [len(self.contestants) * max(len(prompt.turns) for prompt in unit) for unit in units]
        self.race.total = self.conditions.repeat * sum(heats)
        self.race.done = sum(heats[unit] for unit, _ in done)
        try:
            for place, (repeat, unit) in enumerate(missing):
                if unit == 0 or place == 0:
                    self._remember(units[:unit], repeat)
                first = units[unit][0]
                self.race.doing = f"{first.task}/{first.language}, "
                add(self.run, self._unit(self.race, units[unit], unit, repeat))
        finally:
            self.race.end()
        self._explain(partings)
        self.run.about.finished = True
        write_about(self.run)

    def units(self) -> Iterator[tuple[Prompt, ...]]:
        """The units of writing: a prompt, or as many as make a batch, or all of them if prompts arrive."""
        prompts = self.workload.prompts
        size = len(prompts) if self.conditions.qps is not None else self.conditions.batch
        yield from (prompts[start : start + size] for start in range(0, len(prompts), max(1, size)))

    def _unit(self, race: Race[Work, list[Written]], prompts: Sequence[Prompt], unit: int, repeat: int) -> list[Record]:
        """All turns of these prompts by the contestants of a race, turn by turn."""
        contestants = {contestant.name: contestant for contestant in self.contestants if contestant in race.contestants}
        for contestant in contestants.values():
            contestant.begin()
        answers: dict[str, list[str]] = {prompt.key: [] for prompt in prompts}
        records: list[Record] = []
        for turn in range(max(len(prompt.turns) for prompt in prompts)):
            here = [prompt for prompt in prompts if turn < len(prompt.turns)]
            work = self._work(here, turn, answers, repeat)
            laps = race.heat(work, repeat + turn, unit).laps
            theirs = laps[self.plain.name].result
            for name, lap in laps.items():
                where = {"unit": unit, "turn": turn, "repeat": repeat, "place": lap.place}
                texts = zip(here, work.jobs, lap.result, theirs, times(work, lap), strict=True)
                for prompt, job, written, plain, measured in texts:
                    judgement = self.judge.find(contestants[name], written, job, plain.tokens)
                    if name == self.plain.name:
                        judgement = judgement._replace(verdict=TextVerdict.REFERENCE)
                    measured |= {**where, "batch": self.conditions.batch}
                    records.append(kept(contestants[name], prompt, job, written, judgement, self.text, **measured))
            for prompt, job, plain in zip(here, work.jobs, theirs, strict=True):
                answers[prompt.key].append("".join(self.text(job.prompt.tolist(), plain.tokens)))
        return records

    def _work(self, prompts: Sequence[Prompt], turn: int, answers: Mapping[str, list[str]], repeat: int) -> Work:
        jobs = [self.job(prompt, turn, answers[prompt.key]) for prompt in prompts]
        if self.conditions.follow:
            jobs = [self._followed(job) for job in jobs]
        arrivals = self.conditions.arrivals(len(jobs), repeat)
        jobs = [replace(job, arrives=when) for job, when in zip(jobs, arrivals, strict=True)]
        return Work(jobs, self.conditions.at_once)

    def job(self, prompt: Prompt, turn: int, answers: Sequence[str]) -> Job:
        """The text to write after a turn. A prompt that leaves no room in the context loses its beginning."""
        text, how = self.known.texts.get(prompt.key), self.conditions
        ids = self.encode(prompt, turn, answers) if text is None else self.known.prompt(prompt.key)
        length = how.max_new_tokens if text is None else min(how.max_new_tokens, len(text) - len(ids))
        if how.context_length is not None and len(ids) + length > how.context_length:
            ids = ids[-max(1, how.context_length - length) :]
            shortened = self.run.about.workload.setdefault("shortened", [])
            if prompt.key not in shortened:
                shortened.append(prompt.key)
                shortened.sort()
                write_about(self.run)
        script = None
        if text is not None and how.follow:
            script = np.concatenate([ids, text[self.known.starts[prompt.key] :][:length]])
        return Job(prompt=ids, sampling=how.sampling, max_new_tokens=length, eos=how.eos, script=script)

    def _followed(self, job: Job) -> Job:
        """The same job with a text to follow: if none is known, plain decoding's."""
        if job.script is not None:
            return job
        text = self.plain.write(job, self.race.clock).tokens
        return replace(job, script=np.concatenate([job.prompt, np.asarray(text, np.int64)]))

    def _remember(self, units: Sequence[Sequence[Prompt]], repeat: int) -> None:
        """Begin a pass over the prompts, or resume it after these units. Every contestant forgets what it learnt in
        other passes. Those that learn from prompt to prompt write the texts of these units again, unkept."""
        for contestant in self.contestants:
            contestant.forget()
        learning = [contestant for contestant in self.contestants if contestant is self.plain or contestant.remembers]
        if len(learning) > 1:
            again = replace(self.race, contestants=learning, doing="learning again what was learnt before, ", total=0)
            for unit, prompts in enumerate(units):
                self._unit(again, prompts, unit, repeat)

    # the warm-up

    def _warm_up(self) -> list[Parted]:
        """Each contestant generates a few greedy tokens of the first prompt, which are compared with plain decoding's,
        and then texts with the settings of the run. Returns the texts that differ from plain decoding's."""
        jobs = self._rehearsed()
        greedy = replace(jobs[0], sampling=Sampling(), max_new_tokens=min(WARM_UP, jobs[0].max_new_tokens))
        plain: list[int] | None = None
        partings = []
        for contestant in self.contestants:
            self.race.progress(f"{contestant.name}, warming up", 0, 0)
            written = contestant.write(greedy, self.race.clock)
            plain = plain or written.tokens
            same = cut(written.tokens, greedy) == plain
            if not same:
                partings.append(Parted(contestant, written, greedy, plain))
            self.run.about.warm_up[contestant.name] = {"tokens": len(written.tokens), "same": same}
            for job in jobs:
                contestant.write(job, self.race.clock)
            if self.conditions.at_once is not None:  # forwards have other shapes then
                here = [self.job(prompt, 0, ()) for prompt in next(self.units())[: self.conditions.batch]]
                contestant.do(Work([self._short(job) for job in here], len(here)), self.race.clock)
        write_about(self.run)
        return partings

    def _rehearsed(self) -> list[Job]:
        """The untimed texts before a run: a few tokens on the CPU; elsewhere a whole text of every length, so that no
        shape of forward is new."""
        if self._on_cpu:
            return [self._short(self.job(self.workload.prompts[0], 0, ()))]
        jobs: dict[tuple[int, int], Job] = {}
        for prompt in self.workload.prompts:
            job = self.job(prompt, 0, ())
            jobs.setdefault((len(job.prompt) // GRAIN, (len(job.prompt) + job.max_new_tokens) // GRAIN), job)
        return list(jobs.values())

    def _short(self, job: Job) -> Job:
        return replace(job, max_new_tokens=min(WARM_UP, job.max_new_tokens)) if self._on_cpu else job

    @property
    def _on_cpu(self) -> bool:
        return self.plain.target.device == "cpu"

    def _explain(self, partings: Sequence[Parted]) -> None:
        """Record why texts of the warm-up differ. This may load a wider model, so it comes at the end."""
        for contestant, written, job, plain in partings:
            judgement = self.judge.find(contestant, written, job, plain)
            self.run.about.warm_up[contestant.name] |= {
                "verdict": str(judgement.verdict),
                "parts_at": judgement.parts_at,
            }
