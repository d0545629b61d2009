"""The knowledge of the adaptive planner about drafts and time, and how it learns from rounds.

Rounds are judged by their drafts: the expensive part of a drafter by what it brought beyond the cheap part, and all
drafting by what it brought beyond plain rounds. A part that is not worth its time is left out for a while (`backoff`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from paceline.context import Context
from paceline.drafters.base import Budget
from paceline.planning.backoff import BEARABLE, LONGEST, RUN, BackOff, SharedRest, Steady
from paceline.planning.base import Draft, Outcome, Why
from paceline.planning.beginning import begun
from paceline.planning.chances import Reliability, Trust
from paceline.planning.choice import ChosenNodes, RoundCosts, Weighed, choose
from paceline.planning.costs import Costs, key_of
from paceline.planning.effort import Effort
from paceline.planning.levels import DEEPEST, MEASURED, Levels
from paceline.planning.seconds import TRUSTED, size_of
from paceline.planning.timing import Timing
from paceline.recent import RecentRatio
from paceline.tree import EMPTY, ROOT, Bools, DraftTree, Floats, Ints

PROBING = 0.005
"""The share of time that may go into drafts, or into sources, which have not been worth their time."""
LEARNING = 0.005
"""The share of time that may go into showing such a drafter rounds in which it drafts nothing."""
SHORTEST = 1e-6
"""Seconds that drafting takes at least: an average of 0 would never rise."""
DRAFTING = 0.05
"""The time of a draft in tokens, if no clock may decide."""
SAVED, OWED = 2.0, 10.0
"""Plain rounds that can at most be saved up for probe nodes, and that they can owe: the probe nodes of many sequences
at once are row counts that were never tried, and may take far longer than predicted."""
UNEXPECTED = 0.5
"""How much longer than expected a round can take, in plain rounds, and still be charged to its draft."""
STRONG = (0.3, 1.0)
"""Values of a cheap draft, in tokens, between which it is judged apart whether the expensive part is worth its time."""

LONG, FURTHER = 8, 4
"""A draft of `LONG` tokens that came true whole is most likely a copy: the next one may be `FURTHER` times as large."""
FARTHEST = 48.0
"""Nodes up to which it makes room: room for more takes the host time, and a longer copy comes to that by itself."""
SELDOM = 32
"""Of this many rounds without drafts, one is planned and timed."""

FIRST_CHECK, UNCHECKED = 4, 128
"""Rounds after which one without drafts is timed again, at first and at most; each time twice as many. The first
rounds of a program are slow, and while they count as plain ones drafts seem to pay."""
BACKED_OFF = "drafting had not been worth its own time"
SHOWN, RESTING = (Budget(0, 0, BACKED_OFF, shown) for shown in (True, False))
UNTIMED = Budget(0, 0, "a round without a draft was timed first")


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
    rests: bool = False
    """Whether nothing is drafted in it."""
    reviewed: bool = True
    """Whether it is still to be learnt from: once, and not if only some of its texts asked."""
    value: float = 0.0
    """The value of its drafts, in tokens, the time of probe nodes apart."""
    offered: float = 0.0
    """The value of the cheap parts by themselves, where expensive ones ran."""
    why: Why | None = None
    probed: bool = False
    """Whether probe nodes are scored."""
    enriched: set[int] = field(default_factory=set)
    """The classes of cheap drafts beside which the expensive part ran."""
    texts: int = 0
    """The number of drafts beside which it ran."""
    levels: int = 0
    """The most levels that it was asked for."""
    kinds: dict[DraftTree, int] = field(default_factory=dict)
    """The classes of cheap drafts, by the draft."""


@dataclass(eq=False)
class Knowledge:
    """A planner's knowledge of drafts and of time: from all texts, or from one that must not depend on any other."""

    costs: Costs
    live: bool
    effort: Effort = field(default_factory=Effort)
    reliability: Reliability = field(default_factory=Reliability)
    running: dict[int, RecentRatio] = field(default_factory=dict)
    """Class of batch sizes -> recent tokens and seconds, of one text."""
    trust: Trust = field(default_factory=Trust)
    backoffs: dict[int, BackOff] = field(default_factory=dict)
    """The drafter's, by batch size: drafts that pay for one text may not for eight."""
    expensive: tuple[BackOff, ...] = field(default_factory=lambda: tuple(BackOff() for _ in range(len(STRONG) + 1)))
    """The expensive part's, by the class of the cheap draft beside it."""
    learns: bool = True
    """Whether the drafter learns from rounds."""
    levels: Levels = field(init=False)
    """The levels of the expensive part."""
    unseen: int = 0
    """Rounds since the drafter was shown one in which it drafted nothing."""
    reach: float = 8.0
    """The most nodes that were recently worth sending."""
    saved: float = BEARABLE
    """Time that probe nodes may lose, in plain rounds; at first as much as a source may."""
    round: RoundState = field(default_factory=RoundState)
    rest: SharedRest = field(default_factory=SharedRest)
    pending: WeakKeyDictionary[Context, list[UndecidedDraft]] = field(default_factory=WeakKeyDictionary)
    waited: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Batch size and class of length -> rounds that went without drafts so that they are timed."""

    checked: Counter[tuple[int, int]] = field(default_factory=Counter)
    """The same -> how often a round went without drafts since the last such one was too long ago."""

    def __post_init__(self) -> None:
        self.levels = Levels(self.effort.levels)

    @property
    def backoff(self) -> BackOff:
        """The drafter's at this batch size. What was left out at a smaller one has no better chance at a larger one."""
        size = self.round.batch.bit_length()
        if size not in self.backoffs:
            smaller = [known for known in self.backoffs if known < size]
            self.backoffs[size] = replace(self.backoffs[max(smaller)]) if smaller else self._begun()
        return self.backoffs[size]

    def _begun(self) -> BackOff:
        return begun(self.effort, self.costs, self.round.batch, PROBING) if self.live else BackOff()

    @property
    def asleep(self) -> bool:
        """Whether nothing was drafted in the last round, and nothing will be in the next one."""
        backoff = self.backoffs.get(self.round.batch.bit_length())
        return backoff is not None and backoff.active

    @property
    def cheap_time(self) -> Steady:
        """Seconds of drafting without the expensive part, at this batch size."""
        return self.effort.cheap[self.round.batch.bit_length()]

    def wake(self) -> bool:
        """Draft again, since a draft is sure; False where the last one that was has brought nothing."""
        if not self.backoff.wake():
            return False
        self.rest.end()
        return True

    def begin(self, contexts: Sequence[Context], length: int) -> Budget | None:
        """Begin a round. The empty budget of its drafts, if nothing is drafted in it. Texts that join others which rest
        do as they do: alone they would be planned as a smaller batch."""
        if joined := self.rest.join(contexts):
            self.round.reviewed = False
            return replace(RESTING, rounds=joined)
        budget = self._begin_all(len(contexts), length)
        self.rest.begin(contexts, 1 if budget is None else budget.rounds)
        return budget

    def _begin_all(self, batch: int, length: int) -> Budget | None:
        """Begin a round of all texts that are written."""
        now = self.round
        if not now.rests or now.batch != batch:
            now = self.round = RoundState(batch)
        backoff = self.backoff
        now.rests, now.reviewed = backoff.active, True
        if now.rests:
            self._pass(1)
            until_shown = self._until_shown()
            if not backoff.active or until_shown < 1:
                self.unseen = 0
                return SHOWN
            rounds = min(SELDOM, backoff.left, until_shown)
            self._pass(rounds - 1)
            return replace(RESTING, rounds=rounds)
        if self.ready(length):
            return None
        self.waited[key_of(batch, length)] += 1
        now.rests = True
        return UNTIMED

    def _pass(self, rounds: int) -> None:
        """Rounds go by without drafts."""
        self.backoff.passed(rounds)
        self.effort.starts[self.round.batch.bit_length()].passed(rounds)
        self.unseen += rounds

    def _until_shown(self) -> int:
        """In how many rounds the drafter is shown one. What that takes, planning included, is spread over rounds."""
        if not self.learns:
            return LONGEST
        effort, size = self.effort, self.round.batch.bit_length()
        taken, plain = effort.showing[size].seconds + effort.idle[size].seconds, effort.plain[size].seconds
        return math.ceil(taken / (LEARNING * plain)) - self.unseen if plain else 0

    def without_idle(self, drafting: float, seconds: float, *, shown: bool) -> float:
        """Drafting took so long in a round, and the rest of it ``seconds``: what it took beyond that of a round which
        the drafter has no part in. Of rounds without drafts both are noted."""
        effort, size = self.effort, self.round.batch.bit_length()
        if self.round.rests:
            effort.plain[size].add(seconds)
            if not shown:
                effort.idle[size].add(drafting)
        drafting = max(SHORTEST, drafting - effort.idle[size].seconds)
        if self.round.rests and shown:
            effort.showing[size].add(drafting)
        return drafting

    def rate(self, seconds_plain: float) -> float:
        """Tokens per second that time is valued at: never less than without drafts."""
        running = self.running.get(size_of(self.round.batch))
        return self.round.batch * max(1 / seconds_plain, running.value if running is not None else 0.0)

    def note_rate(self, texts: int, tokens: int, seconds: float) -> None:
        """``texts`` texts got ``tokens`` tokens in all."""
        self.running.setdefault(size_of(texts), RecentRatio(RUN)).add(tokens / texts, seconds)

    def ready(self, length: int) -> bool:
        """Whether rounds without drafts were timed, of this batch size and about this length of text, and recently:
        drafts are worth what they bring beyond those. Where every round had a draft, it would seem to take no time. Not
        every host can time its rounds, and rounds are timed with all their texts, also those that have no room for a
        draft: so no batch waits for ever."""
        if not self.live:
            return True
        batch, key = self.round.batch, key_of(self.round.batch, length)
        if not self.costs.knows_plain(batch, length):
            return self.waited[key] > TRUSTED
        if self.costs.since_plain(batch, length) < min(UNCHECKED, FIRST_CHECK << self.checked[key]):
            return True
        self.checked[key] += 1
        return False

    def weigh(self, trees: Sequence[DraftTree]) -> Weighed:
        """Drafts with the chances of their nodes."""
        return Weighed.of(trees, self._odds)

    def within(self, drafts: Sequence[Draft]) -> Weighed:
        """As much of drafts as their budgets have room for."""
        trees = [draft.tree for draft in drafts]
        weighed = self.weigh(trees)
        if all(len(draft.tree) <= draft.budget.nodes for draft in drafts):
            return weighed
        if any(tree.drawn or tree.probes is not None for tree in trees):
            weighed = self.weigh([draft.within(self.weigh([draft.tree]).paths) for draft in drafts])
        return weighed.within([draft.budget.nodes for draft in drafts])

    def _odds(self, trees: Sequence[DraftTree], depths: Ints) -> Floats:
        if not any(tree.drawn for tree in trees):
            return self.reliability.odds(trees, depths)
        found, start = list[Floats](), 0
        for tree in trees:
            own = depths[start : start + len(tree)]
            reliability = self.reliability
            found.append(reliability.levels(tree, own) if tree.drawn else reliability.odds([tree], own))
            start += len(tree)
        return np.concatenate(found)

    def choose(self, drafts: Weighed, length: int) -> ChosenNodes:
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

    def class_of(self, cheap: Draft) -> int:
        """The class of a cheap draft, by what it is worth. Each is asked for twice in a round."""
        kinds = self.round.kinds
        if cheap.tree not in kinds:
            value = self.choose(self.within([cheap]), len(cheap.context)).value
            kinds[cheap.tree] = sum(value >= border for border in STRONG)
        return kinds[cheap.tree]

    def save(self, seconds: float) -> None:
        """Charge probe nodes of a round if it was slower than plain decoding for the tokens that it was expected to
        bring."""
        now = self.round
        self.saved = min(SAVED, self.saved + PROBING)
        if now.probed and now.why is not None:
            value = now.why.tokens - now.batch - now.why.rate * (seconds - now.why.seconds_plain)
            self.saved = max(-OWED, self.saved + min(0.0, value) / now.batch)

    def learn(self, outcome: Outcome) -> None:
        """Judge drafts by the text, as far as it has got."""
        context, left = outcome.context, list[UndecidedDraft]()
        for tree, node, place in self.pending.pop(context, ()) if self.pending else ():
            reached = self.reliability.learn(tree, node, context.tokens[place:].tolist())
            if reached is not None:
                left.append(UndecidedDraft(tree, reached, len(context)))
        if (tree := outcome.proposed) is not EMPTY:
            reached = self.reliability.learn(tree, ROOT, outcome.tokens)
            if reached is not None and reached < len(tree) - 1:
                left.append(UndecidedDraft(tree, reached, len(context)))
        if left and context.finish is None:
            self.pending[context] = left


