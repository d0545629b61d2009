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
from paceline.drafters.base import Ahead, Ask, Awaited, Drafter, Enrich, InFlight, Overlaps, Seen
from paceline.drafters.continuing import continued
from paceline.drafters.counters import NOTHING_COUNTED
from paceline.law.scores import Array
from paceline.targets.base import NOTHING, Target, Want
from paceline.tree import EMPTY, DraftTree, merge
from paceline.vocabulary import Vocabulary


class PartStates(list[Any]):
    """The states of the parts for one text."""

    def __init__(self, context: Context) -> None:
        super().__init__()
        self.context = context
        self.proposer: int | None = None
        """Of parts that take turns, the number of the one that made the last draft."""
        self.flights: dict[int, InFlight] = {}
        """The drafts in flight that are finished now, by the numbers of their parts."""


class PartsInFlight(InFlight):
    """The drafts in flight of parts, by their numbers."""

    def __init__(self) -> None:
        self.parts: dict[int, InFlight] = {}


class Composed(Drafter):
    """Passes calls on to its parts; each part has its own state for every sequence."""

    def __init__(self, parts: Sequence[Drafter]) -> None:
        self.parts = tuple(parts)
        self._take_facts()
        self.copies = any(part.copies for part in self.parts)
        if all(part.planner == "fixed" for part in self.parts):
            self.planner = "fixed"
        self.nested = all(part.nested for part in self.parts)
        self.leaves = sum(part.leaves for part in self.parts)
        self.counters = tuple(dict.fromkeys(counter for part in self.parts for counter in part.counters))

    def _take_facts(self) -> None:
        """Those of the parts, some of which know theirs when they are fitted."""
        self.skips = all(part.skips or not part.observes for part in self.parts)
        self.light = all(part.light for part in self.parts)
        self.nodes = self._nodes([part.nodes for part in self.parts])
        self.enriches = any(part.enriches or self._waits(part) for part in self.parts)
        costly = [part.costly_levels for part in self.parts if part.enriches or self._waits(part) or not self.enriches]
        self.costly_levels = max(costly) if self.enriches else min(costly)
        kinds = {part.overlaps for part in self.parts}
        self.overlaps = next((kind for kind in (Overlaps.CHOICE, Overlaps.ALWAYS) if kind in kinds), Overlaps.NEVER)

    def _nodes(self, sizes: Sequence[int]) -> int:
        """The default size of a draft: of parts that take turns, the largest."""
        return max(sizes)

    def _waits(self, part: Drafter) -> bool:
        """Whether a part drafts only where the planner finds it worth its time, beside the drafts of the others."""
        return False

    @property
    def needs(self) -> Want:  # type: ignore[override]
        return _all_of(part.needs for part in self.parts)

    @property
    def prompt_needs(self) -> Want:  # type: ignore[override]
        return _all_of(part.prompt_needs for part in self.parts)

    def fit(self, target: Target, vocabulary: Vocabulary | None = None) -> None:
        for part in self.parts:
            part.fit(target, vocabulary)
        self._take_facts()

    def reset(self) -> None:
        for part in self.parts:
            part.reset()

    def dispose(self) -> None:
        with ExitStack() as disposed:  # also of the others where one fails
            for part in self.parts:
                disposed.callback(part.dispose)

    def open(self, context: Context) -> PartStates:
        states = PartStates(context)
        with ExitStack() as opened:
            for part in self.parts:
                states.append(asked(part, "open", context))
                opened.callback(part.close, states[-1])
            opened.pop_all()
        return states

    @property
    def overlap_setup(self) -> str:
        return "+".join(part.overlap_setup for part in self.parts if part.overlaps is Overlaps.CHOICE)

    def prepare_overlap(self) -> None:
        for part in self.parts:
            if part.overlaps is Overlaps.CHOICE:
                part.prepare_overlap()

    def end_overlap(self) -> None:
        for part in self.parts:
            part.end_overlap()

    def begin(self, states: Sequence[PartStates]) -> list[InFlight]:
        flights = [PartsInFlight() for _ in states]
        for state in states:
            state.flights = {}  # of parts that were not asked
        for number, part in enumerate(self.parts):
            if part.overlaps is not Overlaps.NEVER:
                own = answered(part, "begin", [state[number] for state in states], InFlight)
                for flight, one in zip(flights, own, strict=True):
                    flight.parts[number] = one
        return list(flights)

    def finish(self, asks: Sequence[Awaited]) -> list[DraftTree]:
        for state, _, flight in asks:
            assert isinstance(flight, PartsInFlight), "it was begun here"
            state.flights = flight.parts
        return self.propose([Ask(state, budget) for state, budget, _ in asks])

    def _drafts(self, part: Drafter, number: int, asks: Sequence[Ask], states: Sequence[PartStates]) -> list[DraftTree]:
        """A part's drafts: those in flight are finished."""
        if part.overlaps is Overlaps.NEVER:
            return answered(part, "propose", asks, DraftTree)
        flights = [state.flights.pop(number, None) for state in states]
        drafts = dict[int, DraftTree]()
        due: dict[str, dict[int, Ask | Awaited]] = {"propose": {}, "finish": {}}
        for place, (ask, flight) in enumerate(zip(asks, flights, strict=True)):
            due["propose" if flight is None else "finish"][place] = ask if flight is None else Awaited(*ask, flight)
        for verb, own in due.items():
            if own:
                drafts.update(zip(own, answered(part, verb, list(own.values()), DraftTree), strict=True))
        return [drafts[place] for place in range(len(asks))]

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

    def sure(self, state: list[Any]) -> bool:
        pairs = zip(self.parts, state, strict=True)
        return any(part.may_be_sure and asked(part, "sure", own) for part, own in pairs)

    @property
    def may_be_sure(self) -> bool:
        return any(part.may_be_sure for part in self.parts)

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


