"""REST: drafts retrieved from a corpus.

The longest ending of the text that is in a datastore, of 16 down to 2 tokens, is looked up there. What followed at all
its places, or at evenly chosen ones where there are many, becomes a tree by how often it did.
"""

from __future__ import annotations

from paceline.context import Context
from paceline.drafters.base import Budget, Drafter
from paceline.drafters.datastore import KEY, SHORTEST, Datastore
from paceline.drafters.noise import SharedNoise, wants_noise
from paceline.drafters.votes import even, grow
from paceline.errors import InputError
from paceline.targets.base import Target
from paceline.tree import DraftTree
from paceline.vocabulary import Vocabulary


class Rest(Drafter):
    """Continues the longest ending that a corpus knows, as the corpus does."""

    name = "rest"
    summary = "retrieve what followed the longest matching ending in a corpus, as a tree by frequency"
    source = "REST (He et al. 2023)"
    requires = "a corpus: corpus=FILE, which 'paceline datastore build' writes"
    unfit = "text unlike the corpus"
    nodes = 16

    def __init__(
        self,
        *,
        corpus: str,
        longest: int = KEY,
        shortest: int = SHORTEST,
        matches: int = 64,
        length: int = 10,
        noise: str = "shared",
    ) -> None:
        if not 1 <= shortest <= longest <= KEY:
            raise InputError(f"rest needs 1 <= shortest <= longest <= {KEY}, not {shortest} and {longest}")
        if matches < 1:
            raise InputError(f"rest takes its draft from at least one match, not {matches}")
        if length < 1:
            raise InputError(f"rest drafts continuations of at least one token, not {length}")
        self._store = Datastore.shared(corpus)
        self._longest, self._shortest = longest, shortest
        self._matches, self._length = matches, length
        self._noise = wants_noise(self.name, noise)

    def fit(self, target: Target, vocabulary: Vocabulary | None = None) -> None:
        self._store.check(target.vocab_size, vocabulary)

    def propose_one(self, state: Context, budget: Budget) -> DraftTree:
        depth = min(budget.depth, self._length)
        ending = state.tokens[-self._longest :].tolist()
        found = self._store.following(
            ending, self._matches, min(depth, budget.nodes), longest=self._longest, shortest=self._shortest
        )
        return grow(even(found), budget.nodes, depth, self.name, SharedNoise.of(state, self._noise))
