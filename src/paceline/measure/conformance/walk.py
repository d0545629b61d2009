"""One case, walked along plain decoding's text: alone, or in the company of others who come and go."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paceline.decode.batch import Batch
from paceline.decode.planner import Fixed
from paceline.decode.session import Session
from paceline.drafters import Drafter
from paceline.law import KeyedDice
from paceline.measure.conformance.cases import Case
from paceline.measure.conformance.follow import FollowingDice, Overrun
from paceline.measure.conformance.record import Recording, logit_scale
from paceline.measure.conformance.report import Result
from paceline.measure.conformance.rescore import Rescorer
from paceline.targets.base import Rows, Target

VISITORS = 6
"""Among so many sequences of a batch one is there to leave in the middle of its text."""
STAY = 12
"""After how many steps a visitor has left."""
LOGPROB_TOLERANCE = 1e-4


@dataclass(eq=False)
class Walk:
    """A session whose dice say what they would have chosen, and choose what plain decoding chose."""

    case: Case
    recording: Recording
    session: Session
    dice: FollowingDice

    @classmethod
    def of(cls, case: Case, recording: Recording, drafter: Drafter, rows: Rows) -> Walk:
        session = session_of(case, recording.target, drafter, rows)
        session.dice = dice = FollowingDice(KeyedDice(session.context.noise), recording.tokens)
        return cls(case, recording, session, dice)

    def result(self, rescorer: Rescorer, error: Exception | None = None, *, left: bool = False) -> Result:
        """What was found. One that ``left`` owes nothing but the tokens it wrote."""
        emitted = len(self.session.context.emitted)
        if error is not None:
            return Result(self.case, emitted, faults=(fault(error),))
        flips = tuple((flip, rescorer.judge(flip, self.recording)) for flip in self.dice.flips)
        return Result(self.case, emitted, flips, () if left else tuple(self._faults()))

    def _faults(self) -> Iterator[str]:
        session, recording = self.session, self.recording
        ours, plains = session.context.finish, recording.finish
        if len(session.emissions) < len(recording.emitted) or ours != plains:
            wrote, plain = len(session.emissions), len(recording.emitted)
            yield f"ended after {wrote} tokens ({ours}), plain after {plain} ({plains})"
        if (gap := _logprob_gap(session, recording)) is not None:
            yield gap


def session_of(case: Case, target: Target, drafter: Drafter, rows: Rows, sample: int = 0) -> Session:
    """A case about to be written, its cache checked after every round."""
    return Session(
        context=case.setting.context(sample),
        target=target,
        rows=rows,
        drafter=drafter,
        planner=Fixed(case.nodes),
        rule=case.rule,
        top_logprobs=0,
        checked=True,
    )


def in_company(walks: Sequence[Walk], size: int, rescorer: Rescorer, seed: int) -> Iterator[tuple[Walk, Result]]:
    """Walk in a batch of ``size``, in a shuffled order: whenever one ends, or leaves as visitors do, another joins."""
    order = random.Random(f"{seed} {size}")
    shuffled = order.sample(walks, len(walks))
    visitors = {walk.session: order.randint(0, STAY) for walk in shuffled[::VISITORS]}
    by_session = {walk.session: walk for walk in walks}
    with Batch(walks[0].session.target, at_once=size) as batch:
        for walk in shuffled:
            batch.join(walk.session)
        while batch:
            for turn in batch.step():
                if turn.ended:
                    walk = by_session[turn.session]
                    visitors.pop(turn.session, None)
                    yield walk, walk.result(rescorer, turn.error)
            for session in [session for session in visitors if session.rounds]:
                visitors[session] -= 1
                if visitors[session] < 0:
                    del visitors[session]
                    batch.leave(session)
                    yield by_session[session], by_session[session].result(rescorer, left=True)


def fault(error: Exception) -> str:
    """An error as a sentence of the report."""
    if isinstance(error, Overrun):
        return str(error)
    what = str(error).splitlines()[0] if str(error) else "no message"
    return f"{type(error).__name__}: {what}"


def logit_type_is_exact(target: Target) -> bool:
    """Whether a token at the border of a warp is on the same side in every forward, near ties apart."""
    return "float16" not in str(getattr(target, "dtype", ""))


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
