"""Who takes part in a run: one of our methods, or another library on the same weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from paceline.context import Ints
from paceline.engine.account import Round
from paceline.law import Sampling


class Missing(Exception):
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
    """All tokens of plain decoding's text, prompt included, where it is to be walked."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """A text as a contestant wrote it."""

    tokens: list[int]
    """Without the prompt. What lies behind an end-of-text token or the limit is cut by the run, for everybody."""
    deliveries: list[tuple[int, float]]
    """Each time tokens were there: how many had come so far in all, and the seconds since the call began. Empty where
    not one came."""
    rounds: list[Round] | None = None
    """Of a contestant that tells them."""
    forwards: int | None = None
    """How often the model that writes was called, where that is known."""
    sources: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    seconds_prefill: float | None = None
    """Reading the prompt, where it is told apart from the first token."""
    finish: str = ""
    flips: list[tuple[int, int]] = field(default_factory=list)
    """Of a text that was walked: index in it (the prompt not counted), and the token that would have been chosen."""


Clock = Callable[[], float]


class Contestant(ABC):
    """One way to write. It keeps nothing from one text to the next but what ``begin`` leaves standing."""

    name: str
    """As tables call it: a method's spec, or a peer's name."""
    ours: ClassVar[bool] = False
    """Whether it can walk a given text and tells its rounds."""
    remembers: bool = False
    """Whether it keeps what it learns from prompt to prompt."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """What must be known of it: library and version, model, dtype, draft model, settings."""

    def begin(self) -> None:
        """A new prompt is next: forget what was learnt. Not timed."""

    def forget(self) -> None:
        """A new pass over the prompts is next: forget also what `begin` leaves standing. Not timed."""
        self.begin()

    @abstractmethod
    def write(self, job: Job, clock: Clock) -> Written:
        """Write one text. Everything in here is timed; ``clock`` tells seconds."""

    def close(self) -> None:
        """Give the memory back."""


def cut(tokens: Sequence[int], job: Job) -> list[int]:
    """What counts of a text: up to and with the first end-of-text token, and no more than was asked for."""
    kept = list(tokens[: job.max_new_tokens])
    ends = (place for place, token in enumerate(kept, start=1) if token in job.eos)
    return kept[: next(ends, len(kept))]
