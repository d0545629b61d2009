"""Token Recycling: stored next tokens laid out in a tree whose shape never changes.

The shape says which candidate of its parent each node carries: the first, the second and so on. Its levels have the
paper's sizes. A level holds the paths of the smallest *cost*, the product of ``rank + 1`` over their steps, with ranks
from 0: as if a candidate were chosen in inverse proportion to its rank, the second half as often as the first, the
third a third as often. With fewer nodes the shape keeps those of the smallest cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from paceline.drafters.base import Budget, Seen
from paceline.drafters.noise import Chances, Ids
from paceline.drafters.store import StoreDrafter, StoreState, renumbered
from paceline.tree import EMPTY, ROOT, DraftTree, Floats, Ints

WIDTH = 8
"""Candidates that are kept for every token."""
LEVELS = (8, 21, 25, 15, 8, 3)
"""How many nodes the paper's tree has at each depth: 80 in all."""


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


@lru_cache(maxsize=256)
def template(nodes: int, depth: int) -> Template:
    """The shape of at most so many nodes and levels."""
    found: list[tuple[int, int, int, int]] = []  # cost, depth, parent, rank
    level = [(1, ROOT)]
    for step, size in enumerate(LEVELS[:depth]):
        grown = sorted((cost * (rank + 1), parent, rank) for cost, parent in level for rank in range(WIDTH))[:size]
        grown.sort(key=lambda node: node[1:])
        level = [(cost, len(found) + number) for number, (cost, _, _) in enumerate(grown)]
        found += [(cost, step, parent, rank) for cost, parent, rank in grown]
    kept = sorted(sorted(range(len(found)), key=lambda node: (found[node][:2], node))[:nodes])
    place = {ROOT: ROOT} | {node: number for number, node in enumerate(kept)}
    parents = np.array([place[found[node][2]] for node in kept], np.int64)
    ranks = np.array([found[node][3] for node in kept], np.int64)
    steps = [found[node][1] for node in kept]
    starts = tuple(steps.index(step) for step in sorted(set(steps)))
    bounds = (*starts, len(kept))
    joints = [np.unique(parents[a:b], return_inverse=True) for a, b in pairwise(bounds[1:])]
    return Template(parents, ranks, bounds, tuple(j[0] for j in joints), tuple(j[1] for j in joints))


class Recycling(StoreDrafter):
    """The paper's tree over its store. With ``noise=none`` candidates stand in the model's order."""

    name = "recycling"
    summary = "what the model nearly said after each token, in a tree of a fixed shape"
    source = "Token Recycling (Luo et al. 2024)"
    unfit = "rows cost much: its shape is the same whatever the candidates are worth"
    nodes = sum(LEVELS)

    def __init__(self, *, noise: str = "shared", prefill: bool = False, store: str = "shared") -> None:
        super().__init__(width=WIDTH, noise=noise, store=store, prefill=prefill)

    def observe(self, seen: Sequence[Seen]) -> None:
        for one in seen:
            self._learn(one, one.state.store)

    def propose_one(self, state: StoreState, budget: Budget) -> DraftTree:
        root = state.context.root
        if budget.empty:
            return EMPTY
        shape = template(min(budget.nodes, self.nodes), min(budget.depth, len(LEVELS)))
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
