"""The batch driver: many sequences written together, which may join and leave at any time.

A step goes through the calls of a round in their order. Calls of several sequences to the same planner, drafter or
target are answered together, so a step has one forward of the target: of sequences that draft, of those that do not,
and of those that still read their prompt. Each emits the tokens it would emit alone.

Sequences wait until there is a seat. If another one is reading the beginning of the same prompt, they also wait until
it has done so: KV rows of a common beginning are copied, not computed again. A step may leave sequences out; they keep
their rows and give their seats up.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, Self

from paceline.engine.calls import BEFORE, Call, Flow, Timed, answers
from paceline.engine.emission import Emission
from paceline.engine.loop import Session
from paceline.errors import InputError, lacks_memory, out_of_memory
from paceline.targets.base import Target
from paceline.targets.lending import Lender, best_lender, worth_waiting

AT_ONCE = 16
AFTER_TOGETHER = (("law",), ("begin",), ("read", "observe"), ("review",), ("show",))
"""The calls after the forward, in groups that wait for one another: walks are of different lengths, and what is learnt
from a forward is learnt from all of its sequences at once."""
PROMPT_ROWS = 512
"""Rows of prompts that a forward takes at most besides those of drafts, so that reading does not hold up writing."""
SHORT_PROMPT_ROWS = 128
"""Rows of short prompts that a forward takes beyond these, so that a long prompt does not hold up the short ones behind
it."""


class Turn(NamedTuple):
    """One sequence's part of a step. With ``ended`` it has left: finished, or failed with ``error``."""

    session: Session
    emissions: list[Emission]
    ended: bool
    error: Exception | None


@dataclass(eq=False)
class Seat:
    """One sequence being written, and the call it waits with; none once it has ended."""

    session: Session
    timed: Timed
    call: Call | None = None
    given: int = 0
    """How many of its tokens were handed out, those of an earlier stay included."""
    error: Exception | None = None
    _stepped: float = field(default_factory=time.perf_counter)
    """When its last step was over."""

    def go_on(self) -> None:
        """Take part in a step. The time since the last one is the caller's."""
        self.timed.pause(time.perf_counter() - self._stepped)

    def send(self, answer: Any) -> None:
        """Go on to the next call. An error inside ends this sequence alone."""
        try:
            self.call = self.timed.send(answer)
        except StopIteration:
            self.call = None
        except Exception as error:
            self.call, self.error = None, error

    def begin(self, lender: Lender) -> None:
        """Come to the first call, with a copy of the KV rows that another sequence holds of the prompt already."""
        try:
            lender.lend_to(self.session.rows)
        except Exception as error:
            self.fail(out_of_memory(error) if lacks_memory(error) else error)
        else:
            self.send(None)

    def fail(self, error: Exception) -> None:
        """End because a call could not be answered."""
        self.call, self.error = None, error
        try:
            self.timed.flow.close()
        except Exception as another:
            error.add_note(f"and then, closing the sequence: {another}")

    def turn(self) -> Turn:
        """The emissions since the last turn."""
        new = self.session.emissions[self.given :]
        self.given += len(new)
        self._stepped = time.perf_counter()
        return Turn(self.session, new, self.call is None, self.error)

    @property
    def reading(self) -> bool:
        """Whether the prompt is still being read."""
        return self.call is not None and self.call.verb == "score" and self.call.payload.prefill


