"""The planner that weighs, in every round, what each node of a draft is likely to bring against what it will take.

With *p* the chance of a node's whole path to come true, a round that scores a connected part *D* of the draft is
expected to emit ``1 + sum of p over D`` tokens. Rounds follow one another, so what counts is tokens per second over
many of them and not within one: a round of 1 token in 1 s and one of 1.8 in 1.7 s are each the better ratio of some
choice, and 5 in 1 s beats both. Time is therefore valued at the running *rate* of tokens per second, and the part
chosen is the one of greatest ::

    expected tokens - rate x seconds(rows)

Paths only grow less likely downwards, so the best part of n nodes is the n likeliest, whatever their number; all n from
none on are compared. Several sequences that are scored together share the seconds and are weighed together.

Where drafting has not been worth its own time for a while, the drafter sleeps, and is woken for a few rounds at times:
`PROBING` bounds what that costs. What a draft that was not sent would have brought is learnt from the text as well.
Probes bring nothing in their own round: where they would make it slower than plain, they go only as far as time was
saved up for them, and the draft goes without them otherwise.

Under the rejection rule the text may depend on the draft, so there everything is reckoned from stored costs and from
this text alone, and nodes that were sampled are cut by their depth and never by their value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from threading import RLock
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from paceline.context import Context
from paceline.drafters.base import Budget, Drafter
from paceline.planning.base import Cut, Draft, Outcome, Planner, Room, Why
from paceline.planning.costs import Costs
from paceline.planning.reliability import Reliability, Trust
from paceline.planning.stored import find
from paceline.planning.timing import Timing
from paceline.planning.wakefulness import BEARABLE, Running, Steady, Wakefulness
from paceline.targets.base import Target, Want
from paceline.targets.setup import setup_of
from paceline.tree import EMPTY, ROOT, Bools, DraftTree, Floats

PROBING = 0.01
"""The share of time that may go into drafts, or into sources, which have not been worth their time."""
SAVED, OWED = 2.0, 10.0
"""Plain rounds that can at most be saved up for probes, and that they can owe: the probes of many sequences at once are
rows that nobody tried yet, and may take far longer than is thought."""
UNEXPECTED = 0.5
"""How much longer than expected a round can take, in plain rounds, and still be put down to its draft."""
FEW, WIDENING = 8, 2
"""So many rows are tried at once, and so many times as many as were tried before, those of probes apart: a step too far
is no disaster then."""
WIDER = 4
"""How many nodes more are asked for than were lately worth sending."""


class Pending(NamedTuple):
    """A draft on which the text has not decided yet: how far it has followed, and up to which of its tokens."""

    tree: DraftTree
    node: int
    place: int


class Cheap(NamedTuple):
    """What a sequence's cheap sources offered before the dear ones ran, and which class that is."""

    draft: Weighed
    kind: int


STRONG = (0.3, 1.0)
"""Values of a cheap draft, in tokens, between which it is judged apart whether a dear one is worth its time besides."""


