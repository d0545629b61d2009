"""Which nodes of drafts are worth their rows.

With *p* the chance of a node's whole path to come true, a round that scores a connected part *D* of the draft is
expected to emit ``1 + sum of p over D`` tokens. Rounds follow one another, so what counts is tokens per second over
many of them and not within one: a round of 1 token in 1 s and one of 1.8 in 1.7 s are each the better ratio of some
choice, and 5 in 1 s beats both. Time is therefore valued at the running *rate* of tokens per second, and the part
chosen is the one of greatest ::

    expected tokens - rate x seconds(rows)

Paths only grow less likely downwards, so the best part of n nodes is the n likeliest, whatever their number; all n from
none on are compared. Sequences that are scored together share the seconds and are weighed together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from paceline.planning.base import Why
from paceline.tree import EMPTY, ROOT, Bools, DraftTree, Floats

FEW, WIDENING = 8, 2
"""A round may score this many rows, or this many times as many as were tried before, probes apart: so a step too far
costs little."""


class Weighed(NamedTuple):
    """A draft with the chance of every node's whole path, and the nodes that must go if anything goes."""

    tree: DraftTree
    paths: Floats
    held: Bools | None

    @classmethod
    def of(cls, tree: DraftTree, odds: Floats) -> Weighed:
        """``odds`` are each node's chance to come true if its parent does."""
        return cls(tree, along_paths(tree, odds), None if tree.probes is None else tree.under_probes())

    @property
    def free(self) -> Floats:
        """The chances of the nodes there is a choice about."""
        return self.paths if self.held is None else np.where(self.held, 0.0, self.paths)

    def within(self, count: int) -> Weighed:
        """The same with no chance for any but the ``count`` likeliest nodes, so that no others are chosen."""
        if count >= len(self.paths):
            return self
        paths = self.paths.copy()
        paths[(-paths).argsort(kind="stable")[count:]] = 0.0
        return self._replace(paths=paths)

    def bare(self) -> Weighed:
        """The draft without probes and the nodes below them."""
        probes = self.tree.probes
        if probes is None:
            return self
        kept = ~probes
        for node, parent in enumerate(self.tree.parents.tolist()):
            kept[node] &= parent == ROOT or kept[parent]
        nodes = np.flatnonzero(kept)
        tree = replace(self.tree.select(nodes, drawn=self.tree.drawn), probes=None)
        return Weighed(tree, self.paths[nodes], None)

    def part(self, nodes: Bools) -> DraftTree:
        """The chosen nodes. Of a draft with sampled nodes as many from its beginning, so that no value decides."""
        if nodes.all():
            return self.tree
        if not nodes.any():
            return EMPTY
        return self.tree.head(int(nodes.sum())) if self.tree.drawn else self.tree.select(np.flatnonzero(nodes))


def along_paths(tree: DraftTree, odds: Floats) -> Floats:
    """The chance of every node's whole path."""
    paths = odds.tolist()
    for node, parent in enumerate(tree.parents.tolist()):
        if parent != ROOT:
            paths[node] *= paths[parent]
    return np.array(paths)


class RoundCosts(NamedTuple):
    """The costs of time in this round."""

    seconds: Callable[[int], Floats]
    """The most rows -> seconds of a round of 0 .. so many rows."""
    tried: float
    """About the most rows of rounds that were seen."""
    rate: Callable[[float], float]
    """Seconds of a plain round -> tokens per second that time is valued at."""
    batch: int
    """How many sequences are scored together."""
    share: float
    """How much of what chosen nodes promise comes true."""


class ChosenNodes(NamedTuple):
    """The nodes of each draft that are worth scoring, what they are worth beyond their time (in tokens), and why."""

    nodes: list[Bools]
    value: float
    why: Why


def choose(drafts: Sequence[Weighed], machine: RoundCosts) -> ChosenNodes:
    """The best part of drafts that are scored together."""
    held = sum(0 if one.held is None else int(one.held.sum()) for one in drafts)
    chances = np.concatenate([one.free for one in drafts])
    order = np.argsort(-chances, kind="stable")
    gains = machine.share * np.concatenate([[0.0], np.cumsum(chances[order])])
    first = machine.batch + held
    seconds = machine.seconds(first + len(order))
    plain = float(seconds[machine.batch])
    rate = machine.rate(plain)
    values = gains - rate * (seconds[first:] - plain)
    most = max(FEW, int(WIDENING * machine.tried)) - machine.batch
    count = int(values[: 1 + max(0, most)].argmax())
    sent = np.zeros(len(order), np.bool_)
    sent[order[:count]] = True
    chosen, start = [], 0
    for one in drafts:
        nodes = sent[start : start + len(one.tree)]
        chosen.append(nodes if one.held is None else nodes | one.held)
        start += len(one.tree)
    why = Why(
        tokens=machine.batch + float(gains[count]),
        seconds=float(seconds[first + count]),
        seconds_plain=plain,
        rate=rate,
        chance=float(gains[1]) if len(order) else 0.0,
        price=rate * float(seconds[min(first + 1, len(seconds) - 1)] - plain),
    )
    return ChosenNodes(chosen, float(values[count]), why)
