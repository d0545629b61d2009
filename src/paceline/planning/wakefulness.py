"""What was seen of late: the rate of a text, the time that something takes, and whether a source is worth it."""

from __future__ import annotations

from dataclasses import dataclass

LONGEST = 128
"""Rounds that a source sleeps at most: what was dear once need not stay so."""
STALL = 3.0
"""Time is not believed to have grown more than so many times at once."""
AWAKE = 8
"""For how many rounds a drafter is tried before it is judged."""
BEARABLE = 0.3
"""How many tokens it may cost before, if every round of it does."""
RUN = 0.97
"""What a round leaves of the weight of those before, in the running rate."""
NOTED = 0.9
"""The same for what drafting takes and brings."""


@dataclass(eq=False)
class Running:
    """Tokens and seconds of late."""

    tokens: float = 0.0
    seconds: float = 0.0

    def add(self, tokens: float, seconds: float) -> None:
        self.tokens = self.tokens * RUN + tokens
        self.seconds = self.seconds * RUN + seconds

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds if self.seconds > 0 else 0.0


@dataclass(eq=False)
class Steady:
    """Seconds that something takes, whatever held it up once. Of the first two the shorter counts."""

    seconds: float = 0.0
    times: int = 0

    def add(self, seconds: float) -> None:
        self.times += 1
        if self.times <= 2:
            self.seconds = seconds if self.times == 1 else min(seconds, self.seconds)
        else:
            self.seconds = NOTED * self.seconds + (1 - NOTED) * min(seconds, STALL * self.seconds)


@dataclass(eq=False)
class Wakefulness:
    """Whether a source is worth its time: awake for some rounds, then judged by what they brought, in tokens."""

    value: float = 0.0
    """Of a waking round, of late."""
    rounds: int = 0
    lost: float = 0.0
    """By the waking rounds so far."""
    asleep: int = 0
    """Rounds left to sleep."""

    def sleeps(self) -> bool:
        """Whether this round is slept through."""
        if self.asleep == 0:
            return False
        self.asleep -= 1
        return True

    def judge(self, value: float, patience: float) -> None:
        """A waking round was worth ``value`` tokens, its time deducted; ``patience`` is what a round may lose."""
        self.value = value if self.rounds == 0 else NOTED * self.value + (1 - NOTED) * value
        self.rounds += 1
        self.lost = max(0.0, self.lost - value)
        if self.value < 0 and (self.rounds >= AWAKE or self.lost > BEARABLE):
            self.asleep = min(LONGEST, int(self.lost / patience))
            self.rounds, self.lost = 0, 0.0
