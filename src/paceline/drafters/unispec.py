"""UniSpec: a draft tree of stored next tokens, by their probabilities.

Each level of the tree takes the stored candidates of the level above. A node is worth its candidate's probability times
its parent's worth. In the paper's letters, with ``S`` the store, ``C`` the best tokens beside the one that was chosen
last, *d* the depth, *k* the width and *r* the threshold ::

    level 1     S[root] + C                       the next token is often probable one place too early
    level i+1   S[u] for the k worthiest nodes u of level i, if worth at least r
    the draft   the g worthiest of all nodes

A node is never worth more than its parent, so the choice is connected. With ``confidence=token`` a node is worth its
own candidate's probability, and the worthiest are taken as far as their parents are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.context import Context
from paceline.drafters.base import Budget, Seen
from paceline.drafters.noise import Chances, Ids, SharedNoise
from paceline.drafters.store import StoreDrafter, StoreState, renumbered
from paceline.errors import InputError
from paceline.tree import EMPTY, ROOT, DraftTree, Floats, Ints

FADING = 0.5
"""Without scores, how much less likely each candidate of a row is taken to be than the one before it."""
BELOW = 1 - 1e-12
"""A certain child is worth this much of its parent, so that the parent is always chosen first."""


@dataclass(eq=False)
class UniSpecState(StoreState):
    """One sequence, and the candidates for the place of its last token."""

    others: Ids | None = None
    chances: Chances | None = None


class Candidates:
    """All candidates of a draft, level by level, in arrays with room for as many as there can be."""

    def __init__(self, room: int) -> None:
        self.tokens: Ints = np.empty(room, np.int64)
        self.parents: Ints = np.empty(room, np.int64)
        """Counted through all levels."""
        self.own: Floats = np.empty(room)
        """How likely each is by itself."""
        self.worth: Floats = np.empty(room)
        self.count = 0

    def add(self, tokens: Ids, own: Chances, worth: Floats, parents: Ints | int) -> slice:
        """A level, ``[parents, candidates]`` or one parent's; returns where it stands."""
        here = slice(self.count, self.count + tokens.size)
        self.tokens[here].reshape(tokens.shape)[...] = tokens
        self.own[here].reshape(own.shape)[...] = own
        self.worth[here].reshape(worth.shape)[...] = worth
        self.parents[here].reshape(tokens.shape)[...] = parents
        self.count = here.stop
        return here


