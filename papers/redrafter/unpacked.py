"""ReDrafter's beams without packing: a method for `bench run`, to measure what packing saves.

    paceline bench run --method "redrafter:paper,width=8" "./papers/redrafter/unpacked.py:Unpacked:width=8"

A tree has no two children with the same token, so beams that share a beginning cannot stand side by side in it. Here
the packed tree is drafted, and beside it, for every beam, the beginning that it shares with an earlier one, as nodes
that are scored and never verified. So the target scores as many rows as all beams have tokens, for the same text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from paceline import Ask, Context, Drafter, DraftTree, Seen
from paceline_lab import Vocabulary, make_drafter

ROOT = -1


def unpacked(tree: DraftTree) -> DraftTree:
    """The tree, and what its beams repeat. A beam is a path to a node without children."""
    seen, tokens, parents, scores = set[int](), list[int](), list[int](), list[float]()
    above = set(tree.parents.tolist())
    for leaf in (node for node in range(len(tree)) if node not in above):
        below = ROOT
        for node in tree.path(leaf):
            if node not in seen:
                seen.add(node)
                continue
            tokens.append(int(tree.tokens[node]))
            parents.append(below)
            scores.append(float(tree.scores[node]))
            below = len(tree) + len(tokens) - 1
    if not tokens:
        return tree
    return DraftTree(
        tokens=np.concatenate([tree.tokens, np.array(tokens, np.int64)]),
        parents=np.concatenate([tree.parents, np.array(parents, np.int64)]),
        scores=np.concatenate([tree.scores, np.array(scores)]),
        sources=(*tree.sources, *("repeated",) * len(tokens)),
        probes=np.arange(len(tree) + len(tokens)) >= len(tree),
    )


class Unpacked(Drafter):
    """`redrafter:paper`, whose beams repeat the beginnings that they share."""

    name = "unpacked"
    summary = "the beams of ReDrafter without packing: as slow as scoring every beam on its own"

    def __init__(self, *, head: str = "", width: int = 4, length: int = 4) -> None:
        named = f",head='{head}'" if head else ""
        self._inner = make_drafter(f"redrafter:paper,width={width},length={length}{named}")
        self.nodes = self._inner.nodes

    def fit(self, target: Any, vocabulary: Vocabulary | None = None) -> None:
        self._inner.fit(target, vocabulary)
        self.needs = self._inner.needs

    def levels(self, nodes: int) -> int:
        return self._inner.levels(nodes)

    def dispose(self) -> None:
        self._inner.dispose()

    def open(self, context: Context) -> Any:
        return self._inner.open(context)

    def observe(self, seen: Sequence[Seen]) -> None:
        self._inner.observe(seen)

    def propose(self, asks: Sequence[Ask]) -> list[DraftTree]:
        return [unpacked(tree) for tree in self._inner.propose(asks)]
