"""The planner that weighs, in every round, what each node of a draft is likely to bring against what it will take.

Four ideas, a file each: the chance of a node to come true (`chances`), the cost of a round by its rows (`costs`), the
choice of nodes under both (`choice`), and when to stop drafting for a while (`backoff`). This file joins them.

Where drafting has not been worth its own time for a while, the planner backs off: no draft for some rounds, then a few
rounds with one; `PROBING` bounds what that costs. What a draft that was not sent would have brought is learnt from the
text as well. Probe nodes (lookahead's window) bring nothing in their own round: where they would make it slower than
plain, they go only as far as time was saved up for them, and the draft goes without them otherwise.

Under the rejection rule the text may depend on the draft. There everything is reckoned from stored costs and from this
text alone, and nodes that were sampled are cut by their depth and never by their value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from threading import RLock
from typing import NamedTuple
from weakref import WeakKeyDictionary

from paceline.context import Context
from paceline.drafters.base import Budget, Drafter
from paceline.planning.backoff import BEARABLE, BackOff, Running, Steady
from paceline.planning.base import Cut, Draft, Outcome, Planner, Room, Why
from paceline.planning.chances import Reliability, Trust
from paceline.planning.choice import ChosenNodes, RoundCosts, Weighed, along_paths, choose
from paceline.planning.costs import TRUSTED, Costs, key_of
from paceline.planning.probed import probed
from paceline.planning.stored import find
from paceline.planning.timing import Timing
from paceline.targets.base import Target, Want
from paceline.targets.setup import setup_of
from paceline.tree import EMPTY, ROOT, DraftTree, Floats

PROBING = 0.01
"""The share of time that may go into drafts, or into sources, which have not been worth their time."""
SAVED, OWED = 2.0, 10.0
"""Plain rounds that can at most be saved up for probe nodes, and that they can owe: the probe nodes of many sequences
at once are row counts that were never tried, and may take far longer than predicted."""
UNEXPECTED = 0.5
"""How much longer than expected a round can take, in plain rounds, and still be charged to its draft."""
WIDER = 4
"""Nodes that are asked for beyond those that were recently worth sending."""
STRONG = (0.3, 1.0)
"""Values of a cheap draft, in tokens, between which it is judged apart whether the expensive part is worth its time."""


class UndecidedDraft(NamedTuple):
    """A draft on which the text has not decided yet: how far it has followed, and up to which of its tokens."""

    tree: DraftTree
    node: int
    place: int


@dataclass(eq=False)
class RoundState:
    """The round that is being planned."""

    batch: int = 1
    """How many sequences are in it."""
    value: float = 0.0
    """The value of its drafts, in tokens, the time of probe nodes apart."""
    offered: float = 0.0
    """The value of the cheap parts by themselves, where expensive ones ran."""
    why: Why | None = None
    probed: bool = False
    """Whether probe nodes are scored."""
    enriched: set[int] = field(default_factory=set)
    """The classes of cheap drafts beside which the expensive part ran."""


@dataclass(eq=False)
class Knowledge:
    """A planner's knowledge of drafts and of time: from all texts, or from one that must not depend on any other."""

    costs: Costs
    live: bool
    reliability: Reliability = field(default_factory=Reliability)
    running: dict[int, Running] = field(default_factory=dict)
    """Batch size -> the recent rate."""
    trust: Trust = field(default_factory=Trust)
    backoffs: dict[int, BackOff] = field(default_factory=dict)
    """The drafter's, by batch size: drafts that pay for one text may not for eight."""
    expensive: tuple[BackOff, ...] = field(default_factory=lambda: tuple(BackOff() for _ in range(len(STRONG) + 1)))
    """The expensive part's, by the class of the cheap draft beside it."""
    cheap_time: Steady = field(default_factory=Steady)
    """Seconds of drafting without the expensive part."""
    whole_time: Steady = field(default_factory=Steady)
    """Seconds of drafting with it."""
    reach: float = 8.0
    """The most nodes that were recently worth sending."""
    saved: float = BEARABLE
    """Time that probe nodes may lose, in plain rounds; at first as much as a source may."""
    round: RoundState = field(default_factory=RoundState)
    pending: WeakKeyDictionary[Context, list[UndecidedDraft]] = field(default_factory=WeakKeyDictionary)
    waited: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Batch size and class of length -> rounds that went without drafts so that they are timed."""

    @property
    def backoff(self) -> BackOff:
        """The drafter's at this batch size. What was left out at a smaller one has no better chance at a larger one."""
        size = self.round.batch.bit_length()
        if size not in self.backoffs:
            smaller = [known for known in self.backoffs if known < size]
            self.backoffs[size] = replace(self.backoffs[max(smaller)]) if smaller else BackOff()
        return self.backoffs[size]

    def rate(self, seconds_plain: float) -> float:
        """Tokens per second that time is valued at: never less than without drafts."""
        running = self.running.get(self.round.batch)
        return max(self.round.batch / seconds_plain, running.rate if running is not None else 0.0)

    def ready(self, length: int) -> bool:
        """Whether rounds without drafts were timed, of this batch size and about this length of text: drafts are worth
        what they bring beyond those. Where every round had a draft, it would seem to take no time. Rounds are timed
        with all their texts, also those that have no room for a draft, so no batch waits for ever."""
        if not self.costs.known or not self.live:
            return self.costs.known
        batch = self.round.batch
        return self.costs.knows_plain(batch, length) or self.waited[key_of(batch, length)] > TRUSTED

    def weigh(self, tree: DraftTree) -> Weighed:
        """A draft with the chances of its nodes."""
        return Weighed.of(tree, self._odds(tree))

    def within(self, draft: Draft) -> Weighed:
        """As much of a draft as its budget has room for."""
        if len(draft.tree) <= draft.budget.nodes:
            return self.weigh(draft.tree)
        return self.weigh(draft.within(along_paths(draft.tree, self._odds(draft.tree))))

    def _odds(self, tree: DraftTree) -> Floats:
        return (self.reliability.levels if tree.drawn else self.reliability.odds)(tree, tree.depths())

    def choose(self, drafts: Sequence[Weighed], length: int) -> ChosenNodes:
        """The nodes worth scoring of drafts for texts of about this length."""
        batch = self.round.batch
        machine = RoundCosts(
            seconds=partial(self.costs.seconds, sequences=batch, length=length),
            tried=self.costs.tried(sequences=batch, length=length),
            rate=self.rate,
            batch=batch,
            share=self.trust.share,
        )
        return choose(drafts, machine)

    def class_of(self, cheap: Weighed, length: int) -> int:
        """The class of a cheap draft, by what it is worth."""
        value = self.choose([cheap], length).value
        return sum(value >= border for border in STRONG)

    def save(self, seconds: float) -> None:
        """A round took so long: if it had probe nodes and was slower than plain for what it promised, charge them."""
        now = self.round
        self.saved = min(SAVED, self.saved + PROBING)
        if now.probed and now.why is not None:
            value = now.why.tokens - now.batch - now.why.rate * (seconds - now.why.seconds_plain)
            self.saved = max(-OWED, self.saved + min(0.0, value) / now.batch)

    def learn(self, outcome: Outcome) -> None:
        """Judge drafts by the text, as far as it has got."""
        context = outcome.context
        waiting = self.pending.pop(context, [])
        if len(outcome.proposed):
            waiting.append(UndecidedDraft(outcome.proposed, ROOT, len(context) - len(outcome.tokens)))
        left = []
        for tree, node, place in waiting:
            reached = self.reliability.learn(tree, node, context.tokens[place:].tolist())
            if reached is not None:
                left.append(UndecidedDraft(tree, reached, len(context)))
        if left and context.finish is None:
            self.pending[context] = left


