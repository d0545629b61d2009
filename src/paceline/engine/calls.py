"""What a sequence asks while it is written, and the plain answers to it.

Whoever is asked can be asked by several sequences at once: a planner for many sizes, a drafter for many drafts, a model
for the rows of all. So a question names whom it is for, and `answered` takes any number of one kind for one addressee.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from paceline.drafters.base import Ask, Budget, Drafter, Seen
from paceline.planning.base import Cut, Draft, Outcome, Planner, Room
from paceline.targets.base import Request, Scores, Target
from paceline.tree import DraftTree


@dataclass(frozen=True)
class Plan:
    """To a planner: how much may the next draft of this sequence hold?"""

    planner: Planner
    room: Room


@dataclass(frozen=True)
class Propose:
    """To a drafter: a tree for this state within this budget."""

    drafter: Drafter
    state: Any
    budget: Budget


@dataclass(frozen=True)
class Trim:
    """To a planner: which part of this draft is worth scoring?"""

    planner: Planner
    draft: Draft


@dataclass(frozen=True)
class Score:
    """To the target: what follows each of these rows?"""

    request: Request


@dataclass(frozen=True)
class Learn:
    """To a drafter: what became of its draft. There is nothing to answer."""

    drafter: Drafter
    seen: Seen


@dataclass(frozen=True)
class Review:
    """To a planner: what became of its plan. There is nothing to answer."""

    planner: Planner
    outcome: Outcome


Question = Plan | Propose | Trim | Score | Learn | Review
Answer = Budget | DraftTree | Cut | Scores | None

KINDS: tuple[type[Question], ...] = (Plan, Propose, Trim, Score, Learn, Review)
"""In the order in which a round asks them."""


def addressee(question: Question, target: Target) -> Planner | Drafter | Target:
    """Whom a question is for. Questions of one kind with one addressee can be answered together."""
    match question:
        case Plan(planner=planner) | Trim(planner=planner) | Review(planner=planner):
            return planner
        case Propose(drafter=drafter) | Learn(drafter=drafter):
            return drafter
        case Score():
            return target


def answered(questions: Sequence[Question], target: Target) -> list[Answer]:
    """The answers to questions of one kind with one addressee, in one call to it."""
    match questions[0]:
        case Plan(planner=planner):
            budgets = planner.plan([plan.room for plan in cast("Sequence[Plan]", questions)])
            return _one_each(budgets, questions, f"planner {type(planner).__name__}")
        case Propose(drafter=drafter):
            asks = [Ask(ask.state, ask.budget) for ask in cast("Sequence[Propose]", questions)]
            return _one_each(drafter.propose(asks), questions, f"drafter {drafter.name or type(drafter).__name__!r}")
        case Trim(planner=planner):
            cuts = planner.cut([trim.draft for trim in cast("Sequence[Trim]", questions)])
            return _one_each(cuts, questions, f"planner {type(planner).__name__}")
        case Review(planner=planner):
            planner.review([review.outcome for review in cast("Sequence[Review]", questions)])
            return [None] * len(questions)
        case Learn(drafter=drafter):
            drafter.observe([learn.seen for learn in cast("Sequence[Learn]", questions)])
            return [None] * len(questions)
        case Score():
            requests = [score.request for score in cast("Sequence[Score]", questions)]
            return _one_each(target.submit(requests).result(), questions, f"model {target.name}")


def _one_each(answers: Sequence[Answer], questions: Sequence[Question], who: str) -> list[Answer]:
    if len(answers) != len(questions):
        raise ValueError(f"{who} was asked for {len(questions)} sequences and answered for {len(answers)}")
    return list(answers)