@dataclass(eq=False)
class Mind:
    """What is known of drafts and of time: of all texts, or of one that must not depend on any other."""

    costs: Costs
    live: bool
    reliability: Reliability = field(default_factory=Reliability)
    running: dict[int, Running] = field(default_factory=dict)
    trust: Trust = field(default_factory=Trust)
    drafter: dict[int, Wakefulness] = field(default_factory=dict)
    """By the size of the company: drafts that pay for one text may not for eight."""
    dear: tuple[Wakefulness, ...] = field(default_factory=lambda: tuple(Wakefulness() for _ in range(len(STRONG) + 1)))
    cheap_time: Steady = field(default_factory=Steady)
    """What drafting takes without the dear sources."""
    dear_time: Steady = field(default_factory=Steady)
    """What it takes with them."""
    reach: float = 8.0
    """How many nodes were lately worth sending, at most."""
    company: int = 1
    """How many sequences are in this round."""
    value: float = 0.0
    """What the drafts of this round were worth, in tokens, the time of probes apart."""
    offered: float = 0.0
    """And those of the cheap sources by themselves, where dear ones ran."""
    why: Why | None = None
    saved: float = BEARABLE
    """How much time probes may lose, in plain rounds; at first as much as a source may."""
    probed: bool = False
    """Whether this round has probes."""
    cheap: dict[Context, Cheap] = field(default_factory=dict)
    """Of those sequences of this round for which the dear sources ran."""
    pending: WeakKeyDictionary[Context, list[Pending]] = field(default_factory=WeakKeyDictionary)

    def rate(self, seconds_plain: float) -> float:
        """Tokens per second that time is valued at: never less than without drafts."""
        running = self.running.get(self.company)
        return max(self.company / seconds_plain, running.rate if running is not None else 0.0)

    @property
    def wakefulness(self) -> Wakefulness:
        """The drafter's in company of this size. What slept in a smaller one has no better chance in a larger one."""
        size = self.company.bit_length()
        if size not in self.drafter:
            smaller = [known for known in self.drafter if known < size]
            self.drafter[size] = replace(self.drafter[max(smaller)]) if smaller else Wakefulness()
        return self.drafter[size]

    def save(self, seconds: float) -> None:
        """A round took so long: if it had probes and was slower than plain for what it promised, that was theirs."""
        self.saved = min(SAVED, self.saved + PROBING)
        if self.probed and self.why is not None:
            value = self.why.tokens - self.company - self.why.rate * (seconds - self.why.seconds_plain)
            self.saved = max(-OWED, self.saved + min(0.0, value) / self.company)

    def learn(self, outcome: Outcome) -> None:
        """Judge drafts by the text, as far as it has got."""
        context = outcome.context
        waiting = self.pending.pop(context, [])
        if len(outcome.proposed):
            waiting.append(Pending(outcome.proposed, ROOT, len(context) - len(outcome.tokens)))
        left = []
        for tree, node, place in waiting:
            reached = self.reliability.learn(tree, node, context.tokens[place:].tolist())
            if reached is not None:
                left.append(Pending(tree, reached, len(context)))
        if left and context.finish is None:
            self.pending[context] = left


class Weighed(NamedTuple):
    """A draft with the chance of every node's whole path, and the nodes that must go if anything goes."""

    tree: DraftTree
    paths: Floats
    held: Bools | None

    @property
    def free(self) -> Floats:
        """The chances of the nodes there is a choice about."""
        return self.paths if self.held is None else np.where(self.held, 0.0, self.paths)

    def bare(self) -> Weighed:
        """The same without probes and whatever hangs from them."""
        probes = self.tree.probes
        if probes is None:
            return self
        kept = ~probes
        for node, parent in enumerate(self.tree.parents.tolist()):
            kept[node] &= parent == ROOT or kept[parent]
        nodes = np.flatnonzero(kept)
        tree = replace(self.tree.select(nodes, drawn=self.tree.drawn), probes=None)
        return Weighed(tree, self.paths[nodes], None)


