"""The law over the next token, the race that draws from it, and the random choices of the decoding rules.

All of it is arithmetic on two arrays and runs on weights of `fractions.Fraction` as well as of float64: the
exact tests of the decoding rules execute this very code.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from paceline.law.noise import Noise, Stream

Weight: TypeAlias = float | Fraction

_CERTAIN = np.ones(1)
_CERTAIN.flags.writeable = False
_ROUNDING = 2.0**-46
"""Relative: the sums that normalise two float64 laws agree far better than this."""


@dataclass(frozen=True, eq=False)
class Distribution:
    """Survivors of the warps: ``ids`` ascending, each with a positive weight; weights need not sum to 1.

    An empty distribution, of ``mass`` 0, arises only as what `without` or `minus` leave.
    """

    ids: NDArray[np.int64]
    weights: NDArray[Any]

    def __post_init__(self) -> None:
        assert self.ids.ndim == 1, "a law is over one next token"
        assert self.ids.shape == self.weights.shape, "every survivor has one weight"

    @classmethod
    def one_hot(cls, token: int) -> "Distribution":
        return cls(np.array([token], dtype=np.int64), _CERTAIN)

    @cached_property
    def mass(self) -> Weight:
        total: Weight = self.weights.sum()
        return total

    @cached_property
    def probs(self) -> NDArray[Any]:
        return self.weights / self.mass

    def probability(self, token: int) -> Weight:
        """Of one token; 0 where it did not survive."""
        place = int(np.searchsorted(self.ids, token))
        if place == self.ids.size or self.ids[place] != token:
            return 0
        probability: Weight = self.weights[place] / self.mass
        return probability

    def without(self, token: int) -> "Distribution":
        """The law of a draw that is known not to be ``token``."""
        others = self.ids != token
        return Distribution(self.ids[others], self.weights[others])

    def minus(self, other: "Distribution") -> "Distribution":
        """The residual ``(p - q)+`` of the two normalised laws, itself left unnormalised.

        Its mass is the chance that a token drawn from *q* is refused where *p* is wanted. In float64 equal
        laws may differ by the rounding of their sums; such a gap counts as none, so that rounding is not normalised
        into a law.
        """
        wanted = self.probs
        gap = wanted - other.probabilities(self.ids)
        short = gap > (0 if gap.dtype == object else _ROUNDING * wanted)
        return Distribution(self.ids[short], gap[short])

    def probabilities(self, ids: NDArray[np.int64]) -> NDArray[Any]:
        """Of each of the ascending ``ids``."""
        if np.array_equal(ids, self.ids):
            return self.probs
        _, there, here = np.intersect1d(ids, self.ids, assume_unique=True, return_indices=True)
        found = np.zeros(ids.size, dtype=self.weights.dtype)
        found[there] = self.probs[here]
        return found


def race(law: Distribution, exponentials: NDArray[np.float64]) -> int:
    """The token whose exponential clock, running at the speed of its weight, rings first.

    With independent unit exponentials, one per survivor, this is a draw from the law. Ties go to the lowest
    id.
    """
    assert law.ids.size > 0, "an empty law has nothing to draw"
    with np.errstate(over="ignore"):  # beside a weight as small as that, some other token wins anyway
        return int(law.ids[np.argmin(exponentials / law.weights)])


class Dice(Protocol):
    """The random choices: from keyed noise while decoding, in the exact tests from an enumeration of all outcomes.

    ``index`` is the place in the sequence's own token list whose token is chosen."""

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
