"""Who throws the coins of the decoding rules.

The rules ask three questions and do not know where the answers come from: keyed noise while decoding, an
enumeration of every outcome in the exact tests.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from paceline.law.distribution import Distribution, Weight, race
from paceline.law.noise import Noise, Stream


class Dice(Protocol):
    """``index`` is the place in the sequence's own token list that is being decided."""

    @property
    def public(self) -> Noise | None:
        """The noise that alone decides what `choose` answers, so that tokens which cannot win under it need not be in
        the law; None where every survivor must be."""
        ...

    def choose(self, index: int, law: Distribution) -> int:
        """The target's own sample, with public coins."""
        ...

    def draw(self, index: int, law: Distribution) -> int:
        """A residual or bonus token, with coins no draft has seen."""
        ...

    def accept(self, index: int, token: int, chance: Weight) -> bool:
        """Whether a drafted token is taken, which has probability ``chance`` (1 and above: always)."""
        ...


@dataclass(frozen=True)
class KeyedDice:
    """Each answer is a function of the noise and of the question, never of the questions asked before."""

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
