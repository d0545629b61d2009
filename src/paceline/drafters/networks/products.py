"""Drafts by laws that depend on a place alone, not on the tokens before it: the likeliest paths of all.

The chance of a path is then the product of its tokens' chances. A level of a draft keeps as many of the best paths as
the draft may have nodes. The best paths of all levels are among these, since no path is likelier than its beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from paceline.context import Context
from paceline.drafters.candidates import Candidates, best_of, trees_of
from paceline.drafters.networks.growth import DraftShape, Growth
from paceline.law import Distribution
from paceline.tree import ROOT, DraftTree, Floats, Ints

STEP = 1e-9
"""Taken from the worth of a path for each of its tokens, so that a certain token never comes before the path to it."""
NO_NODES: Ints = np.empty(0, np.int64)


class ProductGrowth(Growth):
    """A draft of one law for each level. It is drawn as other drafts are where it is a single line with its laws.

    Where users' settings count tokens, each law is the one behind the likeliest path.
    """

    def __init__(self, state: Any, shape: DraftShape, nodes: int, depth: int, *, text: Context | None = None) -> None:
        super().__init__(state, shape, nodes, depth, text=text)
        self._levels = list[Candidates]()
        self._last: tuple[Ints, Floats] = np.array([ROOT]), np.zeros(1)
        """The numbers of the paths that go on, and the logarithms of their chances."""

    def __len__(self) -> int:
        return super().__len__() + sum(len(level.tokens) for level in self._levels)

    def add(self, laws: Sequence[Distribution]) -> None:
        if self.sampled:
            super().add(laws)
            return
        (text,), (law,), candidates = self.texts, laws, self._candidates(laws)
        first, self.level = len(self), self.level + 1
        ids, scores = candidates.get(id(law), (NO_NODES, np.empty(0)))
        parents, paths = self._last
        whole = (paths[:, None] + scores).ravel()
        likely = np.flatnonzero(np.exp(whole) >= self.shape.confidence)
        best = likely[best_of(whole[likely], self._nodes)]
        best = best[np.argsort(-whole[best], kind="stable")]
        above, place = np.divmod(best, max(1, len(ids)))
        tokens, worth = ids[place], whole[best]
        unowned = np.zeros(len(best), np.int64)
        self._levels.append(
            Candidates(tokens, np.exp(scores[place]), worth - STEP * self.level, parents[above], unowned)
        )
        ends = self.state.ends
        going = np.flatnonzero([token not in ends for token in tokens.tolist()])
        self._last = first + going, worth[going]
        self._going = going[:1].tolist() if self.level < self._depth else []
        self.texts = [text.extended([int(tokens[node])]) for node in self._going]

    def tree(self, source: str) -> DraftTree:
        return trees_of(self._levels, [self._nodes], source)[0] if self._levels else super().tree(source)
