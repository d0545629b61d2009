"""Tokens that drafts of a method bring by their size, and the best size under given seconds.

A method that finds nothing sends nothing, so only some rounds with a budget of 16 nodes have 17 rows. So the seconds of
a size are the mean, over its rounds, of the seconds of the rows that they send.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.files.shape import Amount, Count
from paceline.planning.curve import Curves
from paceline.planning.fits import Floats, Optimum, optimum
from paceline.planning.timing import BatchSize, Nodes

TELLING = 0.05
"""Accepted tokens per round below which a prediction is not judged."""
BOUNDS = 0.25, 4.0
ENOUGH = 32
"""Rounds of a method from which a size may be chosen. From fewer, the mean of their tokens is known to a quarter of a
token at best, and sizes differ by no more than that."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """Rounds with drafts of up to ``nodes`` nodes."""

    nodes: Nodes
    tokens: Amount
    """Emitted per round, the target's own token included."""
    sent: Mapping[Nodes, Amount]
    """Rows beside the root -> the share of rounds that had that number."""


@dataclass(frozen=True, kw_only=True)
class Spot:
    """Tokens per round predicted for a small size from the rounds of the largest, and those that it then brought."""

    nodes: Nodes
    foretold: Amount
    found: Amount

    @property
    def ratio(self) -> float:
        """Accepted tokens over predicted ones, within `BOUNDS`; 1 where too few were predicted."""
        if self.foretold - 1 < TELLING:
            return 1.0
        return min(max((self.found - 1) / (self.foretold - 1), BOUNDS[0]), BOUNDS[1])


@dataclass(frozen=True, kw_only=True)
class SizeChoice(Optimum):
    """The best size for ``sequences`` sequences, each about ``length`` long."""

    sequences: BatchSize
    length: Count
    tokens_per_second: Amount
    """Expected of all sequences together, drafting included."""
    tokens_per_second_plain: Amount
    """Expected without drafts."""

    @property
    def trusted(self) -> bool:
        """Whether the fitted curves decided, and not the points."""
        return self.nodes == self.fitted


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """A method as it was calibrated."""

    method: str
    """Its spec."""
    draft: str
    """The fingerprint of the model that it drafts with; empty for none."""
    points: tuple[Point, ...]
    """From no nodes upwards."""
    drafting: tuple[tuple[Nodes, Amount], ...]
    """Nodes -> seconds per round for planning, proposing and learning."""
    top: Count
    """How many best tokens of every row it reads."""
    spot: Spot | None
    temperature: Amount
    prompts: tuple[str, ...]
    rounds: Count
    emitted: Count
    choices: tuple[SizeChoice, ...] = ()

    @property
    def enough(self) -> bool:
        """Whether it was measured in enough rounds for planners to use it."""
        return self.rounds >= ENOUGH

    def seconds_draft(self, sizes: Sequence[int]) -> Floats:
        """Per round of one sequence."""
        known = sorted(self.drafting)
        if not known:
            return np.zeros(len(sizes))
        found: Floats = np.interp(sizes, [nodes for nodes, _ in known], [seconds for _, seconds in known])
        return np.where(np.asarray(sizes) == 0, 0.0, found)

    def seconds(self, curves: Curves, sequences: int = 1, length: int = 0) -> Floats:
        """Seconds of a round at each of the points, drafting included."""
        rounds = [
            float(shares @ curves.seconds(np.arange(len(shares)) + sequences, sequences, length))
            for shares in (_together(point.sent, sequences) for point in self.points)
        ]
        return np.array(rounds) + sequences * self.seconds_draft([point.nodes for point in self.points])

    def speeds(self, curves: Curves, sequences: int = 1, length: int = 0) -> Floats:
        """Tokens per second of each sequence, with drafts of 0, 1, 2 and so on nodes, by the points."""
        sizes = [point.nodes for point in self.points]
        whole = np.arange(sizes[0], sizes[-1] + 1)
        tokens = np.interp(whole, sizes, [point.tokens for point in self.points])
        found: Floats = tokens / np.interp(whole, sizes, self.seconds(curves, sequences, length))
        return found

    def choose(self, curves: Curves, sequences: int = 1, length: int = 0) -> SizeChoice:
        """The best size under these seconds."""
        seconds = self.seconds(curves, sequences, length)
        sizes, tokens = [point.nodes for point in self.points], [point.tokens for point in self.points]
        found = optimum(sizes, tokens, seconds.tolist())
        speeds = self.speeds(curves, sequences, length)
        return SizeChoice(
            **vars(found),
            sequences=sequences,
            length=length,
            tokens_per_second=sequences * float(speeds[found.nodes]),
            tokens_per_second_plain=sequences * float(speeds[0]),
        )


def _together(sent: Mapping[int, float], sequences: int) -> NDArray[np.float64]:
    """The shares of how many rows several sequences send beside their roots, each for itself by the same shares."""
    alone = np.zeros(max(sent, default=0) + 1)
    for nodes, share in sent.items():
        alone[nodes] = share
    together = np.ones(1)
    for _ in range(sequences):
        together = np.convolve(together, alone)
    return together
