"""Several drafters as one: the first that proposes anything, or all of them in one tree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import Any

from paceline.context import Context
from paceline.drafters.asking import admitted, answered, asked, counted
from paceline.drafters.base import Ask, Drafter, Enrich, Seen
from paceline.drafters.counters import NOTHING_COUNTED
from paceline.law.scores import Array
from paceline.targets.base import NOTHING, Target, Want
from paceline.tree import EMPTY, DraftTree, merge
from paceline.vocabulary import Vocabulary


class Composed(Drafter):
    """Passes calls on to its parts; each part has its own state for every sequence."""

    def __init__(self, parts: Sequence[Drafter]) -> None:
        self.parts = tuple(parts)
        self.nodes = self._nodes([part.nodes for part in self.parts])
        self.enriches = any(part.enriches for part in self.parts)
        costly = [part.costly_levels for part in self.parts if part.enriches or not self.enriches]
        self.costly_levels = max(costly) if self.enriches else min(costly)
        if all(part.planner == "fixed" for part in self.parts):
            self.planner = "fixed"
        self.skips = all(part.skips or not part.observes for part in self.parts)
        self.nested = all(part.nested for part in self.parts)
        self.leaves = sum(part.leaves for part in self.parts)
        self.counters = tuple(dict.fromkeys(counter for part in self.parts for counter in part.counters))

    def _nodes(self, sizes: Sequence[int]) -> int:
        """The default size of a draft: of parts that take turns, the largest."""
        return max(sizes)

    @property
    def needs(self) -> Want:  # type: ignore[override]
        return _all_of(part.needs for part in self.parts)

    @property
    def prompt_needs(self) -> Want:  # type: ignore[override]
        return _all_of(part.prompt_needs for part in self.parts)

    def fit(self, target: Target, vocabulary: Vocabulary | None = None) -> None:
        for part in self.parts:
            part.fit(target, vocabulary)

    def reset(self) -> None:
        for part in self.parts:
            part.reset()

    def dispose(self) -> None:
        with ExitStack() as disposed:  # also of the others where one fails
            for part in self.parts:
                disposed.callback(part.dispose)

    def open(self, context: Context) -> list[Any]:
        states: list[Any] = []
        with ExitStack() as opened:
            for part in self.parts:
                states.append(asked(part, "open", context))
                opened.callback(part.close, states[-1])
            opened.pop_all()
        return states

    def read(self, seen: Sequence[Seen]) -> None:
        for number, part in enumerate(self.parts):
            asked(part, "read", _own(seen, number))

    def observe(self, seen: Sequence[Seen]) -> None:
        for number, part in enumerate(self.parts):
            if part.observes:
                asked(part, "observe", _own(seen, number))

    @property
    def observes(self) -> bool:
        return any(part.observes for part in self.parts)

    def counts(self, state: list[Any]) -> Mapping[str, float]:
        total = NOTHING_COUNTED
        for part, own in zip(self.parts, state, strict=True):
            if counts := counted(part, own):
                total += counts
        return total

    def on_early(self, state: list[Any], tree: DraftTree, logits: Array) -> None:
        for part, own in zip(self.parts, state, strict=True):
            if part.hears_early:
                asked(part, "on_early", own, tree, logits)

    @property
    def hears_early(self) -> bool:
        return any(part.hears_early for part in self.parts)

    def close(self, state: list[Any]) -> None:
        with ExitStack() as opened:  # also the others where one fails to close
            for part, own in zip(self.parts, state, strict=True):
                opened.callback(asked, part, "close", own)


def _own(seen: Sequence[Seen], number: int) -> list[Seen]:
    """The rounds seen, with the states of one part."""
    return [Seen(state[number], verdict, scores) for state, verdict, scores in seen]


def _all_of(needs: Iterable[Want]) -> Want:
    """All of these needs. Called in every round, so empty ones are skipped first."""
    some = [need for need in needs if need is not NOTHING]
    return reduce(or_, some) if some else NOTHING


class Turns(list[Any]):
    """The states of parts that take turns, and the number of the part that made the last draft."""

    proposer: int | None = None


class Fallback(Composed):
    """``a,b``: for each sequence the first part that proposes anything; later parts are not asked."""

    name = "fallback"

    def open(self, context: Context) -> Turns:
        return Turns(super().open(context))

    def propose(self, asks: Sequence[Ask]) -> list[DraftTree]:
        drafts = [EMPTY] * len(asks)
        for state, _ in asks:
            state.proposer = None
        empty = list(enumerate(asks))
        for number, part in enumerate(self.parts):
            if not empty:
                break
            own = [Ask(state[number], budget) for _, (state, budget) in empty]
            left = list[tuple[int, Ask]]()
            for one, draft in zip(empty, answered(part, "propose", own, DraftTree), strict=True):
                if draft is EMPTY or len(draft) == 0:
                    left.append(one)
                else:
                    place, (state, _) = one
                    drafts[place], state.proposer = draft, number
            empty = left
        return drafts

    def enrich(self, asks: Sequence[Enrich]) -> list[DraftTree]:
        """With the expensive part of the part that proposed; where none did, of the first that has one."""
        drafts = [ask.draft for ask in asks]
        first = next(number for number, part in enumerate(self.parts) if part.enriches)
        proposers = [first if ask.state.proposer is None else ask.state.proposer for ask in asks]
        for number, part in enumerate(self.parts):
            turns = [i for i, proposer in enumerate(proposers) if proposer == number]
            if turns and part.enriches:
                own = [asks[i]._replace(state=asks[i].state[number]) for i in turns]
                for i, draft in zip(turns, answered(part, "enrich", own, DraftTree), strict=True):
                    drafts[i] = draft
        return drafts


class Union(Composed):
    """``a+b``: one tree of all parts with equal paths merged. It may be larger than the budget: the planner cuts it."""

    name = "union"

    def _nodes(self, sizes: Sequence[int]) -> int:
        return sum(sizes)

    def propose(self, asks: Sequence[Ask]) -> list[DraftTree]:
        by_part = [
            self._valid(part, "propose", [Ask(state[number], budget) for state, budget in asks])
            for number, part in enumerate(self.parts)
        ]
        return [joined(trees) for trees in zip(*by_part, strict=True)]

    def enrich(self, asks: Sequence[Enrich]) -> list[DraftTree]:
        drafts = [[ask.draft] for ask in asks]
        for number, part in enumerate(self.parts):
            if part.enriches:
                own = [Enrich(ask.state[number], ask.budget, EMPTY) for ask in asks]
                for trees, more in zip(drafts, self._valid(part, "enrich", own), strict=True):
                    trees.append(more)
        return [joined(trees) for trees in drafts]

    @staticmethod
    def _valid(part: Drafter, verb: str, asks: Sequence[Any]) -> list[DraftTree]:
        """A part's drafts, cut to their budgets and checked: an invalid one cannot be merged."""
        trees = answered(part, verb, asks, DraftTree)
        return [admitted(part, tree, part.leaves * ask.budget.nodes) for tree, ask in zip(trees, asks, strict=True)]


