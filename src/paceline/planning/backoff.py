"""When to draft again: back-off of sources that were not worth their time, the recent averages that judge them, and the
rounds that the texts of a batch go without drafts together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from paceline.context import Context
from paceline.recent import RecentMean

LONGEST = 512
"""The most rounds for which a source is left out: its cost may fall."""
STALL = 3.0
"""A new time counts as at most this many times the average before it: longer ones are stalls."""
TRIED = 8
"""Rounds for which a source is tried before it is judged."""
BEARABLE = 0.3
"""Tokens that it may lose before that, if its rounds lose some on average."""
RUN = 0.97
"""The weight that earlier rounds keep with each new one, in the running rate."""
JOINING = 16
"""Texts that may join a rest that does not go on: one that was abandoned in it, and is still held, must not delay
others for ever."""
NOTED = 0.9
"""The same for the seconds and the value of drafting."""


@dataclass(eq=False)
class Steady(RecentMean):
    """Seconds that something takes, stalls apart. Of the first two the shorter counts."""

    kept: float = NOTED

    @property
    def seconds(self) -> float:
        return self.value

    def add(self, seconds: float) -> None:
        if self.times == 1:
            self.value, self.times = min(seconds, self.value), 2
        else:
            super().add(min(seconds, STALL * self.value) if self.times else seconds)


@dataclass(eq=False)
class BackOff(RecentMean):
    """Whether a source is worth its time: it is tried for some rounds, then judged by what they gained, in tokens, and
    left out for longer the more it lost. Its mean is the value of a round with it, in tokens."""

    kept: float = NOTED
    lost: float = 0.0
    """Tokens lost by the rounds with it so far."""
    left: int = 0
    """Rounds for which it is still left out."""
    woken: float | None = None
    """Tokens gained by the rounds with it since it was woken; None if it was not."""
    deaf: bool = False
    """Whether it cannot be woken before it was tried again, since that brought nothing."""

    @property
    def active(self) -> bool:
        """Whether it is left out now."""
        return self.left > 0

    def passed(self, rounds: int = 1) -> None:
        """Rounds went by without it."""
        self.left = max(0, self.left - rounds)

    def wake(self) -> bool:
        """Try it again before its time, and whether that is done."""
        if self.deaf:
            return False
        self.left, self.woken = 0, 0.0
        return True

    def judge(self, value: float, patience: float, forgiven: float = 0.0) -> None:
        """A round with it was worth ``value`` tokens, its time deducted; ``patience`` is what a round may lose. What is
        ``forgiven`` was lost as well, and says nothing of the rounds to come."""
        self.add(value)
        self.lost = max(0.0, self.lost - value + forgiven)
        self.deaf = False
        if self.woken is not None:
            self.woken += value
        if self.value < 0 and (self.times >= TRIED or self.lost > BEARABLE):
            self.left = min(LONGEST, int(self.lost / patience))
            self.times, self.lost = 0, 0.0
            self.deaf = self.active and self.woken is not None and self.woken <= 0
            self.woken = None


@dataclass(eq=False)
class SharedRest:
    """Rounds without drafts for which the planner is not asked, of texts that are written together. Each of them emits
    one token, so the length of a text says how many are over."""

    _ends: WeakKeyDictionary[Context, int] = field(default_factory=WeakKeyDictionary)
    """Text -> its length when the planner is asked again."""
    _left: int = 0
    """For how many rounds those that joined last rest."""
    _joined: int = 0
    """How many joined since that became less."""

    def begin(self, contexts: Sequence[Context], rounds: int) -> None:
        """All texts that are written ask the planner together. They rest for ``rounds`` rounds."""
        self._left, self._joined = rounds, 0
        self._ends.clear()
        if rounds > 1:
            self._ends.update((context, len(context) + rounds) for context in contexts)

    def end(self) -> None:
        """It is over before its time, for all."""
        self.begin((), 0)

    def join(self, contexts: Sequence[Context]) -> int:
        """For how many rounds these texts rest because the texts that they join do; 0 if those do not, or if the rest
        of one of these is over."""
        if not self._ends or any(context in self._ends for context in contexts):
            return 0
        # the texts that go on are nearer to its end than one that was abandoned
        rounds = min((end - len(context) for context, end in self._ends.items() if context.finish is None), default=0)
        if rounds < self._left:
            self._left, self._joined = rounds, 0
        if rounds <= 0 or self._joined >= JOINING:
            return 0
        self._joined += len(contexts)
        self._ends.update((context, len(context) + rounds) for context in contexts)
        return rounds
