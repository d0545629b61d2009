"""Methods side by side on the same prompts: is the text the same, and what does it cost?

One pass writes every prompt with every method, the methods taking turns prompt by prompt, so that a machine that
slows down slows all of them. Only decoding is timed, prefill apart. Speeds are medians over passes; a speed-up is the
median of what each pass found, method against base in the same minute.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Protocol

from paceline.bench.statistics import repeated_share
from paceline.engine.account import Totals


class Tokens(Protocol):
    """Whatever holds the tokens of a text."""

    @property
    def tokens(self) -> list[int]: ...


class Written(Tokens, Protocol):
    """A finished text, as `paceline.Generation` is."""

    @property
    def totals(self) -> Totals: ...


Write = Callable[[str], Written]
"""Write on from a prompt with one method."""

Progress = Callable[[str, int, int], None]
"""What is being written, how many texts are done, and how many there will be."""


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


@dataclass
class Entry:
    """One method: its texts pass by pass."""

    method: str
    passes: list[list[Written]] = field(default_factory=list)

    @property
    def texts(self) -> list[Written]:
        """The texts of the first pass, one per prompt."""
        return self.passes[0]

    @property
    def speeds(self) -> list[float]:
        """Tokens per second of each pass, all prompts together."""
        return [
            sum(len(text.tokens) for text in texts) / max(sum(text.totals.seconds for text in texts), 1e-9)
            for texts in self.passes
        ]

    def per_round(self, count: Callable[[Totals], int]) -> float:
        """A count per round, over all texts of a pass."""
        return sum(count(t.totals) for t in self.texts) / max(sum(t.totals.rounds for t in self.texts), 1)


@dataclass
class Comparison:
    """What was found. The first method is the base that the others are held against."""

    prompts: Sequence[str]
    entries: list[Entry]
    left_out: int = 0
    """Prompts that there was no time for."""

    @property
    def base(self) -> Entry:
        return self.entries[0]

    def speed_up(self, entry: Entry) -> float:
        pairs = zip(entry.speeds, self.base.speeds, strict=True)
        return median(mine / plain for mine, plain in pairs)

    def parting(self, entry: Entry) -> Parting | None:
        """The first place where any text of a method, in any pass, is not the base's; None where there is none."""
        partings = (first_parting(texts, self.base.texts) for texts in entry.passes)
        return next((parting for parting in partings if parting is not None), None)

    @property
    def same(self) -> bool:
        """Whether every method wrote the base's texts in every pass, the base itself too."""
        return all(self.parting(entry) is None for entry in self.entries)

    @property
    def spread(self) -> float | None:
        """The largest ratio of a method's fastest pass to its slowest: how far the machine can be trusted. None where
        there is a single pass, which says nothing of it."""
        if len(self.base.passes) < 2:
            return None
        return max(max(entry.speeds) / min(entry.speeds) for entry in self.entries)

    @property
    def repetition(self) -> float:
        """The share of repeated 8-grams in the base's texts."""
        return repeated_share([text.tokens for text in self.base.texts])

    def rows(self) -> list[dict[str, Any]]:
        """Plain data, a row per method."""
        return [self._row(entry) for entry in self.entries]

    def _row(self, entry: Entry) -> dict[str, Any]:
        parting = self.parting(entry)
        return {
            "method": entry.method,
            "tokens_per_second": median(entry.speeds),
            "slowest_pass": min(entry.speeds),
            "fastest_pass": max(entry.speeds),
            "passes": len(entry.passes),
            "speed_up": self.speed_up(entry),
            "tokens_per_round": entry.per_round(lambda totals: totals.tokens),
            "mean_accepted": entry.per_round(lambda totals: totals.accepted),
            "identical": parting is None,
            "parts_at": None if parting is None else parting.as_dict(),
        }


def compare(
    methods: Mapping[str, Write],
    prompts: Sequence[str],
    *,
    passes: int,
    warm_up: Callable[[str], object],
    seconds: float = float("inf"),
    progress: Progress = lambda *_: None,
) -> Comparison:
    """Write every prompt with every method, ``passes`` times, or fewer where the next pass would end after
    ``seconds``; the first pass leaves out prompts that would, but for one. Each method is warmed up first, by its name,
    which is not counted."""
    if not prompts:
        raise ValueError("there is nothing to compare methods on; give at least one prompt")
    found = Comparison(prompts, [Entry(method) for method in methods])
    total = len(methods) * (1 + len(prompts) * passes)
    steps = _steps(found, methods, warm_up, passes, time.monotonic() + seconds)
    for done, doing in enumerate(steps):
        progress(doing, done, total)
    return found


def _steps(
    found: Comparison, methods: Mapping[str, Write], warm_up: Callable[[str], object], passes: int, end: float
) -> Iterator[str]:
    """Does the writing; says what is next before each text."""
    for method in methods:
        yield f"{method}, warming up"
        warm_up(method)
    for turns in range(passes):
        started = time.monotonic()
        for entry in found.entries:
            entry.passes.append([])
        for number, prompt in enumerate(found.prompts):
            # whoever goes first changes from prompt to prompt and from pass to pass, for it finds the caches as
            # another method left them
            turn = (number + turns) % len(found.entries)
            for entry in found.entries[turn:] + found.entries[:turn]:
                yield entry.method
                entry.passes[-1].append(methods[entry.method](prompt))
            each = (time.monotonic() - started) / (number + 1)
            if turns == 0 and number + 1 < len(found.prompts) and time.monotonic() + each > end:
                found.left_out = len(found.prompts) - number - 1
                found.prompts = found.prompts[: number + 1]
                return
        if 2 * time.monotonic() - started > end:
            return


def first_parting(texts: Sequence[Tokens], others: Sequence[Tokens]) -> Parting | None:
    """Where the texts of the same prompts part first, as far as both were written; None where they are the same."""
    for prompt, (one, other) in enumerate(zip(texts, others, strict=False)):
        if one.tokens != other.tokens:
            return Parting(prompt, _common(one.tokens, other.tokens))
    return None


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many leading tokens two texts share."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))
