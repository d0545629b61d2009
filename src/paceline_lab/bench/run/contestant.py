"""Contestants that generate texts: our methods, and other libraries on the same weights."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from paceline.context import Ints
from paceline.engine.counters import Round
from paceline.errors import Unavailable
from paceline.law import Sampling
from paceline_lab.bench.race import Clock, Contestant, Heat, Lap


class Missing(Unavailable):
    """A contestant cannot take part here; the message is a sentence that says why. The run goes on without it."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One text to write."""

    prompt: Ints
    sampling: Sampling
    max_new_tokens: int
    eos: frozenset[int]
    """Tokens that end the text; the one that did is part of it."""
    script: Ints | None = None
    """All tokens of plain decoding's text, prompt included, if it should be followed."""
    arrives: float = 0.0
    """Of texts that are written together: seconds after the beginning."""
    until: float | None = None
    """When the clock has passed this, no further round begins."""
    enough: int | None = None
    """Once a text has this many tokens, no further round begins. Unlike the limit, it cuts no draft."""


@dataclass(frozen=True)
class Work:
    """Texts to generate, and how many at once; None for a single text alone."""

    jobs: Sequence[Job]
    at_once: int | None = None


@dataclass(frozen=True, kw_only=True)
class Written:
    """A text as a contestant wrote it."""

    tokens: list[int]
    """Without the prompt. Tokens after the end of text or the limit are cut by the run, for every contestant."""
    deliveries: list[tuple[int, float]]
    """For each delivery of tokens, the number of tokens so far and the seconds since the beginning. Empty if there were
    none."""
    rounds: list[Round] | None = None
    """None if the contestant does not report them."""
    forwards: int | None = None
    """Forwards of the target, if known."""
    drafted: int | None = None
    """Drafted tokens that were scored, and those that were accepted, of another library that counts them."""
    accepted: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    """Another library's metrics of the text, by its own names."""
    sources: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    seconds_prefill: float | None = None
    """Reading the prompt, if known apart from the first token."""
    finish: str = ""
    flips: list[tuple[int, int]] = field(default_factory=list)
    """Of a text that was followed: index in it (the prompt not counted), and the token that would have been chosen."""
    joined: float = 0.0
    """Of texts in a batch: the seconds after which this text had a seat,"""
    busy: float = 0.0
    """the seconds in which the batch was at work,"""
    apart: float = 0.0
    """the seconds in which a text in it had no token yet, or it waited for prompts, which is not decoding,"""
    before: int = 0
    """and the tokens of this text in that time."""

    @property
    def speed(self) -> float | None:
        """Tokens per second behind the first delivery; None where all came with it."""
        (first, began), (last, ended) = self.deliveries[0], self.deliveries[-1]
        return (last - first) / (ended - began) if last > first else None

    @classmethod
    def of(cls, job: Job, tokens: list[int], deliveries: list[tuple[int, float]], room: int, forwards: int) -> Self:
        """Of another library, which had ``room`` for that many tokens."""
        ended = bool(tokens) and tokens[-1] in job.eos
        finish = "eos" if ended else "length" if room == job.max_new_tokens else "context"
        return cls(tokens=tokens, deliveries=deliveries, forwards=forwards, finish=finish)


def room_for(job: Job, context_length: int | None) -> int:
    """The tokens that another library can generate; 0 or less if the prompt fills its context."""
    return job.max_new_tokens if context_length is None else min(job.max_new_tokens, context_length - len(job.prompt))


class TextContestant(Contestant[Work, list[Written]]):
    """One way to generate texts. From one text to the next it keeps only what `begin` leaves."""

    ours: ClassVar[bool] = False
    """Whether it can follow a given text and reports its rounds."""
    remembers: bool = False
    """Whether it keeps what it learns from prompt to prompt."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Facts for readers: library and version, model, dtype, draft model, settings."""

    def forget(self) -> None:
        """Before a new pass over the prompts, untimed: forget also what `begin` leaves."""
        self.begin()

    def do(self, task: Work, clock: Clock) -> list[Written]:
        assert task.at_once is None, "only our methods write several texts together"
        return [self.write(job, clock) for job in task.jobs]

    @abstractmethod
    def write(self, job: Job, clock: Clock) -> Written:
        """Write one text."""

    def close(self) -> None:
        """Release the memory."""


def cut(tokens: Sequence[int], job: Job) -> list[int]:
    """The part of a text that counts: up to the first end-of-text token, and no more than was asked for."""
    kept = list(tokens[: job.max_new_tokens])
    ends = (place for place, token in enumerate(kept, start=1) if token in job.eos)
    return kept[: next(ends, len(kept))]


def alone(heat: Heat[list[Written]]) -> Heat[Written]:
    """A heat whose task is one text."""
    laps = {name: Lap(lap.result[0], lap.seconds, lap.place, lap.gauges) for name, lap in heat.laps.items()}
    return Heat(heat.task, heat.turn, laps)
