"""REST: drafts retrieved from a corpus.

The longest ending of the text that is in a datastore, of 16 down to 2 tokens, is looked up there. The continuations at
all its places, or at evenly chosen ones if there are many, become a tree by their frequency.

``rest:paper,corpus=FILE`` takes the first 5,000 places in the order of their continuations, and of these the 64 most
frequent beginnings, whatever the length of the match (``votes=count``). The authors' code then drops the longest
beginnings until all together have at most 64 different tokens, each counted for itself; here all 64 stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from paceline.context import Context
from paceline.drafters.base import Budget, Drafter, at_least, one_of
from paceline.drafters.candidates import renumbered
from paceline.drafters.datastore import KEY, SHORTEST, Datastore
from paceline.drafters.noise import SharedNoise, wants_noise
from paceline.drafters.votes import even, grow
from paceline.errors import InputError
from paceline.targets.base import Target
from paceline.tree import DraftTree
from paceline.vocabulary import Vocabulary

IDS = 1 << 32
"""More than there are token ids."""


class Rest(Drafter):
    """Continues the longest ending that a corpus knows, as the corpus does."""

    name = "rest"
    summary = "copy what followed the longest matching ending in a corpus, as a tree by frequency"
    source = "REST (He et al. 2023)"
    requires = "a corpus: corpus=FILE, which 'paceline datastore build' writes"
    unfit = "text unlike the corpus"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
        {"paper": {"matches": 5000, "votes": "count", "noise": "none", "nodes": 64}}
    )
    nodes = 16

    def __init__(
        self,
        *,
        corpus: str,
        longest: int = KEY,
        shortest: int = SHORTEST,
        matches: int = 64,
        length: int = 10,
        nodes: int = nodes,
        votes: str = "match",
        noise: str = "shared",
    ) -> None:
        if not 1 <= shortest <= longest <= KEY:
            raise InputError(f"rest needs 1 <= shortest <= longest <= {KEY}, not {shortest} and {longest}")
        at_least(self.name, 1, matches=matches, length=length, nodes=nodes)
        one_of(self.name, ("match", "count"), votes=votes)
        self._store = Datastore.shared(corpus)
        self.nodes, self._counts = nodes, votes == "count"
        self._longest, self._shortest = longest, shortest
        self._matches, self._length = matches, length
        self._noise = wants_noise(self.name, noise)

    def fit(self, target: Target, vocabulary: Vocabulary | None = None) -> None:
        self._store.check(target.vocab_size, vocabulary)

    def propose_one(self, state: Context, budget: Budget) -> DraftTree:
        depth = min(budget.depth, self._length)
        ending = state.tokens[-self._longest :].tolist()
        found = self._store.following(
            ending,
            self._matches,
            min(depth, budget.nodes),
            longest=self._longest,
            shortest=self._shortest,
            spread=not self._counts,
        )
        if self._counts:
            return counted([tokens for tokens, _ in found], budget.nodes, self.name)
        return grow(even(found), budget.nodes, depth, self.name, SharedNoise.of(state, self._noise))


def counted(found: Sequence[Sequence[int]], nodes: int, source: str) -> DraftTree:
    """The nodes that most of the continuations go through; of equals the shallower, then the one of lower tokens."""
    parents, tokens, counts = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.full(1, len(found))]
    above, size = np.zeros(len(found), np.int64), 1  # the root is node 0
    for step in range(max(map(len, found), default=0)):
        going = np.array([step < len(one) for one in found])
        here = np.array([one[step] for one in found if step < len(one)], np.int64)
        pairs, which, count = np.unique(above[going] * IDS + here, return_inverse=True, return_counts=True)
        above[going] = size + which
        parents.append(pairs // IDS)
        tokens.append(pairs % IDS)
        counts.append(count)
        size += len(pairs)
    through = np.concatenate(counts)
    above, ids = np.concatenate(parents), np.concatenate(tokens)
    chosen = np.sort((-through[1:]).argsort(kind="stable")[:nodes])
    scores = np.log(through[1:][chosen] / through[above[chosen]])
    return DraftTree(ids[chosen], renumbered(above - 1, chosen), scores, (source,) * len(chosen))
