"""A drafter at work on one text: its state from `open` to `close`, and how the text goes on if it fails."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from paceline.context import Context
from paceline.drafters.asking import asked, counted, failure
from paceline.drafters.base import Ask, Awaited, Budget, Drafter, InFlight, Overlaps
from paceline.drafters.counters import Counts
from paceline.engine.counters import NO_COUNTS, NO_ROOM, TAKEN
from paceline.errors import DrafterError, DrafterWarning
from paceline.law.scores import Array
from paceline.planning.base import Cut
from paceline.targets.base import NOTHING, OnEarly, Want
from paceline.tree import EMPTY, DraftTree


@dataclass(frozen=True)
class Drafted:
    """The drafter's proposal, and the part of it that is scored."""

    tree: DraftTree
    cut: Cut
    unasked: str = ""
    """Why the drafter was not asked, if it was not."""
    shown: bool = True
    """Whether the drafter is shown the round."""
    overlapped: bool = False
    """Whether the next draft is begun while the target scores this one."""


NO_BUDGET = Budget(0, 0, NO_ROOM, shown=False)
NO_CUT = Cut(EMPTY)
NO_DRAFT = Drafted(EMPTY, NO_CUT)
PLAIN = Drafted(EMPTY, NO_CUT, "the method is plain", shown=False)
FAILED = Drafted(EMPTY, NO_CUT, "the drafter had failed")


@dataclass(eq=False)
class Drafting:
    """One text's use of a drafter. After a failure of the drafter or of its planner there are no more drafts."""

    drafter: Drafter
    strict: bool
    """Whether a failure ends the text. Else the text goes on, after a `DrafterWarning`."""
    state: Any = None
    on: bool = False
    """Whether the drafter's state is open."""
    fault: DrafterError | None = None
    no_counts: Counts = NO_COUNTS
    """The counts of a round in which the drafter counted nothing."""
    flight: InFlight | None = field(default=None, repr=False)
    """The next draft, where it was begun already."""
    _early: DrafterError | None = field(default=None, repr=False)

    def open(self, context: Context) -> None:
        try:
            self.state, self.on = asked(self.drafter, "open", context), True
            for need in (self.drafter.needs, self.drafter.prompt_needs):
                if not isinstance(need, Want):
                    raise failure(self.drafter, f"needs {need!r}, which is no Want")
            self._check_counters()
        except DrafterError as error:
            self.stop(error)

    def _check_counters(self) -> None:
        """Know the drafter's counters. Those of a plug-in are shown beside the engine's own, so their names must
        differ."""
        own = [counter for counter in self.drafter.counters if counter.name not in NO_COUNTS]
        for counter in own:
            if counter.name in TAKEN:
                raise failure(self.drafter, f"has a counter {counter.name!r}, which the engine counts itself")
        if own:
            self.no_counts = NO_COUNTS + Counts.zero(own)

    def close(self) -> None:
        on, self.on = self.on, False
        if on:
            try:
                asked(self.drafter, "close", self.state)
            except DrafterError as error:
                self.stop(error)

    def stop(self, error: DrafterError) -> None:
        """Go on without drafts. All texts that a failed call was made for have the same error, and one warning."""
        self.fault = error
        on, self.on = self.on, False
        if on:
            try:
                self.drafter.close(self.state)
            except Exception as another:
                error.add_note(f"and then, closing the drafter's state: {another}")
        if self.strict:
            raise error
        if not error.reported:
            error.reported = True
            said = f"{error}; the text goes on without drafts: it becomes slower, not different"
            warnings.warn_explicit(said, DrafterWarning, __file__, 0, registry={})  # not once only: for each text

    def overlaps(self, budget: Budget) -> bool:
        """Whether a draft of this budget is made while the target works."""
        kind = self.drafter.overlaps
        return self.on and (kind is Overlaps.ALWAYS or (kind is Overlaps.CHOICE and budget.overlapped))

    def request(self, budget: Budget) -> tuple[str, Ask | Awaited]:
        """The call for the next draft: of one that is in flight its rest, else all of it."""
        flight, self.flight = self.flight, None
        if flight is None or not self.overlaps(budget):
            return "propose", Ask(self.state, budget)
        return "finish", Awaited(self.state, budget, flight)

    def counts(self) -> Counts:
        """The drafter's counts since the last call, with 0 for the rest of its counters."""
        if not self.on:
            return self.no_counts
        try:
            counts = counted(self.drafter, self.state)
        except DrafterError as error:
            self.stop(error)
            return self.no_counts
        return self.no_counts + counts if counts else self.no_counts

    @property
    def observes(self) -> bool:
        """Whether the drafter learns from rounds."""
        return self.on and self.drafter.observes

    @property
    def may_be_sure(self) -> bool:
        """Whether the drafter may be sure of a draft before the planner asks for one."""
        return self.on and self.drafter.may_be_sure

    def sure(self) -> bool:
        """Whether it is."""
        return bool(asked(self.drafter, "sure", self.state))

    @property
    def reads(self) -> bool:
        """Whether it reads the scores before that."""
        return self.drafter.needs.top > 0 or type(self.drafter).read is not Drafter.read

    @property
    def needs(self) -> Want:
        """The drafter's needs of the rows of a draft."""
        return self.drafter.needs if self.on else NOTHING

    @property
    def prompt_needs(self) -> Want:
        """Its needs of the rows of a prompt, hidden states of a draft's rows among them."""
        return self.drafter.prompt_needs | Want(hidden=self.drafter.needs.hidden) if self.on else NOTHING

    def wishes(self, draft: Drafted) -> tuple[Want, OnEarly | None]:
        """What the forward over a draft shall give beside its scores: what the drafter needs of the rows, and the
        callback for early-exit logits. A drafter that overlaps has no use for these where drafts are made in turns."""
        if self.on and self.drafter.overlaps is not Overlaps.NEVER and not draft.overlapped:
            return replace(self.needs, early_exit=None), None
        hears = self.on and self.drafter.hears_early
        return self.needs, partial(self._hear_early, draft.cut.tree) if hears else None

    def _hear_early(self, tree: DraftTree, logits: Array) -> None:
        """The drafter's failure waits for `after_forward`, so that the forward ends for all of its texts."""
        try:
            asked(self.drafter, "on_early", self.state, tree, logits)
        except DrafterError as error:
            self._early = error

    def after_forward(self) -> None:
        """Stop where the drafter failed during the forward."""
        if self._early is not None and self.on:
            self.stop(self._early)
