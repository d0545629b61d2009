"""Drafted bytes, with what their tokens were worth to the draft model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Translation:
    """A tree of target tokens: parents come before their children, -1 is the committed text."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    """The log-probability of every node after its parent."""

    def add(self, token: int, parent: int, score: float) -> int:
        """A node; its number."""
        self.tokens.append(token)
        self.parents.append(parent)
        self.scores.append(score)
        return len(self.tokens) - 1


@dataclass(frozen=True)
class TranslatedDraft:
    """The bytes of a path of the draft model's tokens."""

    data: bytes
    paid: Sequence[float]
    """The log-probability of the tokens that begin before each place."""
    ends: float | None = None
    """The log-probability of the end of the text behind the bytes, if that is drafted."""

    @classmethod
    def of(cls, pieces: Iterable[tuple[bytes, float]], ends: float | None = None) -> TranslatedDraft:
        data, paid, total = bytearray(), [0.0], 0.0
        for spelled, score in pieces:
            total += score
            paid += [total] * len(spelled)
            data += spelled
        return cls(bytes(data), paid, ends)

    def score(self, start: int, end: int) -> float:
        """The log-probability of the bytes between two places."""
        last = len(self.data)
        return self.paid[min(end, last)] - self.paid[min(start, last)]

    def chain(self, tokens: Iterable[tuple[int, int]], end: int | None = None) -> Translation:
        """Tokens of these lengths one behind the other, and the token ``end`` behind them where the draft ends."""
        found, place, node = Translation(), 0, -1
        for token, length in tokens:
            node = found.add(token, node, self.score(place, place + length))
            place += length
        if self.ends is not None and end is not None:
            found.add(end, node, self.ends)
        return found
