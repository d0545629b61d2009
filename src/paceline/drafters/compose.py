"""Several drafters as one: the first that has something to say, or all of them in one tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.context import Context
from paceline.drafters.base import NOTHING, Ask, Drafter, Seen
from paceline.targets.base import Want
from paceline.tree import EMPTY, DraftTree, merge


class Composed(Drafter):
    """Opens, informs and closes its parts together; each part has its own state for every sequence."""

    def __init__(self, parts: Sequence[Drafter]) -> None:
        self.parts = tuple(parts)
        needs: Want = NOTHING
        for part in self.parts:
            needs = needs | part.needs
        self.needs = needs

    def open(self, context: Context) -> list[Any]:
        states: list[Any] = []
        try:
            for part in self.parts:
                states.append(part.open(context))
        except BaseException:
            self.close(states)
            raise
        return states

    def observe(self, seen: Sequence[Seen]) -> None:
        for number, part in enumerate(self.parts):
            part.observe([entry._replace(state=entry.state[number]) for entry in seen])

    def close(self, state: list[Any]) -> None:
        for part, own in zip(self.parts, state, strict=False):
            part.close(own)


class Fallback(Composed):
    """``a,b``: for each sequence the first part that proposes anything; later parts are not even asked."""

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
    """``a+b``: one tree of all parts, equal paths merged, cut to the budget by path score, shallow nodes first."""

    name = "union"

    def propose(self, asks: Sequence[Ask]) -> list[DraftTree]:
        by_part = [
            part.propose([Ask(state[number], budget) for state, budget in asks])
            for number, part in enumerate(self.parts)
        ]
        return [merge(trees).top(ask.budget.nodes) for ask, trees in zip(asks, zip(*by_part, strict=True), strict=True)]