class Adaptive(Planner):
    """Plans the drafts of one drafter for one target. ``costs`` may be shared with others."""

    def __init__(self, drafter: Drafter, costs: Costs) -> None:
        self._most = drafter.nodes
        self._mind = Mind(costs, live=True)
        self._own: WeakKeyDictionary[Context, Mind] = WeakKeyDictionary()
        self._lock = RLock()

    def plan(self, rooms: Sequence[Room]) -> list[Budget]:
        with self._lock:
            minds = [self._mind_of(room.context) for room in rooms]
            for mind in set(minds):
                mind.company, mind.value, mind.why, mind.probed = minds.count(mind), 0.0, None, False
                mind.cheap.clear()
            asleep = {mind for mind in set(minds) if mind.wakefulness.sleeps()}
            return [
                Budget(0, 0) if mind in asleep else Budget(self._size(mind), room.depth, self)
                for mind, room in zip(minds, rooms, strict=True)
            ]

    def _size(self, mind: Mind) -> int:
        return min(self._most, int(1.5 * mind.reach) + WIDER)

    def _mind_of(self, context: Context) -> Mind:
        if context.foreseeable:
            return self._mind
        if context not in self._own:
            self._own[context] = Mind(self._mind.costs.frozen(), live=False)
        return self._own[context]

    def worth(self, context: Context, draft: DraftTree) -> bool:
        """Whether the dear sources shall run, too: where a draft this good is there, have they been worth it?"""
        with self._lock:
            mind = self._mind_of(context)
            if not mind.costs.known:
                return False
            if not mind.live:
                return True
            weighed = _weighed(mind, draft)
            value = self._best(mind, [weighed], len(context))[1]
            kind = sum(value >= border for border in STRONG)
            if mind.dear[kind].sleeps():
                return False
            mind.cheap[context] = Cheap(weighed, kind)
            return True

    def paths(self, context: Context, draft: DraftTree) -> Floats:
        with self._lock:
            return _weighed(self._mind_of(context), draft).paths

    def cut(self, drafts: Sequence[Draft]) -> list[Cut]:
        with self._lock:
            minds = [self._mind_of(draft.context) for draft in drafts]
            found: dict[int, Cut] = {}
            for mind in set(minds):
                numbers = [number for number, other in enumerate(minds) if other is mind]
                cuts = self._cut(mind, [drafts[number] for number in numbers])
                found.update(zip(numbers, cuts, strict=True))
            return [found[number] for number in range(len(drafts))]

    def _cut(self, mind: Mind, drafts: Sequence[Draft]) -> list[Cut]:
        if not mind.costs.known:
            return [Cut(EMPTY) for _ in drafts]
        weighed = [_weighed(mind, draft.tree) for draft in drafts]
        length = sum(len(draft.context) for draft in drafts) // len(drafts)
        chosen, mind.value, mind.why = self._best(mind, weighed, length)
        if any(one.held is not None for one in weighed):
            bare = [one.bare() for one in weighed]
            without, value, why = self._best(mind, bare, length)
            mind.probed = min(0.0, mind.value) / mind.company >= -max(0.0, mind.saved)
            mind.value = value
            if not mind.probed:
                weighed, chosen, mind.why = bare, without, why
        if mind.cheap:  # what the same round would be worth without the dear sources
            drafted = [mind.cheap.get(draft.context) for draft in drafts]
            offered = [one if cheap is None else cheap.draft for one, cheap in zip(weighed, drafted, strict=True)]
            mind.offered = self._best(mind, offered, length)[1]
        cuts = []
        for one, nodes in zip(weighed, chosen, strict=True):
            tree = _part(one.tree, nodes)
            mind.reach = max(0.97 * mind.reach, len(tree))
            gain = mind.trust.share * float(one.free[nodes].sum())
            cuts.append(Cut(tree, replace(mind.why, tokens=1.0 + gain)))
        return cuts

    @staticmethod
    def _best(mind: Mind, drafts: Sequence[Weighed], length: int) -> tuple[list[Bools], float, Why]:
        """The nodes of each draft that are worth sending, what they are worth beyond their time, and the reckoning."""
        held = sum(0 if one.held is None else int(one.held.sum()) for one in drafts)
        chances = np.concatenate([one.free for one in drafts])
        order = np.argsort(-chances, kind="stable")
        gains = mind.trust.share * np.concatenate([[0.0], np.cumsum(chances[order])])
        first = mind.company + held
        seconds = mind.costs.seconds(first + len(order), sequences=mind.company, length=length)
        plain = float(seconds[mind.company])
        rate = mind.rate(plain)
        values = gains - rate * (seconds[first:] - plain)
        most = max(FEW, int(WIDENING * mind.costs.tried(sequences=mind.company, length=length))) - mind.company
        count = int(values[: 1 + max(0, most)].argmax())
        sent = np.zeros(len(order), np.bool_)
        sent[order[:count]] = True
        chosen, start = [], 0
        for one in drafts:
            nodes = sent[start : start + len(one.tree)]
            chosen.append(nodes if one.held is None else nodes | one.held)
            start += len(one.tree)
        why = Why(
            tokens=mind.company + float(gains[count]),
            seconds=float(seconds[first + count]),
            seconds_plain=plain,
            rate=rate,
            chance=float(gains[1]) if len(order) else 0.0,
            price=rate * float(seconds[min(first + 1, len(seconds) - 1)] - plain),
        )
        return chosen, float(values[count]), why

    def review(self, outcomes: Sequence[Outcome]) -> None:
        with self._lock:
            minds = [self._mind_of(outcome.context) for outcome in outcomes]
            for mind in set(minds):
                self._review(mind, [o for o, other in zip(outcomes, minds, strict=True) if other is mind])

    @staticmethod
    def _review(mind: Mind, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            mind.learn(outcome)
        tokens = sum(len(outcome.tokens) for outcome in outcomes)
        expected = 0.0 if mind.why is None else mind.why.tokens - mind.company
        mind.trust.learn(expected, tokens - len(outcomes) if expected else 0.0)
        running = mind.running.setdefault(len(outcomes), Running())
        if not mind.live:
            if mind.why is not None:
                running.add(tokens, mind.why.seconds)
                mind.save(mind.why.seconds)
                mind.why = None
            return
        seconds = max(outcome.seconds for outcome in outcomes)
        drafting = max(outcome.seconds_draft for outcome in outcomes)
        rows = sum(1 + len(outcome.sent) for outcome in outcomes)
        length = sum(len(outcome.context) for outcome in outcomes) // len(outcomes)
        mind.costs.note(Timing(rows=rows, seconds=seconds, length=length, sequences=len(outcomes)))
        running.add(tokens, seconds + drafting)
        mind.save(seconds)
        if mind.why is not None:
            sent = any(len(outcome.sent) for outcome in outcomes)
            _judge(mind, mind.why, drafting, mind.why.seconds - seconds if sent and not mind.probed else 0.0)
        mind.why = None  # the last round of a text may come without a plan


def _weighed(mind: Mind, tree: DraftTree) -> Weighed:
    depths = tree.depths()
    odds = (mind.reliability.levels if tree.drawn else mind.reliability.odds)(tree, depths)
    paths = odds.tolist()
    for node, parent in enumerate(tree.parents.tolist()):
        if parent != ROOT:
            paths[node] *= paths[parent]
    return Weighed(tree, np.array(paths), None if tree.probes is None else tree.under_probes())


def _judge(mind: Mind, why: Why, drafting: float, spared: float) -> None:
    """What this round's drafting was worth, the dear sources' and altogether. Tokens count as they were expected, for
    what came is a matter of luck; of the time counts also what the round ``spared`` of the seconds it was expected to
    take, for rows that nobody tried are taken to be cheap. That is no fault of the dear sources, which would have to
    sleep for it long after the rows are known."""
    patience = PROBING * why.rate * why.seconds_plain
    spent = mind.dear_time if mind.cheap else mind.cheap_time
    spent.add(drafting)
    if spent.times < 2:  # the first time is no measure of those that follow
        return
    surprise = why.rate * max(spared, -UNEXPECTED * why.seconds_plain)
    value = mind.value - why.rate * spent.seconds
    if mind.cheap:
        gained = mind.value - mind.offered - why.rate * max(0.0, spent.seconds - mind.cheap_time.seconds)
        for kind in {cheap.kind for cheap in mind.cheap.values()}:
            mind.dear[kind].judge(gained, patience)
        value = max(value, mind.offered - why.rate * mind.cheap_time.seconds)
    mind.wakefulness.judge(value + surprise, patience)


def _part(tree: DraftTree, nodes: Bools) -> DraftTree:
    """The chosen nodes. Of a draft with sampled nodes as many from its beginning, so that no value decides."""
    if nodes.all():
        return tree
    if not nodes.any():
        return EMPTY
    return tree.head(int(nodes.sum())) if tree.drawn else tree.select(np.flatnonzero(nodes))


_COSTS: WeakKeyDictionary[Target, dict[Want, Costs]] = WeakKeyDictionary()
"""What is known of every target's rounds, by what is read in them: it holds for all methods and texts."""


def costs_of(target: Target, want: Want) -> Costs:
    """The costs of rounds on this target, shared by all who plan for it. They begin with what was calibrated, if it
    was."""
    known = _COSTS.setdefault(target, {})
    if want not in known:
        profile = find(setup_of(target))
        known[want] = Costs(() if profile is None else profile.timings_with(want.top))
    return known[want]
