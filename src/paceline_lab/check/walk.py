"""Cases that follow plain decoding's text: one after the other, or in a batch that others join and leave."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.drafters import Drafter
from paceline.engine.batch import Batch
from paceline.engine.follow import FollowingDice, Overrun
from paceline.engine.loop import Session
from paceline.engine.observe import Observer
from paceline.errors import DefectError
from paceline.law import KeyedDice
from paceline.planning.base import Planner
from paceline.targets.base import Rows, Target
from paceline_lab.check.cases import Case
from paceline_lab.check.record import Recording
from paceline_lab.check.report import CaseResult
from paceline_lab.check.rescore import Rescorer

VISITORS = 6
"""In a batch, one in this many sequences leaves in the middle of its text."""
STAY = 12
"""Rounds after which such a visitor has left, at the latest."""
RESERVED_ROWS = 512
"""Rows that are set aside for a text."""
LOGPROB_TOLERANCE = 1e-4


@dataclass(eq=False)
class FollowedCase:
    """A case to be written with these drafts. Its dice note what they would choose, and choose what plain chose."""

    case: Case
    recording: Recording
    drafter: Drafter
    planner: Planner
    witness: Observer | None = None

    def start(self, rows: Rows) -> Session:
        context, target, rule = self.case.setting.context(), self.recording.target, self.case.rule
        self.dice = FollowingDice(KeyedDice(context.noise), self.recording.tokens)
        how: dict[str, Any] = {"dice": self.dice, "top_logprobs": 0, "checked": True, "observer": self.witness}
        self.session = Session(context, target, rows, self.drafter, self.planner, rule, **how)
        self.handed: list[int] = []
        """The tokens that the driver handed out."""
        return self.session

    def result(self, rescorer: Rescorer, error: Exception | None = None, *, left: bool = False) -> CaseResult:
        """The result of the case. One that ``left`` need not have come to the end."""
        emitted = self.session.context.emitted.tolist()
        if error is not None:
            return CaseResult(self.case, len(emitted), faults=(fault(error),))
        flips = tuple((flip, rescorer.judge(flip, self.recording)) for flip in self.dice.flips)
        faults = [] if left else list(self._faults())
        if emitted != self.recording.emitted[: len(emitted)].tolist():
            faults.append("wrote tokens that its rule did not choose")
        if self.handed != emitted:
            faults.append(f"handed out {len(self.handed)} tokens that are not the {len(emitted)} of the text")
        return CaseResult(self.case, len(emitted), flips, tuple(faults))

    def _faults(self) -> Iterator[str]:
        """The end and the log-probabilities belong to the text, too; the latter are plain's but for rounding."""
        wrote, finish = len(self.session.emissions), self.session.context.finish
        if wrote < len(self.recording.emitted) or finish != self.recording.finish:
            plain, plains = len(self.recording.emitted), self.recording.finish
            yield f"ended after {wrote} tokens ({finish}), plain after {plain} ({plains})"
        if exact_at_borders(self.session.target):
            ours = [e.logprobs.logprob for e in self.session.emissions if e.logprobs is not None]
            gaps = [abs(a - b) for a, b in zip(ours, self.recording.logprobs, strict=False)]
            if (worst := max(gaps, default=0.0)) > LOGPROB_TOLERANCE * self.recording.scale:
                yield f"log-probabilities are off by {worst:.2g} at emitted token {gaps.index(worst)}"


def together(
    walks: Sequence[FollowedCase], size: int, target: Target, rescorer: Rescorer, seed: int
) -> Iterator[CaseResult]:
    """Write in a batch of ``size``, in a shuffled order: whenever one ends, or leaves as visitors do, another joins."""
    order = random.Random(f"{seed} {size}")
    waiting = deque(order.sample(walks, len(walks)))
    stays = {walk: order.randint(0, STAY) for walk in list(waiting)[::VISITORS]}
    walking: dict[Session, FollowedCase] = {}
    with Batch(target, at_once=size) as batch:
        while waiting or walking:
            for _ in range(min(len(waiting), size - batch.seated)):
                walk = waiting.popleft()
                session = walk.start(target.open(RESERVED_ROWS))
                walking[session] = walk
                batch.join(session)
            for turn in batch.step():
                walk = walking[turn.session]
                walk.handed += [emission.token for emission in turn.emissions]
                if not turn.ended:
                    if walk not in stays or len(turn.session.rounds) <= stays[walk]:
                        continue
                    batch.leave(turn.session)
                del walking[turn.session]
                yield walk.result(rescorer, turn.error, left=not turn.ended)
                turn.session.rows.close()


def fault(error: Exception) -> str:
    """An error as a sentence of the report."""
    if isinstance(error, (Overrun, DefectError)):
        return str(error)
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"


def exact_at_borders(target: Target) -> bool:
    """Whether a token at the border of a warp is on the same side in every forward, near ties apart."""
    return target.exact or target.dtype in ("float32", "float64")
