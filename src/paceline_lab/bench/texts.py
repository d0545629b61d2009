"""Texts of the contestants of a race: their speeds, compared within a heat, and whether drafts changed nothing, so that
all equal the texts of the base."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from paceline_lab.bench.race import Heat, Lap
from paceline_lab.bench.statistics import LOOPING, STABLE, repeated_share


class HasTokens(Protocol):
    """A text as a contestant wrote it."""

    @property
    def tokens(self) -> list[int]: ...


Written = TypeVar("Written", bound=HasTokens)


class Parting(NamedTuple):
    """Where two texts differ: the number of the prompt, and of the first token that differs or that only one has."""

    prompt: int
    token: int

    def __str__(self) -> str:
        return f"parts at token {self.token + 1} of prompt {self.prompt + 1}"


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The first place where two token lists differ, or where the shorter one ends; None where they are the same."""
    pairs = enumerate(zip(one, other, strict=False))
    place = next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))
    return None if place == len(one) == len(other) else place


@dataclass(frozen=True)
class Texts(Generic[Written]):
    """The heats of a race whose tasks are prompts. The first pass has all of them."""

    heats: Sequence[Heat[Written]]
    base: str
    """The contestant with which the others are compared."""

    def speed(self, lap: Lap[Written]) -> float:
        """Tokens per second of one text, the whole call."""
        return len(lap.result.tokens) / lap.seconds

    def speeds(self, name: str) -> list[float]:
        """The speed of every text of a contestant."""
        return [self.speed(heat.laps[name]) for heat in self.heats]

    def ratios(self, name: str, base: str = "") -> list[float]:
        """The speed of each text over that of the base, or of another contestant, in the same heat."""
        pairs = zip(self.speeds(name), self.speeds(base or self.base), strict=True)
        return [mine / other for mine, other in pairs]

    def texts(self, name: str) -> list[Written]:
        """The texts of a contestant, heat by heat."""
        return [heat.laps[name].result for heat in self.heats]

    def parting(self, name: str, other: Texts[Written] | None = None) -> Parting | None:
        """The first place where a text of a contestant, in any pass, is not the base's of the first pass; the base
        itself may not repeat itself. None where all are the same. ``other`` has the base's texts instead, as far as
        both have the prompt."""
        first = (other or self).texts((other or self).base)
        for heat, text in zip(self.heats, self.texts(name), strict=True):
            place = first_difference(text.tokens, first[heat.task].tokens) if heat.task < len(first) else None
            if place is not None:
                return Parting(heat.task, place)
        return None

    @property
    def repetition(self) -> float:
        """The share of repeated 8-grams in the base's texts: where it is high, methods that copy are flattered."""
        return repeated_share([text.tokens for text in self.texts(self.base)])


def cautions(repeated: float, flattered: str, spread: float | None, differ: str) -> Iterator[str]:
    """Warnings about a measurement: that its texts loop, or that times of the same work differ much. ``spread`` is the
    ratio of the slowest time to the fastest; ``differ`` begins the sentence on it."""
    yield f"repeated 8-grams {repeated:.0%}"
    if repeated > LOOPING:
        yield f"the texts loop, which flatters {flattered}"
    if spread is None:
        yield "one pass, so the noise of the speeds is unknown"
    elif spread > STABLE:
        yield f"unstable: {differ} by {spread:.1f}x"
