"""The calls of a round: one type, made by the loop and answered by a driver.

A call names a method, `verb`, of the object that answers it, `of`. Such a method takes a list of payloads, one per
sequence, and returns a list of answers, so a driver answers calls with the same verb and the same `of` together:

=========  ==========  ==================  ====================  =================================================
verb       of          payload             answer                asks
=========  ==========  ==================  ====================  =================================================
wake       planner     `Resting`           bool                  is a text that rests without drafts to be planned now?
plan       planner     `Room`              `Budget`              how large may the next draft be?
propose    drafter     `Ask`               `DraftTree`           a draft within this budget
finish     drafter     `Awaited`           `DraftTree`           the same, of a draft that is in flight
worth      planner     `Draft`             int                   how many levels of the drafter's expensive part pay?
enrich     drafter     `Enrich`            `DraftTree`           the draft together with that of the expensive part
cut        planner     `Draft`             `Cut`                 which nodes of the draft are worth scoring?
score      target      `Request`           `Scores`              one forward over the root and the draft
law        `Reader`    `ScoredRow`         `Distribution`        the law of the next token after one scored row
begin      drafter     a state             `InFlight`            begin the next draft beside what the engine does now
read       drafter     `Seen`              None                  read from the scores what `observe` needs
observe    drafter     `Seen`              None                  learn from the round
review     planner     `Outcome`           None                  learn from the round
show       `Audience`  `Showing`           None                  let the observer of the text look at the round
=========  ==========  ==================  ====================  =================================================

The driver sends back a `Reply`: the answer, and the seconds that it and the loop took. The loop reads no clock.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

import numpy as np

from paceline.context import Context
from paceline.drafters.asking import answered, asked
from paceline.drafters.base import Budget, InFlight, Seen
from paceline.errors import DefectError, DrafterError
from paceline.law import Distribution, Law, Noise, Place, laws
from paceline.law.scores import far
from paceline.once import spent
from paceline.planning.base import Cut
from paceline.targets.scores import Scores, read_choices
from paceline.tree import ROOT, DraftTree, Ints

BEFORE = ("wake", "plan", "propose", "finish", "worth", "enrich", "cut", "score")
"""The calls of a round up to its forward, in their order; each is made once at most."""
AFTER = ("law", "begin", "read", "observe", "review", "show")
"""The calls after the forward: a law per token, the next draft begun, what is learnt, and the text's observer. A round
is over, and its tokens can be handed out, once no such call is left."""

BESIDE = frozenset({"propose", "finish", "begin", "enrich", "read", "observe"})
"""The work of drafters between two forwards."""
UNANSWERED = frozenset({"read", "observe", "review"})
DRAFTING: dict[str, type] = {
    "wake": bool,
    "plan": Budget,
    "propose": DraftTree,
    "finish": DraftTree,
    "begin": InFlight,
    "worth": int,
    "enrich": DraftTree,
    "cut": Cut,
}
"""The calls that only drafts need, and the types of their answers: where one fails, a text goes on without drafts."""


class Call(NamedTuple):
    """One question of one sequence."""

    verb: str
    of: Any
    payload: Any


class Reply(NamedTuple):
    """An answer, and how long it took to come."""

    answer: Any
    seconds: float
    """From the call to the answer, without work that is done once. Of sequences that are written together, each waits
    for all."""
    own: float
    """How long the sequence itself had worked before it made the call."""


Flow = Generator[Call, Reply, None]


def answers(calls: Sequence[Call]) -> list[Any]:
    """The answers to calls with one verb and one addressee. A drafter or a planner that failed is the answer to all."""
    verb, of, _ = calls[0]
    payloads = [call.payload for call in calls]
    if verb in BESIDE and not (verb in UNANSWERED and _are_prompts(payloads)):
        with of.surroundings():
            return _answers(verb, of, payloads)
    return _answers(verb, of, payloads)


def _are_prompts(seen: Sequence[Seen]) -> bool:
    """Whether the rows that were seen are a prompt's: there may be many, and reading them is no light work."""
    return not all(each.verdict.tokens for each in seen)


