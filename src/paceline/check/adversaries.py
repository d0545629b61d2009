"""Drafters made to find mistakes rather than to save time.

A user's model accepts few tokens of a lookup draft, and a draft that is refused at once proves little. `Oracle` knows
plain decoding's text and spoils it here and there, so drafts are accepted to every depth. `Recall` remembers what the
model said after each token and looks at the public noise. `SelfDraft` samples from known laws for the rejection rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paceline.context import Context, Ints
from paceline.drafters import Ask, Budget, Drafter, Seen
from paceline.law import Distribution, Law, Sampling
from paceline.targets.base import Request, Rows, Target, Want
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
        """Two siblings per level in random order: the line goes on below the true one, one node below the false."""
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
    """Trees of what the model last said after each token, two children per node, ranked with the public noise."""

    name = "recall"
    prompt_needs = Want(logits=True)
    width, best = 2, 6

    def open(self, context: Context) -> Memory:
        return Memory(context)

    def observe(self, seen: Sequence[Seen]) -> None:
        for memory, _, scores in seen:
            top = scores.top(self.best)
            for row, token in enumerate(scores.tokens.tolist()):
                memory.after[token] = (top.ids[row], (top.logits[row] - top.log_z[row]).astype(np.float64))

    def propose_one(self, state: Memory, budget: Budget) -> DraftTree:
        tokens: list[int] = []
        parents: list[int] = []
        level = [(ROOT, state.context.root)]
        for ahead in range(budget.depth):
            following: list[tuple[int, int]] = []
            for parent, token in level:
                if token not in state.after or len(tokens) + self.width > budget.nodes:
                    continue
                ids, scores = state.after[token]
                ranked = np.argsort(-(scores + state.context.gumbel(ahead, ids)), kind="stable")
                for choice in ids[ranked[: self.width]].tolist():
                    following.append((len(tokens), choice))
                    tokens.append(choice)
                    parents.append(parent)
            level = following
        return DraftTree.build(tokens, parents, source=self.name)


class SelfDraft(Drafter):
    """The target drafts for itself, a little warmer: children sampled from laws that are nearly, not quite, its own.

    Every branch of the rejection rule is then taken often. Two children per level are drawn without replacement; the
    line goes on below the first. Coins are fresh in every round: what was drawn in one decides what later rounds
    draft from, and coins used twice would correlate with the law they are to draw from.
    """

    name = "self"
    width, warmth = 2, 1.3

    def __init__(self, target: Target) -> None:
        self._target = target

    def open(self, context: Context) -> tuple[Context, Rows, Law]:
        warm = (context.sampling.temperature or 1.0) * self.warmth
        return context, self._target.open(len(context) + context.room), Law(Sampling(temperature=warm), 0)

    def propose_one(self, state: tuple[Context, Rows, Law], budget: Budget) -> DraftTree:
        context, rows, law = state
        coins = np.random.default_rng([context.sampling.seed, context.noise.sample, len(context)])
        self._catch_up(context, rows)
        root, parent = context.root, ROOT
        tokens: list[int] = []
        parents: list[int] = []
        drawn: dict[int, Distribution] = {}
        while len(drawn) < budget.depth and len(tokens) + self.width <= budget.nodes:
            scores = self._target.submit([Request.of_tree(rows, root, EMPTY)]).result()[0]
            rows.keep([0])
            q = drawn[parent] = law.distribution(scores.row(ROOT), context.tokens)
            order = np.argsort(-(np.log(q.weights) + coins.gumbel(size=len(q.ids))))[: self.width]
            root, parents, parent = int(q.ids[order[0]]), [*parents, *[parent] * len(order)], len(tokens)
            tokens += q.ids[order].tolist()
        return DraftTree.build(tokens, parents, source=self.name, drawn=drawn)

    def _catch_up(self, context: Context, rows: Rows) -> None:
        """Drop what was drafted and refused; read what the target wrote instead, all but the root."""
        rows.rewind(rows.common_prefix(context.tokens[:-1]))
        fresh = context.tokens[rows.committed : -1]
        if len(fresh):
            self._target.submit([Request.of_prompt(rows, fresh)]).result()
            rows.keep(range(len(fresh)))

    def close(self, state: tuple[Context, Rows, Law]) -> None:
        state[1].close()


class Spy(Drafter):
    """Passes everything on and keeps each draft by the length at which it was made, for the statistics of the
    rejection rule."""

    def __init__(self, inner: Drafter) -> None:
        self._inner = inner
        self.needs, self.prompt_needs, self.nodes = inner.needs, inner.prompt_needs, inner.nodes
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
