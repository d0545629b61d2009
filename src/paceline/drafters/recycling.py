"""Token Recycling: stored next tokens laid out in a tree whose shape never changes.

The shape says which candidate of its parent each node carries: the first, the second and so on. Its levels have the
paper's sizes. A level holds the paths of the smallest *cost*, the product of ``rank + 1`` over their steps, with ranks
from 0: as if a candidate were chosen in inverse proportion to its rank, the second half as often as the first, the
third a third as often. With fewer nodes the shape keeps those of the smallest cost.

``recycling:paper`` has the tree that the authors published, from which ours differs in 8 of 80 nodes, ranks candidates
as the model does, and keeps its store over all texts. Theirs drafts token 0 where nothing is known yet; here such
nodes are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import prod
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from paceline.drafters.base import Budget, Seen, one_of
from paceline.drafters.candidates import renumbered
from paceline.drafters.noise import Chances, Ids
from paceline.drafters.store import StoreDrafter, StoreState
from paceline.tree import EMPTY, ROOT, DraftTree, Floats, Ints

WIDTH = 8
"""Candidates that are kept for every token."""
LEVELS = (8, 21, 25, 15, 8, 3)
"""How many nodes the paper's tree has at each depth: 80 in all."""
PUBLISHED = (
    "0 1 2 3 4 5 6 7 "
    "00 01 02 03 04 05 06 07 10 11 12 13 20 21 22 30 31 40 50 60 70 "
    "000 001 002 003 004 005 006 007 010 011 012 020 021 030 040 050 060 070 100 101 110 200 300 400 500 "
    "0000 0001 0002 0003 0004 0010 0011 0020 0030 0040 0100 0200 1000 2000 3000 "
    "00000 00001 00002 00010 00020 00100 01000 10000 "
    "000000 000001 000100"
)
"""The tree of the authors' code: every node by the ranks on its path."""


@dataclass(frozen=True, eq=False)
class Template:
    """A shape, level by level."""

    parents: Ints
    ranks: Ints
    """Which of its parent's candidates each node carries."""
    starts: tuple[int, ...]
    """Where each level begins, and where the last one ends."""
    above: tuple[Ints, ...]
    """For each level after the first: the parents of its nodes, each once."""
    among: tuple[Ints, ...]
    """For each level after the first: the number of each node's parent among those."""


def cheapest() -> Iterator[tuple[int, ...]]:
    """The nodes of our own tree, by the ranks on their paths."""
    level: list[tuple[int, ...]] = [()]
    for size in LEVELS:
        level = sorted(sorted(((*path, rank) for path in level for rank in range(WIDTH)), key=_by_cost)[:size])
        yield from level


def published() -> Iterator[tuple[int, ...]]:
    """The nodes of the authors' tree."""
    for path in PUBLISHED.split():
        yield tuple(map(int, path))


def _by_cost(path: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    return prod(rank + 1 for rank in path), path


TREES = {"cheapest": cheapest, "published": published}


@lru_cache(maxsize=256)
def template(nodes: int, depth: int, tree: str) -> Template:
    """The shape of at most ``nodes`` nodes and ``depth`` levels."""
    paths = [path for path in TREES[tree]() if len(path) <= depth]
    costs = [prod(rank + 1 for rank in path) for path in paths]
    kept = sorted(sorted(range(len(paths)), key=lambda node: (costs[node], len(paths[node]), node))[:nodes])
    place = {(): ROOT} | {paths[node]: number for number, node in enumerate(kept)}
    parents = np.array([place[paths[node][:-1]] for node in kept], np.int64)
    ranks = np.array([paths[node][-1] for node in kept], np.int64)
    steps = [len(paths[node]) for node in kept]
    starts = tuple(steps.index(step) for step in sorted(set(steps)))
    bounds = (*starts, len(kept))
    joints = [np.unique(parents[a:b], return_inverse=True) for a, b in pairwise(bounds[1:])]
    return Template(parents, ranks, bounds, tuple(j[0] for j in joints), tuple(j[1] for j in joints))


class Recycling(StoreDrafter):
    """A tree of a fixed shape over the store: ``tree=published`` is the authors', ``tree=cheapest`` ours. With
    ``noise=none`` candidates are in the model's order."""

    name = "recycling"
    summary = "the model's best successors of each token, in a tree of a fixed shape"
    source = "Token Recycling (Luo et al. 2024)"
    unfit = "machines on which rows are expensive: the tree has the same shape whatever its candidates are worth"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
        {"paper": {"tree": "published", "noise": "none", "store": "kept"}}
    )
    nodes = sum(LEVELS)

    def __init__(
        self, *, tree: str = "cheapest", noise: str = "shared", prefill: bool = False, store: str = "shared"
    ) -> None:
        one_of(self.name, TREES, tree=tree)
        super().__init__(width=WIDTH, noise=noise, store=store, prefill=prefill)
        self.tree = tree

    def observe(self, seen: Sequence[Seen]) -> None:
        for one in seen:
            self._learn(one, one.state.store)

    def propose_one(self, state: StoreState, budget: Budget) -> DraftTree:
        root = state.context.root
        if budget.empty:
            return EMPTY
        shape = template(min(budget.nodes, self.nodes), min(budget.depth, len(LEVELS)), self.tree)
        tokens = np.empty(len(shape.ranks), np.int64)
        chances = np.empty(len(shape.ranks))
        with state.store.lock:
            if root >= len(state.store) or not state.store.chances[root, 0]:
                return EMPTY
            for level in range(len(shape.starts) - 1):
                here = slice(shape.starts[level], shape.starts[level + 1])
                above = np.array([root]) if level == 0 else tokens[shape.above[level - 1]]
                among = 0 if level == 0 else shape.among[level - 1]
                tokens[here], chances[here] = self._candidates(state, above, level, among, shape.ranks[here])
        return self._tree(state, shape, tokens, chances)

    def _candidates(
        self, text: StoreState, above: Ints, place: int, among: Ints | int, ranks: Ints
    ) -> tuple[Ids, Chances]:
        """The candidates of the given ``ranks`` after the tokens ``above``; ``among`` is the row of each."""
        ids, chances = text.store.tokens.take(above, 0), text.store.chances.take(above, 0)
        if text.noise is None:
            return ids[among, ranks], chances[among, ranks]
        likely = text.noise.wins(chances, ids, place)
        chosen = (-likely).argsort(axis=1, kind="stable")[among, ranks]
        return ids[among, chosen], likely[among, chosen]

    def _tree(self, text: StoreState, shape: Template, tokens: Ints, chances: Floats) -> DraftTree:
        """The filled shape, less what hangs from nothing or from an end of the text."""
        ends = text.context.ending.eos
        filled = chances > 0
        ended = [node for node, token in enumerate(tokens.tolist()) if token in ends] if ends else []
        if filled.all() and not ended:
            return DraftTree(tokens, shape.parents, np.log(chances), (self.name,) * len(tokens))
        alive = filled.tolist()
        for node, parent in enumerate(shape.parents.tolist()):
            if parent != ROOT and not (alive[parent] and parent not in ended):
                alive[node] = False
        kept = np.flatnonzero(alive)
        parents = renumbered(shape.parents, kept)
        return DraftTree(tokens[kept], parents, np.log(chances[kept]), (self.name,) * len(kept))