class Adaptive(Planner):
    """Plans the drafts of one drafter for one target. ``costs`` may be shared with others."""

    def __init__(self, drafter: Drafter, costs: Costs) -> None:
        self._most = drafter.nodes
        self._knowledge = Knowledge(costs, live=True)
        self._own: WeakKeyDictionary[Context, Knowledge] = WeakKeyDictionary()
        self._lock = RLock()

    def _known(self, context: Context) -> Knowledge:
        if context.foreseeable:
            return self._knowledge
        if context not in self._own:
            self._own[context] = Knowledge(self._knowledge.costs.frozen(), live=False)
        return self._own[context]

    def plan(self, rooms: Sequence[Room]) -> list[Budget]:
        with self._lock:
            known = [self._known(room.context) for room in rooms]
            resting = set()
            for each in set(known):
                each.round = RoundState(batch=known.count(each))
                if each.backoff.active:
                    each.backoff.passed()
                    resting.add(each)
            return [
                BACKED_OFF if each in resting else Budget(self._size(each), room.depth)
                for each, room in zip(known, rooms, strict=True)
            ]

    def _size(self, known: Knowledge) -> int:
        return min(self._most, int(1.5 * known.reach) + WIDER)

    def worth(self, drafts: Sequence[Draft]) -> list[bool]:
        with self._lock:
            length = sum(len(draft.context) for draft in drafts) // len(drafts)
            return [self._worth(self._known(draft.context), draft, length) for draft in drafts]

    @staticmethod
    def _worth(known: Knowledge, draft: Draft, length: int) -> bool:
        """Whether, beside a cheap draft of this class, the expensive part has been worth its time."""
        if not known.ready(length):
            return False
        return not known.live or not known.expensive[known.class_of(known.within(draft), len(draft.context))].active

    def cut(self, drafts: Sequence[Draft]) -> list[Cut]:
        with self._lock:
            known = [self._known(draft.context) for draft in drafts]
            found: dict[int, Cut] = {}
            for each in set(known):
                numbers = [number for number, other in enumerate(known) if other is each]
                cuts = self._cut(each, [drafts[number] for number in numbers])
                found.update(zip(numbers, cuts, strict=True))
            return [found[number] for number in range(len(drafts))]

    def _cut(self, known: Knowledge, drafts: Sequence[Draft]) -> list[Cut]:
        length = sum(len(draft.context) for draft in drafts) // len(drafts)
        if not known.ready(length):
            known.waited[key_of(known.round.batch, length)] += 1
            return [Cut(EMPTY) for _ in drafts]
        weighed = [known.within(draft) for draft in drafts]
        now, choice = known.round, known.choose(weighed, length)
        now.value, now.why = choice.value, choice.why
        if any(one.held is not None for one in weighed):
            bare = [one.bare() for one in weighed]
            without = known.choose(bare, length)
            now.probed = min(0.0, now.value) / now.batch >= -max(0.0, known.saved)
            now.value = without.value
            if not now.probed:
                weighed, choice, now.why = bare, without, without.why
        if known.live:
            self._note_expensive(known, drafts, weighed, length)
        cuts = []
        for one, nodes in zip(weighed, choice.nodes, strict=True):
            tree = one.part(nodes)
            known.reach = max(0.97 * known.reach, len(tree))
            gain = known.trust.share * float(one.free[nodes].sum())
            cuts.append(Cut(tree, replace(now.why, tokens=1.0 + gain)))
        return cuts

    @staticmethod
    def _note_expensive(known: Knowledge, drafts: Sequence[Draft], weighed: Sequence[Weighed], length: int) -> None:
        """Note which expensive parts ran and which were left out, and what the round would be worth without them."""
        offered = list(weighed)
        for number, draft in enumerate(drafts):
            if draft.cheap is None:
                continue
            cheap = known.within(draft._replace(tree=draft.cheap))
            kind = known.class_of(cheap, len(draft.context))
            if draft.enriched:
                known.round.enriched.add(kind)
                offered[number] = cheap
            else:
                known.expensive[kind].passed()
        if known.round.enriched:
            known.round.offered = known.choose(offered, length).value

    def review(self, outcomes: Sequence[Outcome]) -> None:
        with self._lock:
            known = [self._known(outcome.context) for outcome in outcomes]
            for each in set(known):
                _review(each, [o for o, other in zip(outcomes, known, strict=True) if other is each])