class Batch:
    """Sequences of one target. Not for several threads: its owner steps it.

    An error ends the sequences it concerns: one, if its own processors or criteria fail; all that were answered
    together, if a drafter or the target fails. The others go on.
    """

    def __init__(self, target: Target, *, at_once: int | None = AT_ONCE, prompt_rows: int = PROMPT_ROWS) -> None:
        if at_once is not None and at_once < 1:
            raise InputError(f"a batch writes at least 1 sequence at once, not {at_once}")
        self._target = target
        self._at_once = at_once
        self._prompt_rows = prompt_rows
        self._short_rows = min(SHORT_PROMPT_ROWS, prompt_rows // 4)
        self._waiting: list[Session] = []
        self._seats: list[Seat] = []
        self._aside: list[Seat] = []
        """Begun, but without a seat: left out of the last step, or waiting to go on."""
        self._stepping = False

    def __len__(self) -> int:
        """How many sequences are being written or wait for a seat."""
        return len(self._seats) + len(self._aside) + len(self._waiting)

    @property
    def sessions(self) -> list[Session]:
        """Those being written, then those that wait."""
        return [seat.session for seat in self._begun] + self._waiting

    @property
    def seated(self) -> int:
        """How many the last step wrote."""
        return len(self._seats)

    @property
    def _begun(self) -> list[Seat]:
        return self._seats + self._aside

    def join(self, session: Session) -> None:
        """Write this sequence, too, from the next step on or as soon as there is a seat."""
        if session.target is not self._target:
            raise InputError(f"a batch writes with one model, {self._target.name}; open another for other models")
        if session in self.sessions:
            raise InputError("this sequence is in the batch already; make a new one to write the prompt again")
        self._waiting.append(session)

    def leave(self, session: Session) -> None:
        """Stop writing a sequence. Its rows hold what was written so far, and nothing of it is left in the batch."""
        if session in self._waiting:
            self._waiting.remove(session)
            return
        for seat in self._begun:
            if seat.session is session:
                if inspect.getgeneratorstate(seat.timed.flow) == inspect.GEN_RUNNING:
                    raise InputError(
                        "a sequence cannot leave from inside its own callback; let its criterion return True"
                    )
                (self._seats if seat in self._seats else self._aside).remove(seat)
                seat.timed.flow.close()
                return

    def step(self, without: Container[Session] = ()) -> list[Turn]:
        """One round of every sequence, or one piece of its prompt; those in ``without`` are left out. Returns those
        with new tokens or an end."""
        self.refuse_inside()
        self._stepping = True
        try:
            self._seat_begun(without)
            self._admit(without)
            for verb in BEFORE:
                self._answer_all(verb)
            for verbs in AFTER_TOGETHER:
                while any(seat.call is not None and seat.call.verb in verbs for seat in self._seats):
                    for verb in verbs:
                        self._answer_all(verb)
        except BaseException as error:
            for another in self._closed():
                error.add_note(f"and then, closing the batch: {another}")
            raise
        finally:
            self._stepping = False
        turns = [seat.turn() for seat in self._seats]
        self._seats = [seat for seat in self._seats if seat.call is not None]
        return [turn for turn in turns if turn.emissions or turn.ended]

    def close(self) -> None:
        """Stop writing all of them."""
        self.refuse_inside()
        if errors := self._closed():
            raise errors[0]

    def refuse_inside(self) -> None:
        """Raise where a criterion, a processor or a drafter reaches for the batch that it is part of."""
        if self._stepping:
            raise InputError("a batch is stepped and closed by its owner, not from inside one of its sequences")

    def _closed(self) -> list[Exception]:
        """Close all sequences; the errors of those that failed to close."""
        seats, self._seats, self._aside, self._waiting = self._begun, [], [], []
        return [error for seat in seats if (error := _closed(seat.timed.flow)) is not None]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    # answering

    def _answer_all(self, verb: str) -> None:
        """Answer the calls of a kind that are due. The time of an observer is no sequence's."""
        groups, began = self._groups(verb), time.perf_counter()
        for group in groups:
            self._answer(group, verb)
        if verb == "show" and groups:
            spent, shown = time.perf_counter() - began, {id(seat) for group in groups for seat in group}
            for seat in self._seats:
                if id(seat) not in shown:
                    seat.timed.pause(spent)

    def _groups(self, verb: str) -> list[list[Seat]]:
        """The seats whose calls can be answered together."""
        due = [seat for seat in self._seats if seat.call is not None and seat.call.verb == verb]
        groups: dict[int, list[Seat]] = {}
        for seat in self._within_reach(due) if verb == "score" else due:
            assert seat.call is not None, "only seats with a call are due"
            groups.setdefault(id(seat.call.of), []).append(seat)
        return list(groups.values())

    def _within_reach(self, seats: Sequence[Seat]) -> list[Seat]:
        """All drafts, and as many pieces of prompts as a forward takes. The first prompt is always served, so none
        waits for ever; short ones behind a long one are served beside it."""
        taken, rows, short = [], 0, 0
        for seat in seats:
            assert seat.call is not None, "only seats with a call are due"
            request = seat.call.payload
            count = len(request.tokens) * request.prefill
            if count and rows and rows + count > self._prompt_rows:
                if short + count > self._short_rows:
                    continue
                short += count
            else:
                rows += count
            taken.append(seat)
        return taken

    def _answer(self, group: Sequence[Seat], verb: str) -> None:
        """Answer calls together. Where memory is too little for all rows, each text is scored alone, so that only those
        end whose own rows cannot grow."""
        try:
            found = answers([seat.call for seat in group if seat.call is not None])
        except Exception as error:
            short = verb == "score" and lacks_memory(error)
            if short and len(group) > 1:  # rows grow in a forward; nothing of one that failed is left in them
                for seat in group:
                    self._answer([seat], verb)
                return
            for seat in group:
                seat.fail(out_of_memory(error) if short else error)
            return
        for seat, answer in zip(group, found, strict=True):
            seat.send(answer)

    # seats

    def _seat_begun(self, without: Container[Session]) -> None:
        """Seat those that were begun and go on, first come, first served; the others stay aside."""
        able = [seat for seat in self._begun if seat.session not in without]
        others = [seat for seat in self._begun if seat.session in without]
        most = len(able) if self._at_once is None else self._at_once
        self._seats, self._aside = able[:most], able[most:] + others
        for seat in self._seats:
            seat.go_on()

    def _admit(self, without: Container[Session]) -> None:
        """Seat those that wait, first come, first served, but for those that spare more by waiting."""
        changes = self._target.look() if self._waiting else 0
        alike = [seat for seat in self._begun if seat.session.rows.changes == changes]
        for session in [one for one in self._waiting if one not in without]:
            if self._at_once is not None and len(self._seats) >= self._at_once:
                return
            if session.rows.changes != changes:  # the model has changed since they were taken
                session.rows.rewind(0)
                session.rows.changes = changes
            lender = best_lender(session.reusable, [session.rows, *(seat.session.rows for seat in alike)])
            being_read = (seat.session.context.tokens[:-1] for seat in alike if seat.reading and seat in self._seats)
            if worth_waiting(session.reusable, lender.common, being_read, self._target.lends):
                continue
            self._waiting.remove(session)
            seat = Seat(session, Timed(session.flow()), given=len(session.emissions))
            self._seats.append(seat)
            alike.append(seat)
            seat.begin(lender)


def _closed(flow: Flow) -> Exception | None:
    """Close a sequence; the error if that failed."""
    try:
        flow.close()
    except Exception as error:
        return error
    return None
