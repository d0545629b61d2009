"""When to draft again: back-off of what has not been worth its time, and the recent averages that it is judged by."""

from __future__ import annotations

from dataclasses import dataclass

LONGEST = 512
"""Rounds that a source is left out at most: what was expensive once need not stay so."""
STALL = 3.0
"""A new time counts as at most this many times the average before it: longer ones are stalls."""
TRIED = 8
"""Rounds for which a source is tried before it is judged."""
BEARABLE = 0.3
"""Tokens that it may lose before that, if its rounds lose some on average."""
RUN = 0.97
"""The weight that earlier rounds keep with each new one, in the running rate."""
NOTED = 0.9
"""The same for the seconds and the value of drafting."""


@dataclass(eq=False)
class Running:
    """Recent tokens and seconds."""

    tokens: float = 0.0
    seconds: float = 0.0

    def add(self, tokens: float, seconds: float) -> None:
        self.tokens = self.tokens * RUN + tokens
        self.seconds = self.seconds * RUN + seconds

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0


@dataclass(eq=False)
class Steady:
    """Seconds that something takes, stalls apart. Of the first two the shorter counts."""

    seconds: float = 0.0
    times: int = 0

    def add(self, seconds: float) -> None:
        self.times += 1
        if self.times <= 2:
            self.seconds = seconds if self.times == 1 else min(seconds, self.seconds)
        else:
            self.seconds = NOTED * self.seconds + (1 - NOTED) * min(seconds, STALL * self.seconds)


@dataclass(eq=False)
class BackOff:
    """Whether a source is worth its time: it is tried for some rounds, then judged by what they gained, in tokens, and
    left out for longer the more it lost."""

    value: float = 0.0
    """The recent value of a round with it, in tokens."""
    rounds: int = 0
    lost: float = 0.0
    """Tokens lost by the rounds with it so far."""
    left: int = 0
    """Rounds for which it is still left out."""

    @property
    def active(self) -> bool:
        """Whether it is left out now."""
        return self.left > 0

    def passed(self, rounds: int = 1) -> None:
        """Rounds went by without it."""
        self.left = max(0, self.left - rounds)

    def judge(self, value: float, patience: float) -> None:
        """A round with it was worth ``value`` tokens, its time deducted; ``patience`` is what a round may lose."""
        self.value = value if self.rounds == 0 else NOTED * self.value + (1 - NOTED) * value
        self.rounds += 1
        self.lost = max(0.0, self.lost - value)
        if self.value < 0 and (self.rounds >= TRIED or self.lost > BEARABLE):
            self.left = min(LONGEST, int(self.lost / patience))
            self.rounds, self.lost = 0, 0.0