def _review(known: Knowledge, outcomes: Sequence[Outcome]) -> None:
    """Learn from the sequences of a round that share what is known."""
    for outcome in outcomes:
        known.learn(outcome)
    now = known.round
    tokens = sum(len(outcome.tokens) for outcome in outcomes)
    expected = 0.0 if now.why is None else now.why.tokens - now.batch
    known.trust.learn(expected, tokens - len(outcomes) if expected else 0.0)
    running = known.running.setdefault(len(outcomes), Running())
    if not known.live:
        if now.why is not None:
            running.add(tokens, now.why.seconds)
            known.save(now.why.seconds)
            now.why = None
        return
    seconds = max(outcome.seconds for outcome in outcomes)
    drafting = max(outcome.seconds_draft for outcome in outcomes)
    rows = sum(1 + len(outcome.sent) for outcome in outcomes)
    length = sum(len(outcome.context) for outcome in outcomes) // len(outcomes)
    known.costs.note(Timing(rows=rows, seconds=seconds, length=length, sequences=len(outcomes)))
    running.add(tokens, seconds + drafting)
    known.save(seconds)
    if now.why is not None:
        sent = any(len(outcome.sent) for outcome in outcomes)
        _judge(known, now.why, drafting, now.why.seconds - seconds if sent and not now.probed else 0.0)
    now.why = None  # the last round of a text may come without a plan


def _judge(known: Knowledge, why: Why, drafting: float, spared: float) -> None:
    """Judge this round's drafting: the expensive part, and all of it.

    The value is expected tokens minus rate x drafting seconds. Expected, not actual, tokens have less variance. If the
    forward was slower than predicted (``spared`` < 0), that is charged to the drafter as a whole but not to the
    expensive part: the prediction was for row counts never tried, and the expensive part would be left out long after
    they are known.
    """
    now = known.round
    patience = PROBING * why.rate * why.seconds_plain
    spent = known.whole_time if now.enriched else known.cheap_time
    spent.add(drafting)
    if spent.times < 2:  # the first time is no measure of those that follow
        return
    surprise = why.rate * max(spared, -UNEXPECTED * why.seconds_plain)
    value = now.value - why.rate * spent.seconds
    if now.enriched:
        gained = now.value - now.offered - why.rate * max(0.0, spent.seconds - known.cheap_time.seconds)
        for kind in now.enriched:
            known.expensive[kind].judge(gained, patience)
        value = max(value, now.offered - why.rate * known.cheap_time.seconds)
    known.backoff.judge(value + surprise, patience)


BACKED_OFF = Budget(0, 0, "drafting had not been worth its own time")
_COSTS: WeakKeyDictionary[Target, dict[Want, Costs]] = WeakKeyDictionary()
"""The costs of every target's rounds by what is read in them, for all methods and texts."""


def costs_of(target: Target, want: Want) -> Costs:
    """The costs of rounds on this target, shared by all planners for it. They begin with what was calibrated, if it
    was, and in enough rounds; otherwise with a few forwards that are timed now."""
    known = _COSTS.setdefault(target, {})
    if want not in known:
        profile = find(setup_of(target))
        if profile is not None and profile.telling:
            known[want] = Costs(profile.timings_with(want.top))
        else:
            known[want] = Costs(probed=probed(target))
    return known[want]
