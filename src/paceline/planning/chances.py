"""The chance of a draft node to come true, by its source, its depth and the score that the source gave it.

A node counts once all nodes before it came true: then the text shows whether it did, and its siblings, whether they
were scored or left out. So nothing need be sent to learn. Where few nodes were seen, the source's own probability
counts, corrected by how far its probabilities have been off in general. So a source that is always wrong is noticed
within a few rounds, whatever it claims.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from paceline.tree import DraftTree

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

EDGES = np.log([0.01, 0.03, 0.06, 0.1, 0.17, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.92, 0.97, 0.99])
"""Log-probabilities between two of which scores count as equal."""
DEPTHS = (1, 2, 3, 5)
"""Depths at which a class begins."""
MEMORY = 0.99
"""The weight that earlier nodes of a class keep with each new one."""
PRIOR = 4.0
"""Nodes that the source's own probability counts as."""
LEAST, MOST = 1e-4, 0.98
"""No node is impossible, and none is certain: so a child is always less likely than its parent."""

TRUSTING = 4.0
"""Tokens, promised and come true, that a new planner begins with."""
FORGOTTEN = 0.98
"""The weight that earlier rounds keep with each new one, in promised tokens and those that came true."""

_SCORES = len(EDGES) + 1
_OF_DEPTH = _SCORES * (np.searchsorted(DEPTHS, np.arange(1, 65), side="right") - 1)
"""Depth - 1 -> the first class of its depth."""
_OF_SOURCE = _SCORES * len(DEPTHS)
"""Classes of a source: its first one is this times its number."""


class Trust:
    """The share of promised tokens that chosen nodes bring. Chosen are those that look best, and among many doubtful
    ones some look better than they are: the more of them, the less is known and the more there is to choose from."""

    def __init__(self) -> None:
        self._promised = self._came = TRUSTING

    @property
    def share(self) -> float:
        """The share of a promise that is believed, at most all of it."""
        return min(1.0, self._came / self._promised)

    def learn(self, expected: float, came: float) -> None:
        """A draft was expected to bring so many tokens, at this share, and brought so many. Rounds without one count,
        too: drafts that are trusted too little to be sent get another chance in time."""
        promised = expected / self.share
        self._promised += (1 - FORGOTTEN) * (TRUSTING - self._promised) + promised
        self._came += (1 - FORGOTTEN) * (TRUSTING - self._came) + came


class Reliability:
    """Counts by class: source, depth and score in one number."""

    def __init__(self) -> None:
        self._sources: dict[str, int] = {}
        self._seen, self._true = np.zeros(4 * _OF_SOURCE), np.zeros(4 * _OF_SOURCE)
        self._claimed, self._came = np.zeros(4), np.zeros(4)

    def odds(self, tree: DraftTree, depths: Ints) -> Floats:
        """Every node's chance to come true if its parent does."""
        source, depth, score = self._classes(tree, depths)
        where = source * _OF_SOURCE + depth + score
        odds = np.exp(tree.scores)
        odds *= ((self._came + 1.0) / (self._claimed + 1.0)).take(source)
        np.fmin(odds, MOST, out=odds)
        odds *= PRIOR
        odds += self._true.take(where)
        odds /= self._seen.take(where) + PRIOR
        np.fmax(odds, LEAST, out=odds)
        return np.fmin(odds, MOST, out=odds)

    def levels(self, tree: DraftTree, depths: Ints) -> Floats:
        """The same chances by source and depth alone, for sampled nodes, which may not be cut by their value."""
        source, depth, _ = self._classes(tree, depths)
        where = (source * _OF_SOURCE + depth) // _SCORES
        seen, true = (table.reshape(-1, _SCORES).sum(axis=1) for table in (self._seen, self._true))
        odds: Floats = np.clip((true[where] + 1.0) / (seen[where] + 2.0), LEAST, MOST)
        return odds

    def learn(self, tree: DraftTree, node: int, tokens: Sequence[int]) -> int | None:
        """The text went on with these tokens behind ``node``: where that leads in the draft, None if out of it."""
        classes: tuple[Ints, Ints, Ints] | None = None
        for token in tokens:
            children = tree.children(node)
            if len(children) == 0:
                return None
            classes = classes or self._classes(tree, tree.depths())
            source, depth, score = (part.take(children) for part in classes)
            came = tree.tokens.take(children) == token
            self._count(source, source * _OF_SOURCE + depth + score, came, tree.scores.take(children))
            if not came.any():
                return None
            node = int(children[came.argmax()])
        return node

    def _count(self, sources: Ints, where: Ints, came: NDArray[np.bool_], scores: Floats) -> None:
        seen, true = self._seen.data, self._true.data  # a number of an array is read in twice the time
        claimed, arrived = self._claimed.data, self._came.data
        columns = (part.tolist() for part in (sources, where, came, np.exp(scores)))
        for source, place, comes, claim in zip(*columns, strict=True):
            seen[place] = seen[place] * MEMORY + 1.0
            true[place] = true[place] * MEMORY + comes
            claimed[source] = claimed[source] * MEMORY + claim
            arrived[source] = arrived[source] * MEMORY + comes

    def _classes(self, tree: DraftTree, depths: Ints) -> tuple[Ints, Ints, Ints]:
        """Every node's source by its number, the first class of its depth, and that of its score."""
        return self._numbers(tree.sources), _OF_DEPTH.take(np.fmin(depths, 64) - 1), EDGES.searchsorted(tree.scores)

    def _numbers(self, sources: tuple[str, ...]) -> Ints:
        """A number per source, a new one for a name that was not met before."""
        known = self._sources
        try:
            return np.array([known[source] for source in sources], np.int64)
        except KeyError:
            for source in sources:
                known.setdefault(source, len(known))
            self._grow()
            return self._numbers(sources)

    def _grow(self) -> None:
        if (more := len(self._sources) - len(self._claimed)) > 0:
            self._seen, self._true = (
                np.append(table, np.zeros(more * _OF_SOURCE)) for table in (self._seen, self._true)
            )
            self._claimed, self._came = (np.append(table, np.zeros(more)) for table in (self._claimed, self._came))