class Fallback(Composed):
    """``a,b``: for each sequence the first part that proposes anything; later parts are not asked."""

    name = "fallback"

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
            states = [ask.state for _, ask in empty]
            for one, draft in zip(empty, self._drafts(part, number, own, states), strict=True):
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

    def behind(self, asks: Sequence[Ahead]) -> list[DraftTree]:
        """By the first part that copies and has something."""
        drafts = [EMPTY] * len(asks)
        for number, part in enumerate(self.parts):
            empty = [i for i, draft in enumerate(drafts) if part.copies and not len(draft)]
            own = [asks[i]._replace(state=asks[i].state[number]) for i in empty]
            for i, draft in zip(empty, answered(part, "behind", own, DraftTree) if own else (), strict=True):
                drafts[i] = draft
        return drafts


class Union(Composed):
    """``a+b``: one tree of all parts with equal paths merged. It may be larger than the budget: the planner cuts it.

    A part whose levels take time waits until the others have drafted, and is asked where the planner finds it worth its
    time beside their drafts. What it then drafts is continued by the parts that copy the text (`continuing`).
    """

    name = "union"

    def _nodes(self, sizes: Sequence[int]) -> int:
        return sum(sizes)

    def _waits(self, part: Drafter) -> bool:
        """Beside others that take no time, or have an expensive part themselves."""
        return part.costly_levels > 0 and not part.enriches and not all(each.costly_levels for each in self.parts)

    def propose(self, asks: Sequence[Ask]) -> list[DraftTree]:
        by_part = [
            self._proposed(part, number, asks) for number, part in enumerate(self.parts) if not self._waits(part)
        ]
        return [joined(trees) for trees in zip(*by_part, strict=True)]

    def enrich(self, asks: Sequence[Enrich]) -> list[DraftTree]:
        by_part = list[list[DraftTree]]()
        for number, part in enumerate(self.parts):
            if self._waits(part):
                by_part.append(self._proposed(part, number, [Ask(ask.state, ask.budget) for ask in asks]))
            elif part.enriches:
                more = [ask._replace(state=ask.state[number], draft=EMPTY) for ask in asks]
                by_part.append(self._valid(part, "enrich", more))
        drafts = [joined(trees) for trees in zip(*by_part, strict=True)]
        if self.copies:
            copying = {number: part for number, part in enumerate(self.parts) if part.copies}
            drafts = continued(drafts, [Ask(ask.state, ask.whole) for ask in asks], copying)
        return [joined([ask.draft, draft]) for ask, draft in zip(asks, drafts, strict=True)]

    def behind(self, asks: Sequence[Ahead]) -> list[DraftTree]:
        by_part = [
            self._valid(part, "behind", [ask._replace(state=ask.state[number]) for ask in asks])
            for number, part in enumerate(self.parts)
            if part.copies
        ]
        return [joined(trees) for trees in zip(*by_part, strict=True)]

    def _own(self, part: Drafter, number: int, ask: Ask) -> Ask:
        """What a part is asked."""
        return Ask(ask.state[number], ask.budget)

    def _proposed(self, part: Drafter, number: int, asks: Sequence[Ask]) -> list[DraftTree]:
        own = [self._own(part, number, ask) for ask in asks]
        return self._checked(part, own, self._drafts(part, number, own, [ask.state for ask in asks]))

    def _valid(self, part: Drafter, verb: str, asks: Sequence[Any]) -> list[DraftTree]:
        return self._checked(part, asks, answered(part, verb, asks, DraftTree))

    @staticmethod
    def _checked(part: Drafter, asks: Sequence[Any], trees: Sequence[DraftTree]) -> list[DraftTree]:
        """A part's drafts, cut to their budgets and checked: an invalid one cannot be merged."""
        return [admitted(part, tree, part.leaves * ask.budget.nodes) for tree, ask in zip(trees, asks, strict=True)]


class Beside(Union):
    """A drafter beside sources that cost next to nothing. Each draft is no larger than suits its part, unless the part
    is sure of it."""

    name = "beside"

    def _own(self, part: Drafter, number: int, ask: Ask) -> Ask:
        (state, budget), most = super()._own(part, number, ask), part.nodes
        if budget.nodes > most and not (part.may_be_sure and asked(part, "sure", state)):
            budget = replace(budget, nodes=most)
        return Ask(state, budget)


def joined(trees: Sequence[DraftTree]) -> DraftTree:
    """One tree of several valid ones."""
    present = [tree for tree in trees if len(tree)]
    return merge(present) if len(present) > 1 else present[0] if present else EMPTY
