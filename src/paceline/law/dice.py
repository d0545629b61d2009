"""The random choices of the decoding rules.

The rules make three kinds of choices. While decoding these come from keyed noise, in the exact tests from an
enumeration of all outcomes.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from paceline.law.distribution import Distribution, Weight, race
from paceline.law.noise import Noise, Stream


class Dice(Protocol):
    """``index`` is the place in the sequence's own token list whose token is chosen."""

    @property
    def public(self) -> Noise | None:
        """The noise that alone decides `choose`, so that the law may leave out tokens which cannot win under it; None
        where the law must have every survivor."""
        ...

    def choose(self, index: int, law: Distribution) -> int:
        """The target's own sample, with public coins."""
        ...

    def draw(self, index: int, law: Distribution) -> int:
        """A residual or bonus token, with noise that no draft has seen."""
        ...

    def accept(self, index: int, token: int, chance: Weight) -> bool:
        """Whether a drafted token is accepted, with probability ``chance`` (1 and above: always)."""
        ...


@dataclass(frozen=True)
class KeyedDice:
    """Each choice is a function of the noise and of its arguments, and of no earlier choice."""

    noise: Noise

    @property
    def public(self) -> Noise:
        return self.noise

    def choose(self, index: int, law: Distribution) -> int:
        return self._race(Stream.TARGET, index, law)

    def draw(self, index: int, law: Distribution) -> int:
        return self._race(Stream.RESIDUAL, index, law)

    def accept(self, index: int, token: int, chance: Weight) -> bool:
        return bool(self.noise.uniform(Stream.ACCEPT, index, np.array([token]))[0] < chance)

    def _race(self, stream: Stream, index: int, law: Distribution) -> int:
        if law.ids.size == 1:
            return int(law.ids[0])
        return race(law, self.noise.exponential(stream, index, law.ids))
