"""One case, walked along plain decoding's text: alone, or in the company of others who come and go."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.check.cases import Case
from paceline.check.record import Recording, logit_scale
from paceline.check.report import Result
from paceline.check.rescore import Rescorer
from paceline.context import Context
from paceline.drafters import Ask, Drafter, Seen
from paceline.engine.batch import Batch
from paceline.engine.follow import FollowingDice, Overrun
from paceline.engine.loop import Session
from paceline.law import KeyedDice
from paceline.planning.base import Planner
from paceline.targets.base import Rows, Target
from paceline.tree import DraftTree

VISITORS = 6
"""Among so many sequences of a batch one is there to leave in the middle of its text."""
STAY = 12
"""After how many rounds a visitor has left."""
ROOM = 512
"""Rows that are set aside for a text."""
LOGPROB_TOLERANCE = 1e-4


@dataclass(eq=False)
class Walk:
    """A session whose dice say what they would have chosen, and choose what plain decoding chose."""

    case: Case
    recording: Recording
    session: Session
    dice: FollowingDice

    @classmethod
    def of(cls, case: Case, recording: Recording, drafter: Drafter, planner: Planner, rows: Rows) -> Walk:
        session = session_of(case, recording.target, drafter, planner, rows)
        session.dice = dice = FollowingDice(KeyedDice(session.context.noise), recording.tokens)
        return cls(case, recording, session, dice)

    def result(
        self, rescorer: Rescorer, handed: Sequence[int], error: Exception | None = None, *, left: bool = False
    ) -> Result:
        """What was found. The tokens that were ``handed`` out must be those of the text. One that ``left`` owes nothing
        but what it wrote."""
        emitted = self.session.context.emitted.tolist()
        if error is not None:
            return Result(self.case, len(emitted), faults=(fault(error),))
        flips = tuple((flip, rescorer.judge(flip, self.recording)) for flip in self.dice.flips)
        faults = [] if left else list(self._faults())
        if list(handed) != emitted:
            faults.append(f"handed out {len(handed)} tokens that are not the {len(emitted)} of the text")
        return Result(self.case, len(emitted), flips, tuple(faults))

    def _faults(self) -> Iterator[str]:
        session, recording = self.session, self.recording
        ours, plains = session.context.finish, recording.finish
        if len(session.emissions) < len(recording.emitted) or ours != plains:
            wrote, plain = len(session.emissions), len(recording.emitted)
            yield f"ended after {wrote} tokens ({ours}), plain after {plain} ({plains})"
        if (gap := _logprob_gap(session, recording)) is not None:
            yield gap


def session_of(case: Case, target: Target, drafter: Drafter, planner: Planner, rows: Rows, sample: int = 0) -> Session:
    """A case about to be written, its cache checked after every round."""
    return Session(
        context=case.setting.context(sample),
        target=target,
        rows=rows,
        drafter=drafter,
        planner=planner,
        rule=case.rule,
        top_logprobs=0,
        checked=True,
    )


@dataclass(eq=False)
class Entry:
    """A case that is to be walked, by whose drafts, and who sizes them."""

    case: Case
    recording: Recording
    drafter: Drafter
    planner: Planner


class Counted(Drafter):
    """Passes everything on, and counts who comes and who goes."""

    def __init__(self, inner: Drafter) -> None:
        self._inner = inner
        self.needs, self.nodes, self.planner = inner.needs, inner.nodes, inner.planner
        self.open_states = 0

    def open(self, context: Context) -> Any:
        state = self._inner.open(context)
        self.open_states += 1
        return state

    def propose(self, asks: Sequence[Ask]) -> list[DraftTree]:
        return self._inner.propose(asks)

    def observe(self, seen: Sequence[Seen]) -> None:
        self._inner.observe(seen)

    def close(self, state: Any) -> None:
        self._inner.close(state)
        self.open_states -= 1


def in_company(
    entries: Sequence[Entry], size: int, target: Target, rescorer: Rescorer, seed: int
) -> Iterator[tuple[Entry, Result]]:
    """Walk in a batch of ``size``, in a shuffled order: whenever one ends, or leaves as visitors do, another joins."""
    order = random.Random(f"{seed} {size}")
    waiting = deque(order.sample(entries, len(entries)))
    visitors = {entry: order.randint(0, STAY) for entry in list(waiting)[::VISITORS]}
    walking: dict[Session, tuple[Entry, Walk, list[int]]] = {}
    with Batch(target, at_once=size) as batch:
        while waiting or walking:
            for _ in range(min(len(waiting), size - batch.seated)):
                entry = waiting.popleft()
                walk = Walk.of(entry.case, entry.recording, entry.drafter, entry.planner, target.open(ROOM))
                walking[walk.session] = entry, walk, []
                batch.join(walk.session)
            for turn in batch.step():
                entry, walk, handed = walking[turn.session]
                handed += [emission.token for emission in turn.emissions]
                if not turn.ended:
                    if entry not in visitors or len(turn.session.rounds) <= visitors[entry]:
                        continue
                    batch.leave(turn.session)
                del walking[turn.session]
                yield entry, walk.result(rescorer, handed, turn.error, left=not turn.ended)
                turn.session.rows.close()


def fault(error: Exception) -> str:
    """An error as a sentence of the report."""
    if isinstance(error, Overrun):
        return str(error)
    what = str(error).splitlines()[0] if str(error) else "no message"
    return f"{type(error).__name__}: {what}"


def logit_type_is_exact(target: Target) -> bool:
    """Whether a token at the border of a warp is on the same side in every forward, near ties apart."""
    return target.dtype.itemsize > 2


def _logprob_gap(session: Session, recording: Recording) -> str | None:
    """Log-probabilities belong to the text, too: they must be plain's, up to the type's own rounding."""
    if not logit_type_is_exact(session.target):
        return None
    ours = [e.logprobs.logprob for e in session.emissions if e.logprobs is not None]
    gaps = [abs(a - b) for a, b in zip(ours, recording.logprobs, strict=False)]
    worst = max(gaps, default=0.0)
    if worst <= LOGPROB_TOLERANCE * logit_scale(recording):
        return None
    return f"log-probabilities are off by {worst:.2g} at emitted token {gaps.index(worst)}"