class UniSpec(StoreDrafter):
    """Algorithm 1 of the paper but for its calibration, which is a planner's."""

    name = "unispec"
    summary = "a tree of what the model nearly said after each token, by how likely it found it"
    source = "UniSpec (Do et al. 2025)"
    unfit = "every token of the text is new, or the text only copies (suffix is cheaper)"
    nodes = 60

    def __init__(
        self,
        *,
        k: int = 10,
        depth: int = 10,
        threshold: float = 0.05,
        confidence: str = "path",
        scores: bool = True,
        next: str = "others",
        noise: str = "shared",
        prefill: bool = False,
        store: str = "shared",
    ) -> None:
        for key, value in (("k", k), ("depth", depth)):
            if value < 1:
                raise InputError(f"{self.name} needs {key} of at least 1, not {value}")
        if not 0 <= threshold <= 1:
            raise InputError(f"{self.name} takes a threshold from 0 to 1, not {threshold}")
        if confidence not in ("path", "token"):
            raise InputError(f"{self.name} takes confidence=path or confidence=token, not {confidence!r}")
        if next not in ("others", "all", "none"):
            raise InputError(f"{self.name} takes next=others, next=all or next=none, not {next!r}")
        super().__init__(width=k, noise=noise, store=store, prefill=prefill)
        self.k, self.depth = k, depth
        self.threshold = threshold if scores else 0.0
        self.by_path = confidence == "path"
        self.next = next
        self._ranks = None if scores else FADING ** np.arange(1.0, k + 1)
        self._later = f"{self.name}-next"
        self._both = f"{self.name}+{self._later}"

    def open(self, context: Context) -> UniSpecState:
        return UniSpecState(context, self._store(context), SharedNoise.of(context, self._noise and self._ranks is None))

    def observe(self, seen: Sequence[Seen]) -> None:
        for one in seen:
            text: UniSpecState = one.state
            found = self._learn(one, text.store)
            if found is not None:
                path = one.verdict.path
                last = path[-1] + 1 if path else 0
                text.others, text.chances = _wide(found[0].ids[last], self.k), _wide(found[1][last], self.k)

    def propose_one(self, state: UniSpecState, budget: Budget) -> DraftTree:
        if budget.empty:
            return EMPTY
        depth = min(self.depth, budget.depth)
        found = Candidates(self.k * (2 + (depth - 1) * self.k))
        with state.store.lock:
            names = self._first(state, found)
            self._grow(state, found, depth)
        return self._chosen(found, names, budget.nodes)

    def _first(self, text: UniSpecState, found: Candidates) -> list[str]:
        """Adds the candidates for the next token; returns the source of each. One that both sources name is one
        candidate."""
        root, store = text.context.root, text.store
        rows, laws = [], []
        if root < len(store):
            rows.append(store.tokens[root])
            laws.append(store.chances[root])
        else:
            rows.append(np.zeros(store.width, np.int32))
            laws.append(np.zeros(store.width, np.float32))
        if self.next != "none" and text.others is not None and text.chances is not None:
            rows.append(text.others)
            laws.append(text.chances)
        ids = [row.tolist() for row in rows]
        believed = self._believed(text, np.array(laws), np.array(rows), 0).tolist()
        first = {token: chance for token, chance in zip(ids[0], believed[0], strict=True) if chance > 0}
        names = dict.fromkeys(first, self.name)
        if len(ids) > 1:
            barred = root if self.next == "others" else None
            for token, chance in zip(ids[1], believed[1], strict=True):
                if chance > 0 and token != barred:
                    names[token] = self._both if token in first else self._later
                    first[token] = max(chance, first.get(token, 0.0))
        chances = np.array(list(first.values()), np.float64)
        found.add(np.array(list(first), np.int64), chances, chances, ROOT)
        return list(names.values())

    def _believed(self, text: StoreState, chances: Chances, ids: Ids, place: int) -> Chances:
        """The probability of each candidate, as far as it is known; 0 for the places of a row that hold none."""
        if text.noise is not None:
            return text.noise.wins(chances, ids, place)
        if self._ranks is not None:
            ranked: Chances = (chances > 0) * self._ranks[: chances.shape[1]]
            return ranked
        return chances

    def _grow(self, text: StoreState, found: Candidates, depth: int) -> None:
        """Adds all further levels, as far as nodes are worth going on from."""
        ends, store, here = text.context.ending.eos, text.store, slice(0, found.count)
        rows = len(store)
        for place in range(1, depth):
            rank = (found.worth if self.by_path else found.own)[here]
            going = self._order(rank)[: self.k]
            likely = rank[going].tolist()
            while likely and (likely[-1] < self.threshold or likely[-1] <= 0):
                likely.pop()
            going = going[: len(likely)]
            tokens = found.tokens[here][going]
            if not ends.isdisjoint(said := tokens.tolist()) or max(said, default=0) >= rows:
                goes_on = [token not in ends and token < rows for token in said]
                going, tokens = going[goes_on], tokens[goes_on]
            if not len(going):
                return
            going += here.start
            ids, chances = store.tokens.take(tokens, 0), store.chances.take(tokens, 0)
            own, above = self._believed(text, chances, ids, place), found.worth[going][:, None]
            worth = own * (above * BELOW) if self.by_path else np.minimum(own, above)
            here = found.add(ids, own, worth, going[:, None])

    def _order(self, worth: Floats) -> Ints:
        """The likeliest first. Nodes of equal worth are the rule where a path is worth what its weakest token is."""
        return (-worth).argsort() if self.by_path else (-worth).argsort(kind="stable")

    def _chosen(self, found: Candidates, names: list[str], nodes: int) -> DraftTree:
        """The worthiest nodes of all levels as a tree."""
        chosen = self._order(found.worth[: found.count])[:nodes]
        chosen = chosen[found.worth[chosen] > 0]
        if not len(chosen):
            return EMPTY
        chosen.sort()
        parents = renumbered(found.parents[: found.count], chosen)
        first = int(chosen.searchsorted(len(names)))
        sources = (*[names[node] for node in chosen[:first].tolist()], *(self.name,) * (len(chosen) - first))
        return DraftTree(found.tokens[chosen], parents, np.log(found.own[chosen]), sources)


def _wide(row: Ids | Chances, width: int) -> Any:
    """A row of a vocabulary smaller than the store is wide, with places that hold nothing."""
    return row if len(row) == width else np.concatenate([row, np.zeros(width - len(row), row.dtype)])