def _answers(verb: str, of: Any, payloads: Sequence[Any]) -> list[Any]:
    try:
        if kind := DRAFTING.get(verb):
            return answered(of, verb, payloads, kind)
        if verb in UNANSWERED:
            asked(of, verb, payloads)
            return [None] * len(payloads)
    except DrafterError as error:
        return [error] * len(payloads)
    found = getattr(of, verb)(payloads)
    if len(found) != len(payloads):
        name = getattr(of, "name", "") or type(of).__name__
        raise DefectError(f"model {name!r} was asked to {verb} {len(payloads)} texts and answered for {len(found)}")
    return list(found)


class Timed:
    """A sequence's flow, with the clock that its loop does not read."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self._asked, self._spent = time.perf_counter(), spent()
        self._own = 0.0
        self._begun = False

    def send(self, answer: Any) -> Call:
        """Answer the last call; the next one. Raises StopIteration where the sequence has ended."""
        now = time.perf_counter()
        if self._begun:
            took = now - self._asked - (spent() - self._spent)
            call = self.flow.send(Reply(answer, max(0.0, took), self._own))
        else:
            self._begun, call = True, next(self.flow)
        self._asked, self._spent = time.perf_counter(), spent()
        self._own = self._asked - now
        return call

    def pause(self, seconds: float) -> None:
        """Do not count this time, which the driver's caller took between two calls."""
        self._asked += seconds


class ScoredRow(NamedTuple):
    """A scored row, the one of the root or of a node of the draft, and the text that goes on after it."""

    scores: Scores
    node: int
    law: Law
    context: Context
    noise: Noise | None
    """The public noise, where it alone decides which token is chosen."""


class Reader:
    """Turns scored rows into laws, those of several sequences together. On a device that works ahead of the host this
    is where the host waits, so it is a separate call, with its own seconds. There the laws of a whole draft are read
    with that of its root: a wait for every node of its path would cost more than the races of the others."""

    def law(self, rows: Sequence[ScoredRow]) -> list[Distribution | Exception]:
        """The law of the next token after each row, or what went wrong with it."""
        unread = [row for row in rows if not row.law.argmax_only and row.node not in row.scores.laws]
        places = [(row, node, place) for row in unread for node, place in _places(row)]
        for (row, node, _), law in zip(places, laws([place for *_, place in places]), strict=True):
            row.scores.laws[node] = law
        if best := [row.scores for row in rows if row.law.argmax_only]:
            read_choices(best)
        return [_best(row) if row.law.argmax_only else row.scores.laws.pop(row.node) for row in rows]


def _places(row: ScoredRow) -> list[tuple[int, Place]]:
    """The place of a row, and of the nodes whose laws are read with it."""
    scores, law = row.scores, row.law
    first = Place(law, scores.row(row.node), row.context.tokens, row.noise)
    alone = row.noise is None or not law.reads_ahead
    if alone or row.node != ROOT or not far(first.row):
        return [(row.node, first)]
    more = [
        (node, first._replace(row=scores.row(node), tokens=_text(row, node))) for node in range(len(scores.tokens) - 1)
    ]
    return [(row.node, first), *more]


def _text(row: ScoredRow, node: int) -> Ints:
    """The text up to a node; zeros of the same number for a law that needs only the length."""
    path, number = list[int](), node - ROOT
    while number > 0:
        path.append(number)
        number = int(row.scores.parents[number])
    if not row.law.adjusts:
        return np.broadcast_to(np.int64(0), (len(row.context) + len(path),))
    return np.concatenate([row.context.tokens, row.scores.tokens[path[::-1]]])


READER = Reader()


def _best(row: ScoredRow) -> Distribution | Exception:
    """A law that is all on the best token, made without its logits."""
    try:
        row.law.check_peak(row.scores.peak(row.node))
    except ValueError as error:
        return error
    return Distribution.one_hot(row.scores.choice(row.node))
