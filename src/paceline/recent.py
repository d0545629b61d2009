"""Recent values: running means and ratios in which earlier values count less with each new one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(eq=False)
class RecentMean:
    """A running mean of which earlier values keep the weight ``kept`` with each new one; the first counts in full."""

    kept: float
    value: float = 0.0
    times: int = 0
    """How many values it has."""

    def add(self, value: float) -> None:
        self.value = self.kept * self.value + (1 - self.kept) * value if self.times else value
        self.times += 1


@dataclass(eq=False)
class RecentRatio:
    """Two running sums, of which earlier values keep the weight ``kept`` with each new pair, and their ratio."""

    kept: float
    above: float = 0.0
    below: float = 0.0

    def add(self, above: float, below: float) -> None:
        self.above = self.kept * self.above + above
        self.below = self.kept * self.below + below

    @property
    def value(self) -> float:
        """The ratio; 0 where nothing was added."""
        return self.above / self.below if self.below > 0 else 0.0
