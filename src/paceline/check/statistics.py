"""The rejection rule keeps a law, not a text, so its samples are tested against the law.

For every emitted token the law given the tokens before it is known, from rows scored independently of any draft. Two
tests, both valid for sequences, since each step is judged given its past: the place of the token in its own law is
uniform (Kolmogorov-Smirnov), and what was drafted is emitted as often as the law says (a sum of martingale
differences, by Freedman's bound, which holds for few tokens as for many). The second has its power just where
acceptance goes wrong. It weighs each token by something fixed before the node's coins were thrown: whether it is a
child, where children are fixed, or q, where they were sampled from it (which child was drawn is itself correlated
with what is emitted, and should be).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paceline.context import Ints
from paceline.law import Distribution
from paceline.tree import EMPTY, ROOT, DraftTree

ALARM = 1e-6
"""Below this a run is called a bug; a whole check asks a few hundred times."""


@dataclass
class Evidence:
    """What a run, or several, say about a law."""

    places: list[float] = field(default_factory=list)
    surplus: float = 0.0
    variance: float = 0.0
    impossible: int = 0
    tokens: int = 0

    def add(self, other: Evidence) -> None:
        self.places += other.places
        self.surplus += other.surplus
        self.variance += other.variance
        self.impossible += other.impossible
        self.tokens += other.tokens

    @property
    def p_value(self) -> float:
        """The smaller of the two tests' p-values, doubled since there are two."""
        from scipy.stats import kstest

        uniform = float(kstest(self.places, "uniform").pvalue) if self.places else 1.0
        drafted = 2 * math.exp(-(self.surplus**2) / (2 * (self.variance + abs(self.surplus) / 3) + 1e-9))
        return min(1.0, 2 * min(uniform, drafted))


def gather(
    emitted: Ints,
    first: int,
    laws: Iterable[Distribution],
    trees: dict[int, DraftTree],
    seed: tuple[int, int],
) -> Evidence:
    """Evidence of one text, which began at index ``first``; ``trees`` by the length at which they were drafted."""
    coins = np.random.default_rng(seed)
    evidence = Evidence(tokens=len(emitted))
    tree, node = EMPTY, ROOT
    for index, (token, law) in enumerate(zip(emitted.tolist(), laws, strict=True), start=first):
        if index in trees:
            tree, node = trees[index], ROOT
        probs = np.asarray(law.probs, np.float64)
        at = int(np.searchsorted(law.ids, token))
        if at == len(law.ids) or law.ids[at] != token:
            evidence.impossible += 1
        else:
            evidence.places.append(float(probs[:at].sum() + coins.random() * probs[at]))
            weights = _weights(tree, node, law.ids)
            mean = float(probs @ weights)
            evidence.surplus += float(weights[at]) - mean
            evidence.variance += float(probs @ (weights - mean) ** 2)
        child = tree.child(node, token)
        tree, node = (EMPTY, ROOT) if child is None else (tree, child)
    return evidence


def _weights(tree: DraftTree, node: int, ids: Ints) -> NDArray[np.float64]:
    """What the second test weighs each token of a law by, at this node of its draft."""
    if (q := tree.drawn.get(node)) is not None:
        return np.asarray(q.probabilities(ids), np.float64)
    return np.isin(ids, tree.tokens[tree.children(node)]).astype(np.float64)
