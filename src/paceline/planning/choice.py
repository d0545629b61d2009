"""Which nodes of drafts are worth their rows.

With *p* the chance that a node's whole path is accepted, a round that scores a connected part *D* of the draft is
expected to emit ``1 + sum of p over D`` tokens. Rounds follow one another, so the goal is the most tokens per second
over many rounds, not within each. Example: one round may emit 1 token in 1 s or 1.8 in 1.7 s, and the next emits 5 in 1
s. The second choice has the higher ratio in its round, but 6.8 tokens in 2.7 s are slower than 6 in 2 s. Time is
therefore valued at the running *rate* of tokens per second, and the part chosen is the one of greatest ::

    expected tokens - rate x seconds(rows)

Paths only grow less likely downwards, so the best part of n nodes is the n likeliest, whatever their number; all n from
none on are compared. Sequences that are scored together share the seconds and are weighed together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from paceline.planning.base import Why
from paceline.tree import EMPTY, ROOT, Bools, DraftTree, Floats, Ints, is_chain, offsets

FEW, WIDENING = 8, 2
"""A round may score this many rows, or this many times as many as were tried before, probes apart: so a step too far
costs little."""


class Weighed(NamedTuple):
    """Drafts that are scored together, one behind the other, with the chance of every node's whole path."""

    trees: Sequence[DraftTree]
    depths: Ints
    paths: Floats
    held: Bools | None
    """The nodes that must go if anything goes, if there are any."""

    @classmethod
    def of(cls, trees: Sequence[DraftTree], chances: Callable[[Sequence[DraftTree], Ints], Floats]) -> Weighed:
        """``chances`` says how likely each node is to come true if its parent does, from the drafts and the depths."""
        if all(is_chain(tree.parents) for tree in trees):
            depths, paths = _along_chains([len(tree.tokens) for tree in trees], partial(chances, trees))
        else:
            depths, paths = _along_trees(trees, partial(chances, trees))
        held = None
        if any(tree.probes is not None for tree in trees):
            none = np.zeros(0, np.bool_)
            held = np.concatenate(
                [none, *(np.zeros(len(t), np.bool_) if t.probes is None else t.under_probes() for t in trees)]
            )
        return cls(trees, depths, paths, held)

    @property
    def free(self) -> Floats:
        """The chances of the nodes there is a choice about."""
        return self.paths if self.held is None else np.where(self.held, 0.0, self.paths)

    @property
    def ends(self) -> list[int]:
        """Of each draft, where the nodes of the next one begin."""
        return [*accumulate(len(tree.tokens) for tree in self.trees)]

    def within(self, counts: Sequence[int]) -> Weighed:
        """The same with chance 0 for all but the ``counts`` likeliest nodes of each draft: no others are chosen."""
        paths = self.paths.copy()
        for end, tree, count in zip(self.ends, self.trees, counts, strict=True):
            if count < len(tree):
                own = paths[end - len(tree) : end]
                own[(-own).argsort(kind="stable")[count:]] = 0.0
        return self._replace(paths=paths)

    def bare(self) -> Weighed:
        """The drafts without probes and the nodes below them."""
        kept, trees = list[Bools](), list[DraftTree]()
        for tree in self.trees:
            nodes = _beside_probes(tree)
            kept.append(nodes)
            part = tree.select(np.flatnonzero(nodes), drawn=tree.drawn)
            trees.append(tree if tree.probes is None else replace(part, probes=None))
        nodes = np.concatenate(kept)
        return Weighed(trees, self.depths[nodes], self.paths[nodes], None)

    def sums(self, values: Floats | Bools) -> list[float]:
        """The sums of these node values in each draft."""
        totals = [0.0, *values.cumsum().tolist()]
        return [totals[end] - totals[end - len(tree.tokens)] for end, tree in zip(self.ends, self.trees, strict=True)]

    def parts(self, sent: Bools) -> list[DraftTree]:
        """The chosen nodes of each draft. Of one with sampled nodes as many from its beginning, so that no value
        decides."""
        if sent.all():
            return list(self.trees)
        return [
            _part(tree, sent[end - len(tree) : end], int(count))
            for tree, end, count in zip(self.trees, self.ends, self.sums(sent), strict=True)
        ]


