"""The chance that a draft node is accepted, by its source, its depth and the score that the source gave it.

A node counts if all nodes before it were accepted: then the text decides about it and its siblings, whether they were
scored or left out. So the planner can learn without sending a draft. If few nodes were seen, the source's own
probability counts, corrected by the general error of its probabilities. So a source that is always wrong is noticed
within a few rounds, whatever it claims.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from paceline.tree import ROOT, DraftTree, Floats, Ints

EDGES = np.log([0.01, 0.03, 0.06, 0.1, 0.17, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.92, 0.97, 0.99])
"""Log-probabilities between two of which scores count as equal."""
DEPTHS = (1, 2, 3, 5)
"""Depths at which a class begins."""
MEMORY = 0.99
"""The weight that earlier nodes of a class keep with each new one."""
PRIOR = 4.0
"""The source's own probability has the weight of this many nodes."""
LEAST, MOST = 1e-4, 0.98
"""No node is impossible, and none is certain: so a child is always less likely than its parent."""

TRUSTING = 4.0
"""Tokens, promised and come true, that a new planner begins with."""
FORGOTTEN = 0.98
"""The weight that earlier rounds keep with each new one, in promised tokens and those that came true."""

_SCORES = len(EDGES) + 1
DEEPEST = DEPTHS[-1] - 1
_OF_DEPTH = _SCORES * (np.searchsorted(DEPTHS, np.arange(1, DEPTHS[-1] + 1), side="right") - 1)
"""Depth - 1 -> the first class of its depth, which that of `DEEPEST` is for all below."""
_EDGES, _FIRST = EDGES.tolist(), _OF_DEPTH.tolist()
_OF_SOURCE = _SCORES * len(DEPTHS)
"""Classes of a source: its first one is this times its number."""


class Trust:
    """The share of promised tokens that chosen nodes bring. The nodes that look best are chosen, and among many
    doubtful ones some look better than they are: more so if less is known and there are more to choose from."""

    def __init__(self) -> None:
        self._promised = self._came = TRUSTING

    @property
    def share(self) -> float:
        """The share of a promise that is believed, at most all of it."""
        return min(1.0, self._came / self._promised)

    def learn(self, expected: float, came: float) -> None:
        """A draft was expected to bring ``expected`` tokens, at this share, and brought ``came``. Rounds without one
        count, too: drafts that are trusted too little to be sent get another chance in time."""
        promised = expected / self.share
        self._promised += (1 - FORGOTTEN) * (TRUSTING - self._promised) + promised
        self._came += (1 - FORGOTTEN) * (TRUSTING - self._came) + came


class Reliability:
    """Counts by class: source, depth and score in one number."""

    def __init__(self) -> None:
        self._sources: dict[str, int] = {}
        self._seen, self._true = list[float](), list[float]()
        self._claimed, self._came = list[float](), list[float]()

    def odds(self, trees: Sequence[DraftTree], depths: Ints) -> Floats:
        """The chance of every node of these drafts, one behind the other, to come true if its parent does."""
        scores = trees[0].scores if len(trees) == 1 else np.concatenate([tree.scores for tree in trees])
        names = [source for tree in trees for source in tree.sources]
        numbers = {name: self._number(name) for name in set(names)}
        sources = [numbers[name] for name in names]
        classes = (EDGES.searchsorted(scores) + self._first_classes(sources, depths)).tolist()
        bias = (np.array(self._came) + 1.0) / (np.array(self._claimed) + 1.0)
        odds: Floats = np.exp(scores)
        odds *= bias.take(sources)
        np.fmin(odds, MOST, out=odds)
        odds *= PRIOR
        odds += [self._true[each] for each in classes]
        odds /= np.array([self._seen[each] for each in classes]) + PRIOR
        return odds.clip(LEAST, MOST)

    def levels(self, tree: DraftTree, depths: Ints) -> Floats:
        """The same chances by source and depth alone, for sampled nodes, which may not be cut by their value."""
        where = self._first_classes([self._number(source) for source in tree.sources], depths) // _SCORES
        seen, true = (np.reshape(table, (-1, _SCORES)).sum(axis=1) for table in (self._seen, self._true))
        odds: Floats = np.clip((true[where] + 1.0) / (seen[where] + 2.0), LEAST, MOST)
        return odds

    def learn(self, tree: DraftTree, node: int, tokens: Sequence[int]) -> int | None:
        """The text went on with these tokens behind ``node``: where that leads in the draft, None if out of it."""
        parents, drafted, scores = tree.parents.tolist(), tree.tokens.tolist(), tree.scores.tolist()
        seen, true, claimed, arrived = self._seen, self._true, self._claimed, self._came
        depth = 0 if node == ROOT else len(tree.path(node))
        for token in tokens:
            reached = None
            first = _FIRST[depth if depth < DEEPEST else DEEPEST]
            for child in _children(tree, parents, node):
                source, score, came = self._number(tree.sources[child]), scores[child], drafted[child] == token
                place = source * _OF_SOURCE + first + bisect_left(_EDGES, score)
                if came:
                    reached = child
                seen[place] = seen[place] * MEMORY + 1.0
                true[place] = true[place] * MEMORY + came
                claimed[source] = claimed[source] * MEMORY + math.exp(score)
                arrived[source] = arrived[source] * MEMORY + came
            if reached is None:
                return None
            node, depth = reached, depth + 1
        return node

    @staticmethod
    def _first_classes(sources: Sequence[int], depths: Ints) -> Ints:
        """The first class of every node's source and depth."""
        of_depth = _OF_DEPTH.take(np.fmin(depths, DEEPEST + 1) - 1)
        return np.array(sources, np.int64) * _OF_SOURCE + of_depth

    def _number(self, source: str) -> int:
        """The number of a source, a new one for a name that was not met before."""
        number = self._sources.get(source)
        if number is None:
            number = self._sources[source] = len(self._sources)
            self._seen += [0.0] * _OF_SOURCE
            self._true += [0.0] * _OF_SOURCE
            self._claimed.append(0.0)
            self._came.append(0.0)
        return number


def _children(tree: DraftTree, parents: list[int], node: int) -> Sequence[int]:
    """The nodes of a draft that were verified behind this one; ``parents`` are the draft's."""
    if tree.probes is not None:
        found: list[int] = tree.children(node).tolist()
        return found
    if not (count := parents.count(node)):
        return ()
    first = parents.index(node)
    return (first,) if count == 1 else [child for child in range(first, len(parents)) if parents[child] == node]
