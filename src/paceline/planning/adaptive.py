"""The planner that weighs, in every round, the tokens that each node of a draft is expected to bring against its
seconds.

Six ideas, a file each: the chance that a node is accepted (`chances`), the cost of a round by its rows (`costs`), the
choice of nodes under both (`choice`), how deep an expensive part goes (`levels`), when to stop drafting for a while
(`backoff`), and whether a text begins with drafts (`beginning`). `knowledge` joins them and learns from rounds, this
file plans them.

If drafting has not been worth its own time for a while, the planner backs off: no draft for some rounds, then a few
rounds with one; `PROBING` bounds the cost of these. From drafts that were not sent the planner learns, too: the text
shows how much they would have brought. Probe nodes (lookahead's window) bring nothing in their own round. If they would
make it slower than plain, they are sent only if enough time was saved up for them.

Under the rejection rule the text may depend on the draft. There all decisions follow from stored costs and from this
text alone, and sampled nodes are cut by their depth and never by their value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from threading import RLock
from weakref import WeakKeyDictionary

from paceline.context import Context
from paceline.drafters.base import Budget, Drafter
from paceline.planning.base import Cut, Draft, Outcome, Planner, Resting, Room, Why
from paceline.planning.choice import ChosenNodes, Weighed
from paceline.planning.costs import Costs
from paceline.planning.effort import Effort
from paceline.planning.knowledge import Knowledge, gains_of, review
from paceline.planning.probed import probed
from paceline.planning.stored import find
from paceline.targets.base import Target, Want
from paceline.targets.setup import setup_of

WIDER = 4
"""Nodes that are asked for beyond those that were recently worth sending."""
UNLIMITED = 1 << 30
"""More levels than any draft has."""


class Adaptive(Planner):
    """Plans the drafts of one drafter for one target. ``costs`` may be shared with others."""

    def __init__(
        self, drafter: Drafter, costs: Costs, effort: Effort | None = None, *, overlapped: bool = False
    ) -> None:
        """``overlapped`` drafts are made while the target works, so their levels take no time of their own."""
        self._most, self._costly_levels = drafter.nodes, drafter.costly_levels
        self._whole = drafter.costly_levels > 0 and not drafter.enriches and not overlapped
        """Whether the expensive part is all of the drafter."""
        self._knowledge = Knowledge(costs, True, effort or Effort(), learns=drafter.observes)
        self._own: WeakKeyDictionary[Context, Knowledge] = WeakKeyDictionary()
        self._lock = RLock()

    def _known(self, context: Context) -> Knowledge:
        if context.foreseeable:
            return self._knowledge
        if context not in self._own:
            self._own[context] = Knowledge(self._knowledge.costs.frozen(), live=False)
        return self._own[context]

    def awake(self, context: Context) -> bool:
        with self._lock:
            return not self._known(context).asleep

    def wake(self, resting: Sequence[Resting]) -> list[bool]:
        """Texts that share what is known rest together, so one that is sure wakes all of them; one that was left out of
        a round, and asks later than the others, finds that they were woken."""
        with self._lock:
            known = [self._known(context) for context, _ in resting]
            sure = {each for each, one in zip(known, resting, strict=True) if one.sure}
            woken = {each for each in sure if each.wake()} | {each for each in known if each.live and not each.asleep}
            return [each in woken for each in known]

    def plan(self, rooms: Sequence[Room]) -> list[Budget]:
        with self._lock:
            known = [self._known(room.context) for room in rooms]
            length = sum(len(room.context) for room in rooms) // len(rooms)
            texts: dict[Knowledge, list[Context]] = {}
            for each, room in zip(known, rooms, strict=True):
                texts.setdefault(each, []).append(room.context)
            most = {each: self._budget(each, own, length) for each, own in texts.items()}
            places = [(each, room.depth) for each, room in zip(known, rooms, strict=True)]
            budgets = {(each, depth): most[each].within(depth) for each, depth in set(places)}
            return [budgets[place] for place in places]

    def _budget(self, known: Knowledge, contexts: Sequence[Context], length: int) -> Budget:
        """Begin a round of texts that share what is known: how large the draft of each may be."""
        if (rest := known.begin(contexts, length)) is not None:
            return rest
        depth, batch = UNLIMITED, len(contexts)
        if self._whole and known.live:
            known.round.texts = batch
            known.round.levels = min(self._costly_levels, self._levels(known, batch, length))
            if self._costly_levels > 1:  # else all levels come at once
                depth = known.round.levels
        return Budget(min(self._most, int(1.5 * known.reach) + WIDER), depth)

    def worth(self, drafts: Sequence[Draft]) -> list[int]:
        with self._lock:
            length = sum(len(draft.context) for draft in drafts) // len(drafts)
            known = [self._known(draft.context) for draft in drafts]
            wanted = [self._wants(each, draft) for each, draft in zip(known, drafts, strict=True)]
            texts = Counter(each for each, wants in zip(known, wanted, strict=True) if wants)
            levels = {each: self._levels(each, count, length) for each, count in texts.items()}
            return [
                min(draft.budget.depth, levels[each]) if wants else 0
                for each, draft, wants in zip(known, drafts, wanted, strict=True)
            ]

    @staticmethod
    def _wants(known: Knowledge, draft: Draft) -> bool:
        """Whether, beside a cheap draft of this class, the expensive part has been worth its time."""
        return not known.live or not known.expensive[known.class_of(draft)].active

    def _levels(self, known: Knowledge, texts: int, length: int) -> int:
        """How many levels of it pay for ``texts`` texts; all if that is not known by level."""
        if not known.live or self._costly_levels < 2:
            return UNLIMITED
        batch = known.round.batch
        seconds_plain = float(known.costs.seconds(batch, sequences=batch, length=length)[batch])
        return known.levels.best(texts, known.rate(seconds_plain), self._costly_levels)

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
        weighed = known.within(drafts)
        now, choice = known.round, known.choose(weighed, length)
        now.value, now.why = choice.value, choice.why
        if weighed.held is not None:
            bare = weighed.bare()
            without = known.choose(bare, length)
            now.probed = min(0.0, now.value) / now.batch >= -max(0.0, known.saved)
            now.value = without.value
            if not now.probed:
                weighed, choice, now.why = bare, without, without.why
        if known.live and any(draft.cheap is not None for draft in drafts):
            self._note_expensive(known, drafts, weighed, choice, length)
        elif now.levels:
            gains = gains_of(weighed, choice.sent, known.trust.share, choice.why.price)
            known.levels.brought(gains[: now.levels] / now.texts)
        trees, why = weighed.parts(choice.sent), now.why
        known.reach = max(0.97 * known.reach, *map(len, trees))
        brought = weighed.sums(known.trust.share * weighed.free * choice.sent)
        rest = why.seconds, why.seconds_plain, why.rate, why.chance, why.price
        return [Cut(tree, Why(1.0 + gain, *rest)) for tree, gain in zip(trees, brought, strict=True)]

    def _note_expensive(
        self, known: Knowledge, drafts: Sequence[Draft], weighed: Weighed, choice: ChosenNodes, length: int
    ) -> None:
        """Note which expensive parts ran and which were left out, and what the round would be worth without them."""
        now, without, passed = known.round, list(drafts), set[int]()
        for number, draft in enumerate(drafts):
            if draft.cheap is None:
                continue
            cheap = draft._replace(tree=draft.cheap)
            kind = known.class_of(cheap)
            if draft.levels:
                now.enriched.add(kind)
                now.texts += 1
                now.levels = max(now.levels, min(draft.levels, max(1, self._costly_levels)))
                without[number] = cheap
            else:
                passed.add(kind)
        for kind in passed - now.enriched:  # once a round, however many texts it has
            known.expensive[kind].passed()
        if now.enriched:
            offered = known.within(without)
            bare = known.choose(offered, length)
            now.offered = bare.value
            share, price = known.trust.share, choice.why.price
            gains = gains_of(weighed, choice.sent, share, price) - gains_of(offered, bare.sent, share, price)
            known.levels.brought(gains[: now.levels] / now.texts)

    def review(self, outcomes: Sequence[Outcome]) -> None:
        with self._lock:
            known = [self._known(outcome.context) for outcome in outcomes]
            for each in set(known):
                review(each, [o for o, other in zip(outcomes, known, strict=True) if other is each])


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