def _along_chains(lengths: list[int], chances: Callable[[Ints], Floats]) -> tuple[Ints, Floats]:
    """Depths, and the chances of whole paths, in chains of these lengths."""
    if len(lengths) == 1 and lengths[0]:
        alone: Ints = np.arange(1, lengths[0] + 1)
        return alone, chances(alone).cumprod()
    places = np.arange(max(lengths))
    inside = places < np.array(lengths)[:, None]
    depths: Ints = np.broadcast_to(places + 1, inside.shape)[inside]
    paths = np.ones(inside.shape)
    if len(depths):
        paths[inside] = chances(depths)
    return depths, paths.cumprod(axis=1)[inside]


def _along_trees(trees: Sequence[DraftTree], chances: Callable[[Ints], Floats]) -> tuple[Ints, Floats]:
    """The same in drafts of any shape."""
    parents = list[int]()
    for tree in trees:
        start = len(parents)
        parents += [parent if parent == ROOT else parent + start for parent in tree.parents.tolist()]
    depths = offsets(np.array(parents)) + 1
    paths = chances(depths).tolist()
    for node, parent in enumerate(parents):
        if parent != ROOT:
            paths[node] *= paths[parent]
    return depths, np.array(paths)


def _part(tree: DraftTree, chosen: Bools, count: int) -> DraftTree:
    if count == len(tree):
        return tree
    if not count:
        return EMPTY
    if tree.drawn or is_chain(tree.parents):
        return tree.head(count)
    return tree.select(np.flatnonzero(chosen))


def _beside_probes(tree: DraftTree) -> Bools:
    """The nodes that are no probes and have none above them."""
    kept = np.ones(len(tree), np.bool_)
    if tree.probes is not None:
        kept = ~tree.probes
        for node, parent in enumerate(tree.parents.tolist()):
            kept[node] &= parent == ROOT or kept[parent]
    return kept


class RoundCosts(NamedTuple):
    """The costs of time in this round."""

    seconds: Callable[[int], Floats]
    """The most rows -> seconds of a round of 0 .. that many rows."""
    tried: float
    """About the most rows of rounds that were seen."""
    rate: Callable[[float], float]
    """Seconds of a plain round -> tokens per second that time is valued at."""
    batch: int
    """How many sequences are scored together."""
    share: float
    """How much of what chosen nodes promise comes true."""


class ChosenNodes(NamedTuple):
    """The nodes that are worth scoring, what they are worth beyond their time (in tokens), and why."""

    sent: Bools
    value: float
    why: Why


def choose(drafts: Weighed, machine: RoundCosts) -> ChosenNodes:
    """The best part of drafts that are scored together."""
    held = 0 if drafts.held is None else int(drafts.held.sum())
    chances = drafts.free
    order = (-chances).argsort(kind="stable")
    gains = np.zeros(len(order) + 1)
    chances[order].cumsum(out=gains[1:])
    gains *= machine.share
    first = machine.batch + held
    seconds = machine.seconds(first + len(order))
    plain = float(seconds[machine.batch])
    rate = machine.rate(plain)
    values = gains - rate * (seconds[first:] - plain)
    most = max(FEW, int(WIDENING * machine.tried)) - machine.batch
    count = int(values[: 1 + max(0, most)].argmax())
    sent = np.zeros(len(order), np.bool_) if drafts.held is None else drafts.held.copy()
    sent[order[:count]] = True
    why = Why(
        tokens=machine.batch + float(gains[count]),
        seconds=float(seconds[first + count]),
        seconds_plain=plain,
        rate=rate,
        chance=float(gains[1]) if len(order) else 0.0,
        price=rate * float(seconds[min(first + 1, len(seconds) - 1)] - plain),
    )
    return ChosenNodes(sent, float(values[count]), why)
