"""Plain decoding of one setting, written down: its tokens, its rows, and the same text scored sixteen rows at a time.

The wide rows serve three ends: the control (how many of plain's own choices change when nothing but the number of
rows in a forward does), the measured error of a row, and an independent law of every token for the statistics.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from paceline.check.cases import Setting
from paceline.context import Finish, Ints
from paceline.drafters import Plain, Seen
from paceline.engine.follow import Flip
from paceline.engine.loop import Session
from paceline.engine.serial import run
from paceline.law import KeyedDice, Law
from paceline.planning.fixed import Fixed
from paceline.targets.base import Request, Rows, Target, Want

WIDE = 16


class _Recorder(Plain):
    """Plain decoding that keeps the row every token was chosen from."""

    def __init__(self) -> None:
        self.rows: list[torch.Tensor] = []

    def observe(self, seen: Sequence[Seen]) -> None:
        self.rows += [scores.row(-1).clone() for _, verdict, scores in seen if verdict.tokens]


@dataclass(frozen=True, eq=False)
class Recording:
    """What plain decoding wrote under a setting. Rows are those before each emitted token."""

    setting: Setting
    target: Target
    tokens: Ints
    finish: Finish
    logprobs: list[float]
    narrow: list[torch.Tensor]

    @property
    def emitted(self) -> Ints:
        return self.tokens[len(self.setting.prompt) :]

    @cached_property
    def wide(self) -> list[torch.Tensor]:
        """The rows again, teacher-forced `WIDE` at a time."""
        return list(teacher_forced(self.target, self.tokens, len(self.setting.prompt)))

    def control(self) -> list[Flip]:
        """Choices that change when the same text is scored wide: the noise floor of this target and type."""
        sampling, prompt = self.setting.sampling, len(self.setting.prompt)
        law, dice = Law(sampling, prompt), KeyedDice(self.setting.context().noise)
        flips = []
        for index, row in enumerate(self.wide, start=prompt):
            chosen = dice.choose(index, law.distribution(row, self.tokens[:index]))
            if chosen != self.tokens[index]:
                flips.append(Flip(index, chosen, int(self.tokens[index])))
        return flips


def record(setting: Setting, target: Target, rows: Rows) -> Recording:
    """Decode plainly and keep everything later questions may need."""
    context, drafter = setting.context(), _Recorder()
    session = Session(context, target, rows, drafter, Fixed(0), top_logprobs=0, checked=True)
    emissions = list(run(session))
    assert context.finish is not None, "a session runs until its sequence ends"
    logprobs = [e.logprobs.logprob for e in emissions if e.logprobs is not None]
    return Recording(setting, target, context.tokens.copy(), context.finish, logprobs, drafter.rows)


def teacher_forced(target: Target, tokens: Ints, first: int, width: int = WIDE) -> Iterator[torch.Tensor]:
    """The row before each of ``tokens[first:]``, scored on fresh rows, ``width`` at a time."""
    rows = target.open(len(tokens))
    want = Want(logits=True)
    try:
        for start in range(0, len(tokens) - 1, width):
            piece = tokens[start : min(start + width, len(tokens) - 1)]
            scores = target.submit([Request.of_prompt(rows, piece, want)]).result()[0]
            rows.keep(range(len(piece)))
            yield from scores.logits[max(0, first - 1 - start) :]
    finally:
        rows.close()


def logit_scale(recording: Recording) -> float:
    """The spread of a row's logits, at least 1: what tolerances on logits and log-probabilities are measured in."""
    spread = float(np.median([float(row.float().std()) for row in recording.narrow]))
    return max(1.0, spread)