class Beside(Union):
    """A drafter with sources that cost next to nothing, each draft no larger than suits its part. A drafter whose
    levels take time is asked only where the planner finds it worth that, beside what the sources draft."""

    name = "beside"

    def __init__(self, drafter: Drafter, sources: Sequence[Drafter]) -> None:
        super().__init__((drafter, *sources))
        self._waits = drafter.costly_levels > 0 and not drafter.enriches
        if self._waits:
            self.enriches, self.costly_levels = True, drafter.costly_levels

    def propose(self, asks: Sequence[Ask]) -> list[DraftTree]:
        by_part = [
            self._valid(part, "propose", self._within(asks, number))
            for number, part in enumerate(self.parts)
            if number or not self._waits
        ]
        return [joined(trees) for trees in zip(*by_part, strict=True)]

    def enrich(self, asks: Sequence[Enrich]) -> list[DraftTree]:
        if not self._waits:
            return super().enrich(asks)
        own = self._within([Ask(ask.state, ask.budget) for ask in asks], 0)
        more = self._valid(self.parts[0], "propose", own)
        return [joined([ask.draft, tree]) for ask, tree in zip(asks, more, strict=True)]

    def _within(self, asks: Sequence[Ask], number: int) -> list[Ask]:
        """What a part is asked, with no larger budgets than suit it."""
        most = self.parts[number].nodes
        return [
            Ask(state[number], replace(budget, nodes=min(budget.nodes, most)) if budget.nodes > most else budget)
            for state, budget in asks
        ]


def joined(trees: Sequence[DraftTree]) -> DraftTree:
    """One tree of several valid ones."""
    present = [tree for tree in trees if len(tree)]
    return merge(present) if len(present) > 1 else present[0] if present else EMPTY
