"""Whether drafting pays for a model on this machine: with a draft model, or else with the default method alone.

A race decides. Plain decoding, `auto`, and `auto` with the draft model write texts in turns, which measures what a
benchmark measures. The verdict is about the last of them over the faster of the others: on if the interval of that
ratio lies above 1, off if it lies below, and otherwise it makes no difference.

Before the race the draft model drafts `LONGEST` tokens in every round along a few other texts, and rounds of every
draft length are timed in turns. As in a calibration, the tokens of all shorter drafts are counted from the longest
ones. This says why a draft model pays or not, and predicts the best fixed length for engines that need one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from statistics import harmonic_mean
from typing import Any

import numpy as np

from paceline.context import Ints
from paceline.drafters import make_drafter
from paceline.drafters.networks.assistant import DraftModel
from paceline.errors import InputError
from paceline.law import Sampling
from paceline.targets.base import Target
from paceline.vocabulary import Vocabulary
from paceline_lab.bench.race import Heat, Lap, Progress, Race, silent
from paceline_lab.bench.run.contestant import Job, Work, Written, alone
from paceline_lab.bench.run.ours import DraftedBy, Ours
from paceline_lab.bench.statistics import Estimate, SpeedVerdict, mean_of, ratio_of_sums
from paceline_lab.bench.texts import Texts
from paceline_lab.machine.calibrate import Method
from paceline_lab.machine.measuring import Measuring, RoundSeconds, Walk

OWN_TOKENIZER = ("assistant",)
FOREIGN_TOKENIZER = ("assistant", "assistant:translate=tli")
"""Ways to draft with a model that has the target's tokenizer, and with one that has another."""
PLAIN, AUTO, WITH_DRAFTS = "plain", "auto", "auto with the draft model"
LONGEST = 6
"""Tokens of the longest draft."""
SECONDS, LEAST_SECONDS = 60.0, 5.0
SHARES = {"rounds": 0.1, "texts": 0.3}
"""Shares of the seconds for rounds and for texts of a draft model; the race has the rest."""
TOKENS, LEAST_TOKENS = 64, 24
"""Tokens of a text."""
ROOM = 32
"""Tokens that a text in the race has room for beyond them. At a limit the last drafts would be cut, and short texts
would show too little of what drafts bring."""
PROBED = 6
"""Texts from which the length is chosen, or a third of the prompts if they are few."""
LEAST_PROMPTS = 3
HEATS, FEWEST_HEATS = 10, 5
"""Texts that a slow model should race over; with fewer than the second, `auto` without the draft model stays out."""
PASSES = 9
"""How often a few prompts are written at most."""
LENGTH = 128
"""Tokens before the rounds that are timed."""
SEEDS = 1 << 64
WARM_UP = 8
"""Tokens that every contestant writes before it is timed."""


@dataclass(frozen=True, kw_only=True)
class Contender:
    """The draft model at one draft length, as predicted from counts and timed rounds."""

    strategy: str
    """The way to draft, without the length."""
    spec: str
    length: int
    tokens_per_round: float
    seconds: float
    """Of a round, drafting included."""
    seconds_draft: float
    seconds_plain: float
    """Of a round without a draft, timed in turns with it."""
    ratio: Estimate
    """Over plain decoding. The interval is that of the tokens."""

    @property
    def price(self) -> float:
        """Seconds of a drafted token, in rounds without a draft."""
        return self.seconds_draft / self.length / self.seconds_plain

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {**_flat(self), "price": self.price}


@dataclass(frozen=True, kw_only=True)
class Raced:
    """One method in the race."""

    name: str
    spec: str
    tokens_per_second: float
    ratio: Estimate
    """The mean over texts of its speed over plain decoding's."""

    @property
    def drafts(self) -> bool:
        """Whether it uses the draft model."""
        return self.name == WITH_DRAFTS

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return _flat(self)


@dataclass(frozen=True, kw_only=True)
class Advice:
    """The result."""

    raced: Sequence[Raced]
    """Plain decoding first, the method that is judged last."""
    gain: Estimate
    """The speed of the method that is judged over that of the fastest other one."""
    candidates: Sequence[Contender] = ()
    """Of a draft model."""
    refused: dict[str, str] = field(default_factory=dict)
    """Ways to draft that cannot work -> why, in a sentence."""
    texts: Sequence[str]
    """Names of the prompts of the race."""
    tokens: int
    """The length of its texts, at least, unless they end."""
    seconds: float

    @property
    def verdict(self) -> SpeedVerdict:
        """Of the draft model, or of drafting where there is none."""
        return SpeedVerdict.of(self.gain)

    @property
    def judged(self) -> Raced:
        """`auto`, with the draft model if there is one."""
        return self.raced[-1]

    @property
    def without(self) -> Raced:
        """The fastest of the others."""
        return _fastest(self.raced[:-1])

    @property
    def chosen(self) -> Raced:
        """The recommended method."""
        return self.judged if self.verdict is SpeedVerdict.ON else self.without

    @property
    def best(self) -> Contender | None:
        """The draft model at the length that is predicted to be best."""
        return max(self.candidates, key=lambda one: one.ratio.value, default=None)