def review(known: Knowledge, outcomes: Sequence[Outcome]) -> None:
    """Learn from the sequences of a round that share what is known."""
    if not known.round.reviewed:
        return
    known.round.reviewed = False  # texts that have no room to ask may be written while the others rest
    for outcome in outcomes:
        known.learn(outcome)
        if LONG <= len(outcome.sent) < len(outcome.tokens):
            known.reach = max(known.reach, min(FARTHEST, FURTHER * len(outcome.sent)))
    now, texts = known.round, len(outcomes)
    contexts, _, sent, emitted, spent_draft, spent, spent_top, shown = zip(*outcomes, strict=True)
    tokens = sum(map(len, emitted))
    expected = 0.0 if now.why is None else now.why.tokens - now.batch
    known.trust.learn(expected, tokens - texts if expected else 0.0)
    if not known.live:
        if now.why is not None:
            known.note_rate(texts, tokens, now.why.seconds)
            known.save(now.why.seconds)
            known.backoff.judge(now.value - DRAFTING, PROBING)
            now.why = None
        return
    seconds, drafting, rows = max(spent), max(spent_draft), texts + sum(map(len, sent))
    if seconds > 0:
        known.note_rate(texts, tokens, seconds + drafting)
        if rows == texts:  # a plain round reads nothing for a drafter
            reading = max(spent_top)
            seconds, drafting = seconds - reading, drafting + reading
        drafting = known.without_idle(drafting, seconds, shown=any(shown))
        known.costs.note(Timing(rows=rows, seconds=seconds, length=sum(map(len, contexts)) // texts, sequences=texts))
        known.save(seconds)
        if now.why is not None:
            predicted = rows > texts and not now.probed
            _judge(known, now.why, drafting, now.why.seconds - seconds if predicted else 0.0)
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
    cheap, levels = known.cheap_time, known.levels
    if now.levels:
        levels.took(max(0.0, drafting - cheap.seconds), now.levels, now.texts)
        more = now.levels * levels.seconds(now.texts)
        measured = levels.measured(now.texts)
    else:
        cheap.add(drafting)
        more, measured = 0.0, cheap.times >= MEASURED
    if not measured:
        return
    surprise = why.rate * max(spared, -UNEXPECTED * why.seconds_plain)
    value = now.value - why.rate * (cheap.seconds + more)
    if now.enriched:
        gained = now.value - now.offered - why.rate * more
        for kind in now.enriched:
            known.expensive[kind].judge(gained, patience)
        value = max(value, now.offered - why.rate * cheap.seconds)
    if not known.backoff.times and spared > -UNEXPECTED * why.seconds_plain:
        known.backoff.judge(value, patience, -surprise)  # of such a forward nothing but a probe was known
    else:
        known.backoff.judge(value + surprise, patience)
    known.effort.starts[now.batch.bit_length()].judge(value, paid=not known.backoff.active)


def gains_of(drafts: Weighed, sent: Bools, share: float, price: float) -> Floats:
    """The expected tokens of chosen nodes by their depth, the price of their rows deducted."""
    depths: Ints = np.fmin(drafts.depths[sent], DEEPEST) - 1
    return np.bincount(depths, share * drafts.free[sent] - price, DEEPEST).astype(np.float64)
