"""Drafters made to find mistakes rather than to save time.

A user's model accepts few tokens of a lookup draft, and a draft that is refused at once proves little. `Oracle` knows
plain decoding's text and spoils it here and there, so drafts are accepted to every depth. `Recall` remembers what the
model said after each token, and drafts trees of it: with the public noise, or sampled with their law attached.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paceline.context import Context, Ints
from paceline.drafters import Ask, Budget, Drafter, Seen
from paceline.law import Distribution
from paceline.targets.base import Want
from paceline.tree import EMPTY, ROOT, DraftTree

SPOIL = 0.2


class Oracle(Drafter):
    """Plain's own text, a fifth of it spoiled; as a tree, every true token has a false sibling that goes on, too."""

    name = "oracle"

    def __init__(self, script: Ints, vocab_size: int, *, tree: bool, whole: bool = False) -> None:
        self._script = script
        self._vocab_size = vocab_size
        self._tree = tree
        self._spoil = 0.0 if whole else SPOIL

    def propose_one(self, state: Context, budget: Budget) -> DraftTree:
        coins = np.random.default_rng(len(state))
        truth = self._script[len(state) :][: budget.depth]
        spoiled = np.where(coins.random(len(truth)) < self._spoil, (truth + 1) % self._vocab_size, truth)
        if not self._tree:
            return DraftTree.chain(spoiled[: budget.nodes], source=self.name)
        return self._bushy(spoiled, coins).head(budget.nodes)

    def _bushy(self, line: Ints, coins: np.random.Generator) -> DraftTree:
        """Two siblings per level in random order; the line goes on below the true one, one more node below the false."""
        tokens: list[int] = []
        parents: list[int] = []
        trunk, stray = ROOT, None
        for token in line.tolist():
            pair = [(token, trunk), ((token + 2) % self._vocab_size, trunk)]
            if coins.random() < 0.5:
                pair.reverse()
            if stray is not None:
                pair.append((token, stray))
            start = len(tokens)
            tokens += [t for t, _ in pair]
            parents += [p for _, p in pair]
            here = start + [t for t, _ in pair[:2]].index(token)
            trunk, stray = here, 2 * start + 1 - here
        return DraftTree.build(tokens, parents, source=self.name)


@dataclass(eq=False)
class Memory:
    """The best successors last seen after each token."""

    context: Context
    after: dict[int, tuple[Ints, Any]] = field(default_factory=dict)


class Recall(Drafter):
    """Trees of what the model last said after each token: two children per node, chosen with the public noise
    (`sampled` false), or drawn without replacement from a law that is attached (`sampled` true).

    The coins of a draw are fresh in every round. What was drawn in one round decides what is remembered, so coins
    used twice would correlate with the law they are to draw from.
    """

    name = "recall"
    needs = Want(logits=True)
    width, best = 2, 6

    def __init__(self, *, sampled: bool) -> None:
        self._sampled = sampled

    def open(self, context: Context) -> Memory:
        return Memory(context)

    def observe(self, seen: Sequence[Seen]) -> None:
        for memory, _, scores in seen:
            top = scores.top(self.best)
            for row, token in enumerate(scores.tokens.tolist()):
                memory.after[token] = (top.ids[row], (top.logits[row] - top.log_z[row]).astype(np.float64))

    def propose_one(self, state: Memory, budget: Budget) -> DraftTree:
        coins = np.random.default_rng([state.context.sampling.seed % 2**32, len(state.context)])
        tokens: list[int] = []
        parents: list[int] = []
        drawn: dict[int, Distribution] = {}
        level = [(ROOT, state.context.root)]
        for ahead in range(budget.depth):
            following: list[tuple[int, int]] = []
            for parent, token in level:
                if token not in state.after or len(tokens) + self.width > budget.nodes:
                    continue
                ids, scores = state.after[token]
                order = np.argsort(ids)
                ids, scores = ids[order], scores[order]
                keys = scores + (coins.gumbel(size=len(ids)) if self._sampled else state.context.gumbel(ahead, ids))
                if self._sampled:
                    drawn[parent] = Distribution(ids, np.exp(scores))
                for choice in np.argsort(-keys, kind="stable")[: self.width].tolist():
                    following.append((len(tokens), int(ids[choice])))
                    tokens.append(int(ids[choice]))
                    parents.append(parent)
            level = following
        return DraftTree.build(tokens, parents, source=self.name, drawn=drawn) if tokens else EMPTY


class Spy(Drafter):
    """Passes everything on and keeps each draft by the length at which it was made, for the statistics of the
    rejection rule."""

    def __init__(self, inner: Drafter) -> None:
        self._inner = inner
        self.needs = inner.needs
        self.trees: dict[int, DraftTree] = {}

    def open(self, context: Context) -> tuple[Context, Any]:
        return context, self._inner.open(context)

    def propose(self, asks: Sequence[Ask]) -> list[DraftTree]:
        trees = self._inner.propose([Ask(state[1], budget) for state, budget in asks])
        self.trees.update({len(ask.state[0]): tree for ask, tree in zip(asks, trees, strict=True)})
        return trees

    def observe(self, seen: Sequence[Seen]) -> None:
        self._inner.observe([Seen(state[1], verdict, scores) for state, verdict, scores in seen])

    def close(self, state: tuple[Context, Any]) -> None:
        self._inner.close(state[1])
