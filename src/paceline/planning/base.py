"""Whether to draft, and how much.

A planner is asked twice in a round. Before anything is drafted it says how much may be, since a draft may cost more
than it saves; once there is a draft it says which part of it is worth scoring. Afterwards it is told what came of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from paceline.context import Context
from paceline.drafters.base import Budget
from paceline.tree import DraftTree


class Room(NamedTuple):
    """A sequence about to draft, and how deep a draft of it may go."""

    context: Context
    depth: int


class Draft(NamedTuple):
    """A draft that is there, and the sequence that it is for."""

    context: Context
    tree: DraftTree


@dataclass(frozen=True, slots=True)
class Why:
    """What a planner expected of the part that it chose, and of sending nothing."""

    tokens: float
    """How many the round would emit."""
    seconds: float
    """How long it would take, the drafting apart."""
    seconds_plain: float
    """The same of a round without a draft."""
    rate: float
    """Tokens per second that the time was valued at."""
    chance: float = 0.0
    """Of the likeliest node to come true."""
    price: float = 0.0
    """What the first row of a draft costs, in tokens: a first node less likely than this is not worth it."""


class Cut(NamedTuple):
    """The part of a draft to be scored: connected, perhaps all of it or nothing."""

    tree: DraftTree
    why: Why | None = None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one sequence's round. Those of one forward are told together; their seconds are the same ones."""

    context: Context
    proposed: DraftTree
    sent: DraftTree
    tokens: tuple[int, ...]
    """What was emitted: the last of the text."""
    seconds_draft: float
    seconds: float
    """All of the round but the drafting."""


class Planner:
    """Sizes drafts. Under the rejection rule not by live timings, which the text would then depend on.

    The base class lets every draft through whole, so that a planner which only sizes drafts overrides `plan` alone.
    """

    def plan(self, rooms: Sequence[Room]) -> list[Budget]:
        """How much the next draft of each sequence may hold. They will be scored together."""
        raise TypeError(f"planner {type(self).__name__} does not override plan")

    def cut(self, drafts: Sequence[Draft]) -> list[Cut]:
        """The part of each draft that is worth scoring. They will be scored together, beside sequences without one."""
        return [Cut(draft.tree) for draft in drafts]

    def review(self, outcomes: Sequence[Outcome]) -> None:
        """Learn from a round of sequences that were scored together."""
