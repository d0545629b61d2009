"""The planner of drafters that can draft while their target works: overlapped or in turns, by measured seconds.

Each way has a planner of its own, which learns from the rounds of that way alone. Drafts are made in turns unless
overlapped ones were measured to be faster: on cores that share a memory they are not, for the target has a core less.

They are compared in a trial (`paceline.drafters.trials`) of rounds in the same texts. Its cost is bounded, and its
result is kept for this machine, target, draft model and batch size. In between nothing is prepared for the way that
lost: where turns are known to win, no process of the draft model is begun.

Under the rejection rule, where a text depends on its drafts, drafts are made in turns, whatever was measured.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import RLock
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from paceline.context import Context
from paceline.drafters.base import Budget, Drafter
from paceline.drafters.trials import KeptChoice, SpeedTrial
from paceline.errors import DrafterWarning, InputError
from paceline.once import once
from paceline.planning.base import Cut, Draft, Outcome, Planner, Resting, Room
from paceline.planning.knowledge import UNTIMED
from paceline.targets.base import Target
from paceline.targets.setup import kernels, setup_of

WAYS = (False, True)
"""Of drafts in a trial: in turns, and overlapped."""

Payload = TypeVar("Payload")
Answer = TypeVar("Answer")


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
        self._choices: dict[int, KeptChoice] = {}
        self._choice(1)

    # the choice

    def _choice(self, batch: int) -> KeptChoice:
        """The choice at this batch size, in classes of up to 1, 3, 7 texts and so on. Where overlapped drafts lost for
        few texts they do for many, whose drafts take longer and leave the target no more time."""
        size = batch.bit_length()
        if size not in self._choices:
            fewer = [choice for smaller, choice in self._choices.items() if smaller < size]
            lost = any(choice.lost for choice in fewer)
            self._choices[size] = KeptChoice(self._key(size), len(WAYS)) if lost else self._begun(size)
        return self._choices[size]

    def _begun(self, size: int) -> KeptChoice:
        """As is known; with a trial where that is due."""
        choice = KeptChoice.known(self._key(size), len(WAYS))
        due = choice.due
        if choice.lost and not due:
            return choice
        try:
            with once():  # no round's seconds
                self._prepare()
        except InputError as error:
            said = f"drafts are made in turns with the target, since overlapped ones cannot be: {error}"
            warnings.warn(said, DrafterWarning, stacklevel=2)
            return KeptChoice(self._key(size), len(WAYS))
        if due:
            choice.count()  # also if the program ends before it: it had to prepare
            choice.trial = SpeedTrial(len(WAYS))
        return choice

    def _key(self, size: int) -> str:
        return f"{self._setup} {size}"

    def _note(self, outcomes: Sequence[Outcome], overlapped: bool) -> None:
        """Compare a round. A trial that is over is kept; where no batch size overlaps, nothing is kept ready for it."""
        choice = self._choices.get(len(outcomes).bit_length())
        seconds = max(each.seconds + each.seconds_draft for each in outcomes)
        if choice is None or seconds <= 0:
            return
        if choice.note(overlapped, sum(len(each.tokens) for each in outcomes) / len(outcomes), seconds):
            choice.count(0)
            if all(each.lost for each in self._choices.values()):
                self._end()

    # planning

    def plan(self, rooms: Sequence[Room]) -> list[Budget]:
        with self._lock:
            overlapped = all(room.context.foreseeable for room in rooms) and WAYS[self._choice(len(rooms)).way]
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
