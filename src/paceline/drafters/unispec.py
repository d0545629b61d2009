"""UniSpec: a draft tree of stored next tokens, by their probabilities.

Each level of the tree takes the stored candidates of the level above. A node is worth its candidate's probability times
its parent's worth. In the paper's letters, with ``S`` the store, ``C`` the best tokens beside the one that was chosen
last, *d* the depth, *k* the width and *r* the threshold ::

    level 1     S[root] + C                       the next token is often probable one place too early
    level i+1   S[u] for the k worthiest nodes u of level i, if worth at least r
    the draft   the g worthiest of all nodes

A node is never worth more than its parent, so the choice is connected.

``unispec:paper`` is Algorithm 1 as it is printed: a node is worth its own candidate's probability, ``C`` keeps the
token that was chosen, every text begins with an empty store, and no noise ranks candidates. Where the printed algorithm
is unclear or cannot be meant, it is read as follows:

- The k leaves of a level are chosen among its own nodes, as appendix A says ("at each level"). As printed, ``T[i]``
  also holds ``T[i-1]``, and lacks all children but those of the last leaf.
- A token that both ``S[root]`` and ``C`` name is one node, with the higher of its probabilities.
- A node needs its parent, so the g worthiest are taken one by one, each among those whose parent is taken.
- Of equally worthy nodes the earlier is taken.
- Where several rows of a round are of one token, those that became text are stored last.
- Nothing follows a token that ends the text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from paceline.context import Context
from paceline.drafters.base import Budget, Seen, at_least, one_of
from paceline.drafters.candidates import Candidates, tree_of, worth_of
from paceline.drafters.noise import Chances, Ids, SharedNoise
from paceline.drafters.store import StoreDrafter, StoreState
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
    length: int = 0
    """The length of the text of which that is the last token."""


class UniSpec(StoreDrafter):
    """A tree over the store by how likely its nodes are. A planner sets the number of nodes."""

    name = "unispec"
    summary = "the model's best successors of each token, in a tree of the most probable paths"
    source = "UniSpec (Do et al. 2025)"
    unfit = "text in which every token is new, or that only copies (suffix is cheaper there)"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
        {"paper": {"confidence": "token", "next": "all", "noise": "none", "store": "private"}}
    )
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
        at_least(self.name, 1, k=k, depth=depth)
        if not 0 <= threshold <= 1:
            raise InputError(f"{self.name} takes a threshold from 0 to 1, not {threshold}")
        one_of(self.name, ("path", "token"), confidence=confidence)
        one_of(self.name, ("others", "all", "none"), next=next)
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
                text.length = len(text.context)

    def propose_one(self, state: UniSpecState, budget: Budget) -> DraftTree:
        if budget.empty:
            return EMPTY
        with state.store.lock:
            first, names = self._first(state)
            levels, before = [first], 0
            for place in range(1, min(self.depth, budget.depth)):
                if (below := self._below(state, levels[-1], place, before)) is None:
                    break
                before += len(levels[-1].tokens)
                levels.append(below)
        return self._chosen(levels, names, budget.nodes)

    def _first(self, text: UniSpecState) -> tuple[Candidates, list[str]]:
        """The candidates for the next token, and the source of each. One that both sources name is one candidate."""
        root, store = text.context.root, text.store
        rows, laws = [], []
        if root < len(store):
            rows.append(store.tokens[root])
            laws.append(store.chances[root])
        else:
            rows.append(np.zeros(store.width, np.int32))
            laws.append(np.zeros(store.width, np.float32))
        known = text.others is not None and text.chances is not None and text.length == len(text.context)
        if self.next != "none" and known:
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
        return Candidates(np.array(list(first), np.int64), chances, chances, np.full(len(first), ROOT)), list(
            names.values()
        )

    def _believed(self, text: StoreState, chances: Chances, ids: Ids, place: int) -> Chances:
        """The probability of each candidate, as far as it is known; 0 for the places of a row that hold none."""
        if text.noise is not None:
            return text.noise.wins(chances, ids, place)
        if self._ranks is not None:
            ranked: Chances = (chances > 0) * self._ranks[: chances.shape[1]]
            return ranked
        return chances

    def _below(self, text: StoreState, level: Candidates, place: int, before: int) -> Candidates | None:
        """The children of the nodes of a level that are worth going on from, if any. ``before`` counts the nodes of the
        levels above."""
        ends, store = text.context.ending.eos, text.store
        rank = level.worth if self.by_path else level.odds
        going = self._order(rank)[: self.k]
        likely = rank[going].tolist()
        while likely and (likely[-1] < self.threshold or likely[-1] <= 0):
            likely.pop()
        going = going[: len(likely)]
        tokens = level.tokens[going]
        if not ends.isdisjoint(ids := tokens.tolist()) or max(ids, default=0) >= len(store):
            goes_on = [token not in ends and token < len(store) for token in ids]
            going, tokens = going[goes_on], tokens[goes_on]
        if not len(going):
            return None
        children, chances = store.tokens.take(tokens, 0), store.chances.take(tokens, 0)
        odds, above = self._believed(text, chances, children, place), level.worth[going][:, None]
        worth = odds * (above * BELOW) if self.by_path else np.minimum(odds, above)
        return Candidates(children.ravel(), odds.ravel(), worth.ravel(), (going + before).repeat(store.width))

    def _order(self, worth: Chances) -> Ints:
        """The worthiest first, and for the paper's form the earlier of equals."""
        return (-worth).argsort(kind=None if self.by_path else "stable")

    def _chosen(self, levels: Sequence[Candidates], names: list[str], nodes: int) -> DraftTree:
        """The worthiest nodes of all levels as a tree."""
        worth = worth_of(levels)
        chosen = self._order(worth)[:nodes] if self.by_path else _hanging(levels, worth, nodes)
        chosen = chosen[worth[chosen] > 0]
        if not len(chosen):
            return EMPTY
        chosen.sort()
        first = int(chosen.searchsorted(len(names)))
        sources = (*[names[node] for node in chosen[:first].tolist()], *(self.name,) * (len(chosen) - first))
        return tree_of(levels, chosen, sources)


def _hanging(levels: Sequence[Candidates], weakest: Floats, nodes: int) -> Ints:
    """The nodes of the highest odds, one by one, each among those whose parent is chosen. The ``weakest`` node of its
    path decides whether one can be among them."""
    least = np.partition(weakest, -nodes)[-nodes] if nodes < len(weakest) else 0.0
    possible = np.flatnonzero(weakest >= least)
    odds = np.concatenate([level.odds for level in levels])[possible].tolist()
    parents = np.concatenate([level.parents for level in levels])[possible].tolist()
    waiting, children = list[tuple[float, int]](), dict[int, list[tuple[float, int]]]()
    for node, parent, chance in zip(possible.tolist(), parents, odds, strict=True):
        (waiting if parent == ROOT else children.setdefault(parent, [])).append((-chance, node))
    heapify(waiting)
    chosen = list[int]()
    while waiting and len(chosen) < nodes:
        chosen.append(heappop(waiting)[1])
        for child in children.get(chosen[-1], ()):
            heappush(waiting, child)
    return np.array(chosen, np.int64)


def _wide(row: Ids | Chances, width: int) -> Any:
    """A row of a vocabulary smaller than the store is wide, with places that hold nothing."""
    return row if len(row) == width else np.concatenate([row, np.zeros(width - len(row), row.dtype)])