class Decoded(Texts[Written]):
    """Texts with a speed, of the tokens behind the first delivery, as in benchmarks."""

    def speed(self, lap: Lap[Written]) -> float:
        return lap.result.speed or math.nan

    def ratio(self, name: str, base: str) -> Estimate:
        """The mean over texts of one method's speed over another's."""
        if name == base:
            return Estimate(1.0, 1.0, 1.0)
        return mean_of(self.ratios(name, base), [heat.task for heat in self.heats])

    def raced(self, contestant: Ours) -> Raced:
        """One method, over plain decoding."""
        return Raced(
            name=contestant.name,
            spec=contestant.spec,
            tokens_per_second=harmonic_mean(self.speeds(contestant.name)),
            ratio=self.ratio(contestant.name, self.base),
        )


def check_amounts(seconds: float, max_new_tokens: int) -> None:
    """Refuse too little to measure. It need not wait for a model."""
    if not LEAST_SECONDS <= seconds < math.inf:
        raise InputError(f"advice takes at least {LEAST_SECONDS:g} seconds of measuring, not {seconds:g}")
    if max_new_tokens < LEAST_TOKENS:
        raise InputError(f"a text to measure has at least {LEAST_TOKENS} tokens, not {max_new_tokens}")


@dataclass(kw_only=True)
class Advisor:
    """Measures, and stores nothing."""

    target: Target
    draft: DraftModel | None
    """None to judge `auto` without one."""
    prompts: Sequence[tuple[str, Ints]]
    """The prompts, by name."""
    vocabulary: Vocabulary | None = None
    sampling: Sampling = field(default_factory=lambda: Sampling(temperature=0.8))
    max_new_tokens: int = TOKENS
    seconds: float = SECONDS
    progress: Progress = silent
    _measuring: Measuring = field(init=False)

    def __post_init__(self) -> None:
        check_amounts(self.seconds, self.max_new_tokens)
        if len(self.prompts) < LEAST_PROMPTS:
            raise InputError(
                f"advice needs at least {LEAST_PROMPTS} prompts, and there are {len(self.prompts)}; give more"
            )
        limit = self.target.context_length
        if limit is not None and limit <= self.max_new_tokens + ROOM:
            raise InputError(
                f"--max-new-tokens {self.max_new_tokens} leaves no room for a prompt in the {limit} tokens of the "
                "model's context; choose fewer"
            )

    def run(self) -> Advice:
        """Predict, then race."""
        self._measuring = Measuring(
            target=self.target,
            vocabulary=self.vocabulary,
            sampling=self.sampling,
            max_new_tokens=self.max_new_tokens,
            seconds=self.seconds,
            progress=self.progress,
        )
        draft, candidates, refused = self.draft, list[Contender](), dict[str, str]()
        if draft is not None:
            candidates, refused = self._predicted(draft)
        prompts = self.prompts[self._probed :]
        tokens, entries = self._entries(prompts)
        raced, gain, texts = self._race(entries, prompts, tokens)
        return Advice(
            raced=raced,
            gain=gain,
            candidates=candidates,
            refused=refused,
            texts=texts,
            tokens=tokens,
            seconds=self._measuring.passed,
        )

    @property
    def _probed(self) -> int:
        """How many prompts are for the predictions."""
        return 0 if self.draft is None else min(PROBED, len(self.prompts) // LEAST_PROMPTS)

    # predict

    def _predicted(self, draft: DraftModel) -> tuple[list[Contender], dict[str, str]]:
        """Every way to draft at every length, and the ways that cannot work."""
        refused = dict[str, str]()
        with ExitStack() as leaving:
            methods = list[Method]()
            for spec in FOREIGN_TOKENIZER if self._foreign(draft) else OWN_TOKENIZER:
                try:
                    methods.append(Method.fitted(make_drafter(spec, draft), self.target, self.vocabulary))
                except InputError as error:
                    refused[spec] = str(error)
                else:
                    leaving.callback(methods[-1].drafter.dispose)
            if not methods:
                raise InputError(next(iter(refused.values())))
            found = [one for method in methods for one in self._lengths(method, len(methods))]
        return found, refused

    def _foreign(self, draft: DraftModel) -> bool:
        mine, theirs = self.vocabulary, draft.vocabulary
        return mine is not None and theirs is not None and mine.fingerprint != theirs.fingerprint

    def _lengths(self, method: Method, ways: int) -> list[Contender]:
        """One way to draft at every length."""
        limit = self.target.context_length
        prompts = [self._shortened(prompt) for _, prompt in self.prompts[: self._probed]]
        doing = f"{method.spec}: drafts of up to {LONGEST} tokens"
        rounds = self._measuring.rounds(
            method.drafter,
            np.concatenate(prompts),
            range(LONGEST + 1),
            length=LENGTH if limit is None else max(2, min(LENGTH, limit // 2)),
            seconds=SHARES["rounds"] * self.seconds / ways,
            cap=None,
            doing=doing,
        )
        share, walks = SHARES["texts"] * self.seconds / ways / len(prompts), list[Walk]()
        for number, prompt in enumerate(prompts, start=len(self.prompts)):
            measuring = replace(self._measuring, sampling=self._sampling(number))
            walks += measuring.walk(method.drafter, [prompt], LONGEST, share, doing)
        if not any(walk.trails for walk in walks):
            raise InputError("the first token of every text ends it, so there is nothing to draft; give other prompts")
        return [_candidate(method.spec, size, walks, rounds) for size in rounds if size]

    # race

    def _entries(self, prompts: Sequence[tuple[str, Ints]]) -> tuple[int, list[Ours]]:
        """How long texts are, so that there is time for enough of them, and which methods write them."""
        own = DraftedBy(vocabulary=self.vocabulary)
        entries = [Ours(PLAIN, self.target, own), Ours(AUTO, self.target, own)]
        if self.draft is not None:
            entries.append(Ours(AUTO, self.target, replace(own, draft_model=self.draft)))
            entries[-1].name = WITH_DRAFTS
        each = self._seconds_of_a_token(entries[0], prompts[0][1])
        rounds = (self.seconds - self._measuring.passed) / max(each, 1e-9)
        if self.draft is not None and rounds < FEWEST_HEATS * len(entries) * LEAST_TOKENS:
            entries.pop(1).close()
        tokens = rounds / min(HEATS, len(prompts)) / len(entries)
        return int(min(max(tokens, LEAST_TOKENS), self.max_new_tokens)), entries

    def _seconds_of_a_token(self, plain: Ours, prompt: Ints) -> float:
        """Of plain decoding, roughly. The first of two short texts warms up."""
        job = self._job(prompt, WARM_UP, 0)
        speed = [plain.write(job, time.perf_counter).speed for _ in range(2)][1]
        return 0.0 if speed is None else 1 / speed

    def _race(
        self, entries: Sequence[Ours], prompts: Sequence[tuple[str, Ints]], tokens: int
    ) -> tuple[list[Raced], Estimate, list[str]]:
        """Texts in turns while there is time."""
        jobs = [self._job(prompt, tokens, number) for number, (_, prompt) in enumerate(prompts)]
        heats, warm_up = list[Heat[Written]](), [Work([replace(jobs[0], enough=WARM_UP)])]
        race = Race(contestants=entries, clock=time.perf_counter)
        left = self.seconds - self._measuring.passed
        try:
            for heat in race.run([Work([job]) for job in jobs], passes=PASSES, least=1, seconds=left, warm_up=warm_up):
                self._measuring.say("writing in turns: " + ", ".join(contestant.name for contestant in entries))
                heats.append(alone(heat))
        finally:
            for contestant in entries:
                contestant.close()
        texts = Decoded([heat for heat in heats if all(lap.result.speed for lap in heat.laps.values())], PLAIN)
        if not texts.heats:
            raise InputError("no text had a second token, so there is no speed to measure; give other prompts")
        raced = [texts.raced(contestant) for contestant in entries]
        gain = texts.ratio(raced[-1].name, _fastest(raced[:-1]).name)
        return raced, gain, [prompts[task][0] for task in dict.fromkeys(heat.task for heat in texts.heats)]

    def _job(self, prompt: Ints, tokens: int, number: int) -> Job:
        return Job(
            prompt=self._shortened(prompt),
            sampling=self._sampling(number),
            max_new_tokens=tokens + ROOM,
            eos=self.target.eos,
            enough=tokens,
        )

    def _sampling(self, number: int) -> Sampling:
        """Every text has another seed: with equal noise texts would be alike, and the interval too narrow."""
        return replace(self.sampling, seed=(self.sampling.seed + number) % SEEDS)

    def _shortened(self, prompt: Ints) -> Ints:
        """A prompt that leaves no room in the context loses its beginning."""
        limit = self.target.context_length
        return prompt if limit is None else prompt[-max(1, limit - self.max_new_tokens - ROOM) :]


def _flat(one: Contender | Raced) -> dict[str, Any]:
    """Its fields, the ratio with its bounds beside it."""
    found = asdict(one)
    ratio = found.pop("ratio")
    return {**found, "ratio": ratio["value"], "low": ratio["low"], "high": ratio["high"]}


def _candidate(spec: str, size: int, walks: Sequence[Walk], rounds: dict[int, RoundSeconds]) -> Contender:
    """A draft length. Plain decoding has a round for every token."""
    plain, took = rounds[0].whole, rounds[size]
    counts = [(walk.emitted, sum(trail.rounds(size) for trail in walk.trails)) for walk in walks if walk.trails]
    times = [(tokens, count * took.whole, tokens, tokens * plain) for tokens, count in counts]
    return Contender(
        strategy=spec,
        spec=f"{spec}{',' if ':' in spec else ':'}length={size}",
        length=size,
        tokens_per_round=sum(tokens for tokens, _ in counts) / sum(count for _, count in counts),
        seconds=took.whole,
        seconds_draft=took.drafting,
        seconds_plain=plain,
        ratio=ratio_of_sums(times, None),
    )


def _fastest(raced: Sequence[Raced]) -> Raced:
    return max(raced, key=lambda one: one.ratio.value)
