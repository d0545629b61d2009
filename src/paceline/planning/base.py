"""The base class of planners, which decide whether to draft, and how much.

Before the forward of a round a planner is called twice. `plan` comes before anything is drafted, since a draft may cost
more than it saves; `cut` chooses the nodes of the draft that are worth scoring. Between the two, `worth` decides
how deep the expensive part of a drafter goes. `review` learns from the round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from paceline.context import Context
from paceline.drafters.base import Budget
from paceline.tree import DraftTree, Floats

LISTENING = 4
"""Every so many rounds the drafter of a resting text is asked whether it is sure: following a text costs it time, and
what it is sure of is long. Texts that rest together count down together, so they are asked in the same round."""


class Room(NamedTuple):
    """A sequence about to draft, and how deep its draft may go."""

    context: Context
    depth: int


class Resting(NamedTuple):
    """A sequence in a round without a draft for which the planner is not asked, and whether its drafter is sure of the
    next draft."""

    context: Context
    sure: bool


class Draft(NamedTuple):
    """A draft, the sequence that it is for, and the budget that it was made under, which it may exceed in nodes."""

    context: Context
    tree: DraftTree
    budget: Budget
    cheap: DraftTree | None = None
    """The draft without the expensive part of the drafter; None where the drafter has no such part."""
    levels: int = 0
    """How many levels the expensive part was asked for; 0 where it did not run."""

    def within(self, paths: Floats | None = None) -> DraftTree:
        """The best nodes of the draft that the budget has room for, by ``paths`` or by their own scores. Of a draft
        with sampled nodes the first ones, so that no value decides."""
        if self.tree.drawn:
            return self.tree.head(self.budget.nodes)
        return self.tree.top(self.budget.nodes, paths)


@dataclass(slots=True)
class Why:
    """A planner's expectations of the part that it chose, and of sending nothing."""

    tokens: float
    """How many the round would emit."""
    seconds: float
    """How long it would take, the drafting apart."""
    seconds_plain: float
    """How long a round without a draft would take."""
    rate: float
    """Tokens per second that the time was valued at."""
    chance: float = 0.0
    """The likeliest node's chance to come true."""
    price: float = 0.0
    """The cost of a draft's first row, in tokens: a first node less likely than this is not worth it."""


class Cut(NamedTuple):
    """The part of a draft to be scored: connected, perhaps all of it or nothing."""

    tree: DraftTree
    why: Why | None = None


class Outcome(NamedTuple):
    """The outcome of one sequence's round. Sequences of one forward are reviewed together and share its seconds."""

    context: Context
    proposed: DraftTree
    sent: DraftTree
    tokens: tuple[int, ...]
    """The emitted tokens, the last of the text."""
    seconds_draft: float
    seconds: float
    """All of the round but the drafting; 0 if it was not timed."""
    seconds_top: float = 0.0
    """The part of `seconds` spent on reading the most probable tokens for the drafter."""
    shown: bool = True
    """Whether the drafter was shown the round."""


class Planner:
    """Sizes drafts. Under the rejection rule not by live timings, which the text would then depend on.

    The base class scores as much of a draft as the budget has room for, so a planner that only sizes drafts overrides
    `plan` alone.
    """

    def awake(self, context: Context) -> bool:
        """Whether a draft may soon be made for this text, which begins: else a drafter that skips rounds is not shown
        the end of the prompt. Changes nothing."""
        return True

    def wake(self, resting: Sequence[Resting]) -> list[bool]:
        """Whether these sequences, whose last budgets were for several rounds, are planned in this one already."""
        return [False] * len(resting)

    def plan(self, rooms: Sequence[Room]) -> list[Budget]:
        """How much the next draft of each sequence may hold. They will be scored together."""
        raise TypeError(f"planner {type(self).__name__} does not override plan")

    def worth(self, drafts: Sequence[Draft]) -> list[int]:
        """How many levels of the drafter's expensive part are worth their time, with this draft at hand; 0 for none.
        Changes nothing."""
        return [draft.budget.depth for draft in drafts]

    def cut(self, drafts: Sequence[Draft]) -> list[Cut]:
        """The part of each draft that is worth scoring, within its budget. They will be scored together, beside
        sequences without a draft."""
        return [Cut(draft.within()) for draft in drafts]

    def review(self, outcomes: Sequence[Outcome]) -> None:
        """Learn from a round of sequences that were scored together."""
