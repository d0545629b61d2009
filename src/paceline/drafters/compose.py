"""Several drafters as one: the first that has something to say, or all of them in one tree."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import reduce
from operator import or_
from typing import Any

from paceline.context import Context
from paceline.drafters.base import Ask, Drafter, Seen
from paceline.targets.base import NOTHING, Target, Want
from paceline.tree import EMPTY, DraftTree, merge
from paceline.vocabulary import Vocabulary


class Opened(list[Any]):
    """The states of a text's parts, and the text."""

    def __init__(self, context: Context) -> None:
        super().__init__()
        self.context = context


class Composed(Drafter):
    """Opens, informs and closes its parts together; each part has its own state for every sequence."""

    def __init__(self, parts: Sequence[Drafter]) -> None:
        self.parts = tuple(parts)
        self.nodes = self._nodes([part.nodes for part in self.parts])

    def _nodes(self, sizes: Sequence[int]) -> int:
        """Of parts that take turns, the largest size."""
        return max(sizes)

    @property
    def needs(self) -> Want:  # type: ignore[override]
        return reduce(or_, (part.needs for part in self.parts), NOTHING)

    @property
    def prompt_needs(self) -> Want:  # type: ignore[override]
        return reduce(or_, (part.prompt_needs for part in self.parts), NOTHING)

    def fit(self, target: Target, vocabulary: Vocabulary | None = None) -> None:
        for part in self.parts:
            part.fit(target, vocabulary)

    def reset(self) -> None:
        for part in self.parts:
            part.reset()

    def open(self, context: Context) -> Opened:
        states = Opened(context)
        with ExitStack() as opened:
            for part in self.parts:
                states.append(part.open(context))
                opened.callback(part.close, states[-1])
            opened.pop_all()
        return states

    def observe(self, seen: Sequence[Seen]) -> None:
        for number, part in enumerate(self.parts):
            part.observe([entry._replace(state=entry.state[number]) for entry in seen])

    def close(self, state: Opened) -> None:
        with ExitStack() as opened:  # also the others where one fails to close
            for part, own in zip(self.parts, state, strict=True):
                opened.callback(part.close, own)


class Fallback(Composed):
    """``a,b``: for each sequence the first part that proposes anything; later parts are not asked."""

    name = "fallback"

    def propose(self, asks: Sequence[Ask]) -> list[DraftTree]:
        drafts = [EMPTY] * len(asks)
        for number, part in enumerate(self.parts):
            silent = [i for i, draft in enumerate(drafts) if len(draft) == 0]
            if not silent:
                break
            proposed = part.propose([Ask(asks[i].state[number], asks[i].budget) for i in silent])
            for i, draft in zip(silent, proposed, strict=True):
                drafts[i] = draft
        return drafts


class Union(Composed):
    """``a+b``: one tree of all parts with equal paths merged, of which the budget takes the `best`."""

    name = "union"

    def _nodes(self, sizes: Sequence[int]) -> int:
        return sum(sizes)

    def propose(self, asks: Sequence[Ask]) -> list[DraftTree]:
        by_part = [
            part.propose([Ask(state[number], budget) for state, budget in asks])
            for number, part in enumerate(self.parts)
        ]
        return [best(united(trees), ask) for ask, trees in zip(asks, zip(*by_part, strict=True), strict=True)]


def united(trees: Sequence[DraftTree]) -> DraftTree:
    """One tree of all, each of which must be one."""
    for tree in trees:
        tree.check()
    return joined(trees)


def joined(trees: Sequence[DraftTree]) -> DraftTree:
    """The same of parts whose word is taken for it: the check takes longer than many a draft, and the engine makes it
    again."""
    present = [tree for tree in trees if len(tree)]
    return merge(present) if len(present) > 1 else present[0] if present else EMPTY


def best(tree: DraftTree, ask: Ask) -> DraftTree:
    """As much of a draft as was asked for. Scores of several sources are hard to compare: one may boast where another
    is modest. So whoever knows how often nodes of each came true is asked, where there is anybody."""
    nodes, adviser = ask.budget.nodes, ask.budget.adviser
    if adviser is None or len(tree) <= nodes:
        return tree.top(nodes)
    return tree.top(nodes, adviser.paths(ask.state.context, tree))
