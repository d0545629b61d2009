"""Walking plain decoding's text under another method: its choices are recorded, plain decoding's tokens are emitted.

So a run goes on after a difference, and one difference is counted once instead of turning everything after it into
another text.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.context import Ints
from paceline.law import Dice, Distribution, Noise
from paceline.law.distribution import Weight


class Overrun(Exception):
    """The method went on where plain decoding had ended."""


@dataclass(frozen=True)
class Flip:
    """Two choices at one index of the token list."""

    index: int
    chosen: int
    expected: int


@dataclass
class FollowingDice:
    """Asks the real dice, notes where they differ from ``script`` (all of plain's tokens, prompt included), and
    answers with the script. Under the rejection rule only greedy laws can be followed: their coins do not matter."""

    inner: Dice
    script: Ints
    flips: list[Flip] = field(default_factory=list)

    @property
    def public(self) -> Noise | None:
        return self.inner.public

    def choose(self, index: int, law: Distribution) -> int:
        return self._follow(index, self.inner.choose(index, law))

    def draw(self, index: int, law: Distribution) -> int:
        return self._follow(index, self.inner.draw(index, law))

    def accept(self, index: int, token: int, chance: Weight) -> bool:
        """A refused child is refused here, too: what the law wants instead shows in the draw that follows."""
        if not self.inner.accept(index, token, chance):
            return False
        return self._follow(index, token) == token

    def _follow(self, index: int, chosen: int) -> int:
        expected = self._expected(index)
        if chosen != expected and (not self.flips or self.flips[-1].index != index):
            self.flips.append(Flip(index, chosen, expected))
        return expected

    def _expected(self, index: int) -> int:
        if index >= len(self.script):
            raise Overrun(f"a token was chosen at index {index}, where plain decoding had ended")
        return int(self.script[index])
