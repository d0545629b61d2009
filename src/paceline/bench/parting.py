"""Where the texts of a race part: drafts must change nothing, so every contestant has to write the base's text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from paceline.bench.race import Heat


class Text(Protocol):
    """A text as a contestant wrote it."""

    @property
    def tokens(self) -> list[int]: ...


@dataclass(frozen=True)
class Parting:
    """Where two texts part: the number of the prompt, and the first token that differs (or that only one has)."""

    prompt: int
    token: int

    def __str__(self) -> str:
        return f"parts at token {self.token + 1} of prompt {self.prompt + 1}"

    def as_dict(self) -> dict[str, int]:
        """Plain data, counted from 0."""
        return {"prompt": self.prompt, "token": self.token}


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The first place where two token lists differ, or where the shorter one ends; None where they are the same."""
    pairs = enumerate(zip(one, other, strict=False))
    place = next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))
    return None if place == len(one) == len(other) else place


def parting(texts: Iterable[tuple[int, Text]], base: Sequence[Text]) -> Parting | None:
    """The first of these texts, each with the number of its prompt, that is not the base's; None where there is none.
    Prompts that the base did not write are passed over."""
    for prompt, text in texts:
        if prompt < len(base) and (token := first_difference(text.tokens, base[prompt].tokens)) is not None:
            return Parting(prompt, token)
    return None


def texts_of(heats: Sequence[Heat[Text]], name: str) -> list[tuple[int, Text]]:
    """What a contestant wrote, with the numbers of the prompts."""
    return [(heat.task, heat.laps[name].result) for heat in heats]
