"""How deep the expensive part of a drafter goes: the tokens and the seconds of its levels.

A draft model adds a level to its drafts with each of its forwards. A level takes about as long as the one before and
brings less, so only levels that are worth their time are requested. For several texts at once a level takes longer, and
a depth that pays for one text may not pay for eight.
"""

from __future__ import annotations

import numpy as np

from paceline.planning.backoff import Steady
from paceline.planning.effort import Times, times
from paceline.tree import Floats

DEEPEST = 16
"""Levels whose gains are kept apart."""
MEASURED = 2
"""The fewest times that must be known: the first of a batch size is no measure of those that follow."""
FADING = 0.95
"""The weight that earlier gains keep with each new round, so that a level that brought little is tried again."""
GUESSED = 0.1
"""Tokens that the guess about a level counts as."""


class Levels:
    """The gains of levels from all texts, in tokens, and the seconds of one by the number of texts that it is for."""

    def __init__(self, seconds: Times | None = None) -> None:
        self._gained = np.zeros(DEEPEST)
        """Recent gains of each level, added up."""
        self._above = np.zeros(DEEPEST)
        """Those of the level above it in the same rounds; above the first, the number of rounds."""
        self._seconds = times() if seconds is None else seconds

    def best(self, texts: int, rate: float, most: int) -> int:
        """As many levels as bring more than they take, one at least and ``most`` at most; one where it is not known yet
        how long they take."""
        if not self.measured(texts):
            return 1
        gains = texts * self._expected(most)
        worth = np.cumsum(gains - rate * self.seconds(texts))
        return 1 + int(worth.argmax())

    def measured(self, texts: int) -> bool:
        """Whether the seconds of a level are known for ``texts`` texts."""
        return self._time(texts).times >= MEASURED

    def seconds(self, texts: int) -> float:
        """The recent seconds of a level for ``texts`` texts."""
        return self._time(texts).seconds

    def took(self, seconds: float, levels: int, texts: int) -> None:
        """``levels`` levels for ``texts`` texts took ``seconds``."""
        self._time(texts).add(seconds / levels)

    def brought(self, gains: Floats) -> None:
        """The tokens per text that each level of a round's drafts was expected to bring, the price of its rows
        deducted."""
        gains = np.maximum(gains[:DEEPEST], 0.0)
        self._gained *= FADING
        self._above *= FADING
        self._gained[: len(gains)] += gains
        self._above[: len(gains)] += np.concatenate([[1.0], gains[:-1]])

    def _expected(self, most: int) -> Floats:
        """The gain of each level for one text. Levels that were not drafted, or not recently, are expected to keep as
        much of the gain above them as the first level brings of a token."""
        first = min(1.0, (self._gained[0] + GUESSED) / (self._above[0] + GUESSED))
        kept = np.full(most, first)
        known = min(most, DEEPEST)
        kept[:known] = (self._gained[:known] + GUESSED * first) / (self._above[:known] + GUESSED)
        gains: Floats = np.cumprod(kept)
        return gains

    def _time(self, texts: int) -> Steady:
        return self._seconds[texts.bit_length()]
