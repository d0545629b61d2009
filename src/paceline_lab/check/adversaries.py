"""Drafters made to find mistakes rather than to save time.

A model accepts few tokens of a lookup draft, and a draft that is refused at once proves little. `OracleDrafter` knows
plain decoding's text and spoils some of it, so drafts are accepted to every depth. `Recall` remembers the model's best
tokens after each token and ranks them by the public noise. `SelfDraft` samples from known laws for the rejection rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from paceline.context import Context, Ints
from paceline.drafters import Budget, Drafter, Seen
from paceline.law import Distribution, Law, Sampling
from paceline.targets.base import Request, Rows, Target, Want
from paceline.tree import EMPTY, ROOT, DraftTree
from paceline_lab.check.record import Recording

SPOILED = 0.2
"""The share of an oracle's tokens that are wrong on purpose."""


class OracleDrafter(Drafter):
    """Plain's own text, a fifth of it spoiled; as a tree, every true token has a false sibling with a child."""

    name = "oracle"

    def __init__(self, script: Ints, vocab_size: int, *, tree: bool, whole: bool = False) -> None:
        self._script = script
        self._vocab_size = vocab_size
        self._tree = tree
        self._spoiled = 0.0 if whole else SPOILED

    def propose_one(self, state: Context, budget: Budget) -> DraftTree:
        coins = np.random.default_rng(len(state))
        truth = self._script[len(state) :][: budget.depth]
        line = np.where(coins.random(len(truth)) < self._spoiled, (truth + 1) % self._vocab_size, truth)
        if not self._tree:
            return DraftTree.chain(line[: budget.nodes], source=self.name)
        return self._bushy(line, coins).head(budget.nodes)

    def _bushy(self, line: Ints, coins: np.random.Generator) -> DraftTree:
        """Two siblings per level in random order: the line goes on below the true one, one node below the false."""
        tokens: list[int] = []
        parents: list[int] = []
        trunk, stray = ROOT, None
        for token in line.tolist():
            siblings = [token, (token + 2) % self._vocab_size]
            false_first = bool(coins.random() < 0.5)
            start = len(tokens)
            tokens += siblings[::-1] if false_first else siblings
            parents += [trunk, trunk]
            if stray is not None:
                tokens.append(token)
                parents.append(stray)
            trunk, stray = start + false_first, start + (not false_first)
        return DraftTree.build(tokens, parents, source=self.name)


class Recall(Drafter):
    """Trees of the model's last best tokens after each token, two children per node, ranked by the public noise."""

    name = "recall"
    prompt_needs = Want(logits=True)
    width, best = 2, 6

    def open(self, context: Context) -> tuple[Context, dict[int, tuple[Ints, Any]]]:
        """The context, and the best successors last seen after each token, with their log-probabilities."""
        return context, {}

    def observe(self, seen: Sequence[Seen]) -> None:
        for (_, after), _, scores in seen:
            top = scores.top(self.best)
            for row, token in enumerate(scores.tokens.tolist()):
                after[token] = (top.ids[row], (top.logits[row] - top.log_z[row]).astype(np.float64))

    def propose_one(self, state: tuple[Context, dict[int, tuple[Ints, Any]]], budget: Budget) -> DraftTree:
        context, after = state
        tokens: list[int] = []
        parents: list[int] = []
        level = [(ROOT, context.root)]
        for ahead in range(budget.depth):
            following: list[tuple[int, int]] = []
            for parent, token in level:
                if token not in after or len(tokens) + self.width > budget.nodes:
                    continue
                ids, scores = after[token]
                ranked = np.argsort(-(scores + context.gumbel(ahead, ids)), kind="stable")
                children = ids[ranked[: self.width]].tolist()
                following += enumerate(children, start=len(tokens))
                tokens += children
                parents += [parent] * len(children)
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


SAMPLED_SELF = "(self, sampled)"
ADVERSARIES: dict[str, Callable[[Recording], Drafter]] = {
    "(oracle chain)": lambda plain: OracleDrafter(plain.tokens, plain.target.vocab_size, tree=False),
    "(oracle tree)": lambda plain: OracleDrafter(plain.tokens, plain.target.vocab_size, tree=True),
    "(whole oracle)": lambda plain: OracleDrafter(plain.tokens, plain.target.vocab_size, tree=False, whole=True),
    "(recall with shared noise)": lambda plain: Recall(),
    SAMPLED_SELF: lambda plain: SelfDraft(plain.target),
}
"""The name in reports -> the drafter against a text of plain decoding."""
