"""The planner of drafters that can draft while their target works: overlapped or in turns, by measured seconds.

Each way has a planner of its own, which learns from the rounds of that way alone. Drafts are made in turns unless
overlapped ones were measured to be faster: on cores that share a memory they are not, for the target has a core less.

They are compared in a *trial*: `BLOCK` rounds in turns, as many overlapped, and so on, in the same texts. An overlapped
round is worth its tokens less what its seconds bring in turns. The trial ends when that is clearly a loss or a gain,
and after `MOST` overlapped rounds at the latest, so its cost is bounded. Its result is kept in the cache directory for
this machine, target, draft model and batch size. Another trial begins after `AGAIN` seconds, and each further one
after a time that is `SELDOMER` times as long, up to `LATEST`. In between nothing is prepared for the way that lost:
where turns are known to win, no process of the draft model is begun.

Under the rejection rule, where a text depends on its drafts, drafts are made in turns, whatever was measured.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median, variance
from threading import RLock
from typing import Annotated, Any, TypeVar
from weakref import WeakKeyDictionary

from paceline.context import Context
from paceline.drafters.base import Budget, Drafter
from paceline.errors import DrafterWarning, InputError
from paceline.files import keep_record, kept_record
from paceline.files.shape import LARGEST_EXACT_INTEGER, Bounds, Count
from paceline.once import once
from paceline.planning.backoff import STALL
from paceline.planning.base import Cut, Draft, Outcome, Planner, Resting, Room
from paceline.planning.knowledge import UNTIMED
from paceline.targets.base import Target
from paceline.targets.setup import kernels, setup_of, versions

BLOCK = 6
"""Rounds of one way in a row."""
SETTLING = 1
"""Rounds at the beginning of a block that are not compared: the draft model still catches up."""
FEW, ENOUGH, MOST = 4, 12, 40
"""Compared overlapped rounds before a loss is believed, before a gain is, and before the trial ends anyway."""
SURE = 2.0
"""Standard errors that a clear loss or gain is away from nothing."""
WORTH = 1.02
"""How many times as fast overlapped drafts must be at the end of a trial that was not clear."""
AGAIN, SELDOMER, LATEST = 600.0, 8.0, 60 * 86400.0
"""Seconds until the second trial, the factor to each further one, and the longest time between two."""
FOLDER = "overlap"
"""In the cache directory."""

Payload = TypeVar("Payload")
Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True)
class OverlapFacts:
    """What is known of overlapped drafts in one setup."""

    setup: str
    versions: Mapping[str, str]
    trials: Count
    """How many were begun."""
    when: Annotated[float, Bounds(0, LARGEST_EXACT_INTEGER)]
    """When the last one was, in seconds since 1970."""
    speed: Annotated[float, Bounds(0, 1e6)] = 0.0
    """How many times as fast overlapped drafts were; 0 if no trial has ended."""

    @property
    def due(self) -> bool:
        """Whether it is time for another trial."""
        return not 0 <= time.time() - self.when < min(LATEST, AGAIN * SELDOMER ** (min(self.trials, 20) - 1))


def known_facts(setup: str) -> OverlapFacts | None:
    found = kept_record(FOLDER, setup, OverlapFacts)
    return found if found is not None and found.setup == setup and dict(found.versions) == versions() else None


@dataclass(eq=False)
class WaysTrial:
    """Rounds of both ways, in alternating blocks."""

    tokens: dict[bool, list[float]] = field(default_factory=lambda: {False: [], True: []})
    """Of the compared rounds that were overlapped, and of those that were not."""
    seconds: dict[bool, list[float]] = field(default_factory=lambda: {False: [], True: []})
    rounds: int = 0

    @property
    def overlapped(self) -> bool:
        """The way of the next round."""
        return self.rounds // BLOCK % 2 == 1

    def note(self, overlapped: bool, tokens: float, seconds: float) -> None:
        """A round was made. Stalls count as `STALL` times the median, of the right way only."""
        if overlapped is not self.overlapped:
            return
        if self.rounds % BLOCK >= SETTLING:
            self.tokens[overlapped].append(tokens)
            self.seconds[overlapped].append(seconds)
        self.rounds += 1

    @property
    def speed(self) -> float:
        """How many times as many tokens a second overlapped rounds brought."""
        turns, overlapped = (sum(self.tokens[way]) / sum(self._seconds(way)) for way in (False, True))
        return overlapped / turns

    def _seconds(self, way: bool) -> list[float]:
        most = STALL * median(self.seconds[way])
        return [min(each, most) for each in self.seconds[way]]

    @property
    def won(self) -> bool | None:
        """Whether overlapped drafts are faster; None while that is open."""
        count = len(self.tokens[True])
        if min(count, len(self.tokens[False])) < FEW:
            return None
        rate = sum(self.tokens[False]) / sum(self._seconds(False))
        worth = {
            way: [tokens - rate * s for tokens, s in zip(self.tokens[way], self._seconds(way), strict=True)]
            for way in (False, True)
        }
        gain, error = fmean(worth[True]), math.sqrt(sum(variance(each) / len(each) for each in worth.values()))
        if gain + SURE * error < 0:
            return False
        if count >= ENOUGH and gain - SURE * error > 0:
            return True
        return self.speed > WORTH if count >= MOST else None


@dataclass(eq=False)
class WayChoice:
    """The way of drafts at one batch size."""

    overlapped: bool = False
    trial: WaysTrial | None = None
    """The trial that is under way."""

    @property
    def now(self) -> bool:
        return self.overlapped if self.trial is None else self.trial.overlapped

    @property
    def lost(self) -> bool:
        return self.trial is None and not self.overlapped


class TurnsOrOverlap(Planner):
    """Plans drafts by the planner of the way that they are made in."""

    def __init__(self, drafter: Drafter, target: Target, *, turns: Planner, overlapped: Planner) -> None:
        self._planners = {False: turns, True: overlapped}
        self._prepare, self._end = drafter.prepare_overlap, drafter.end_overlap
        self._setup = f"{setup_of(target).digest} {kernels()} {drafter.overlap_setup}"
        self._ways: WeakKeyDictionary[Context, bool] = WeakKeyDictionary()
        self._lock = RLock()
        self._timing = False
        """Whether a planner has just left drafts out to time a round without them, which says nothing of its way."""
        self._choices: dict[int, WayChoice] = {}
        self._choice(1)

    # the choice

    def _choice(self, batch: int) -> WayChoice:
        """The choice at this batch size, in classes of up to 1, 3, 7 texts and so on. Where overlapped drafts lost for
        few texts they do for many, whose drafts take longer and leave the target no more time."""
        size = batch.bit_length()
        if size not in self._choices:
            fewer = [choice for smaller, choice in self._choices.items() if smaller < size]
            self._choices[size] = WayChoice() if any(choice.lost for choice in fewer) else self._begun(size)
        return self._choices[size]

    def _begun(self, size: int) -> WayChoice:
        """As is known; with a trial where that is due."""
        facts = known_facts(self._key(size))
        due = facts is None or facts.due
        if not due and facts is not None and facts.speed <= 1:
            return WayChoice()
        try:
            with once():  # no round's seconds
                self._prepare()
        except InputError as error:
            said = f"drafts are made in turns with the target, since overlapped ones cannot be: {error}"
            warnings.warn(said, DrafterWarning, stacklevel=2)
            return WayChoice()
        if not due:
            return WayChoice(overlapped=True)
        self._keep(size, 0.0 if facts is None else facts.speed, 1 if facts is None else facts.trials + 1)
        return WayChoice(trial=WaysTrial())

    def _key(self, size: int) -> str:
        return f"{self._setup} {size}"

    def _keep(self, size: int, speed: float, trials: int) -> None:
        key = self._key(size)
        kept = OverlapFacts(setup=key, versions=versions(), trials=trials, when=time.time(), speed=speed)
        keep_record(FOLDER, key, kept)

    def _note(self, outcomes: Sequence[Outcome], overlapped: bool) -> None:
        """Compare a round. A trial that is over is kept; where no batch size overlaps, nothing is kept ready for it."""
        size = len(outcomes).bit_length()
        choice = self._choices.get(size)
        if choice is None or choice.trial is None:
            return
        trial = choice.trial
        seconds = max(each.seconds + each.seconds_draft for each in outcomes)
        if seconds > 0:
            trial.note(overlapped, sum(len(each.tokens) for each in outcomes) / len(outcomes), seconds)
        if (won := trial.won) is None:
            return
        choice.overlapped, choice.trial = won, None
        facts = known_facts(self._key(size))
        self._keep(size, trial.speed if won else min(1.0, trial.speed), 1 if facts is None else facts.trials)
        if all(each.lost for each in self._choices.values()):
            self._end()

    # planning

    def plan(self, rooms: Sequence[Room]) -> list[Budget]:
        with self._lock:
            overlapped = all(room.context.foreseeable for room in rooms) and self._choice(len(rooms)).now
            for room in rooms:
                self._ways[room.context] = overlapped
        budgets = self._planners[overlapped].plan(rooms)
        self._timing = any(budget.reason == UNTIMED.reason for budget in budgets)
        return [replace(budget, overlapped=True) for budget in budgets] if overlapped else budgets

    def awake(self, context: Context) -> bool:
        return self._planners[self._ways.get(context, False)].awake(context)

    def wake(self, resting: Sequence[Resting]) -> list[bool]:
        return self._by_way(lambda planner, own: planner.wake(own), resting)

    def worth(self, drafts: Sequence[Draft]) -> list[int]:
        return self._by_way(lambda planner, own: planner.worth(own), drafts)

    def cut(self, drafts: Sequence[Draft]) -> list[Cut]:
        return self._by_way(lambda planner, own: planner.cut(own), drafts)

    def review(self, outcomes: Sequence[Outcome]) -> None:
        ways = {self._ways.get(each.context, False) for each in outcomes}
        for way in ways:
            self._planners[way].review([each for each in outcomes if self._ways.get(each.context, False) is way])
        if len(ways) == 1 and not self._timing and all(each.context.foreseeable for each in outcomes):
            with self._lock:
                self._note(outcomes, ways.pop())

    def _by_way(self, ask: Callable[[Planner, Sequence[Any]], list[Answer]], payloads: Sequence[Any]) -> list[Answer]:
        """The answers of the planners of the ways that the texts were planned in."""
        found = dict[int, Answer]()
        for way, planner in self._planners.items():
            own = [n for n, each in enumerate(payloads) if self._ways.get(each.context, False) is way]
            if own:
                found.update(zip(own, ask(planner, [payloads[n] for n in own]), strict=True))
        return [found[n] for n in range(len(payloads))]
