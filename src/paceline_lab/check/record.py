"""Plain decoding of one setting, recorded and compared with transformers.

The recorded text is scored again sixteen rows at a time. These wide rows give the control (how many of plain's own
choices change when only the number of rows in a forward does) and the error of a row.

A mistake in the law or in a row would change plain decoding and drafted decoding alike, so comparing the two cannot see
it. Transformers' own processors give the law of every token again, and the model's own forward over the whole text
every row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers.generation import logits_process as theirs

from paceline.context import Finish, Ints
from paceline.drafters import Plain
from paceline.engine.follow import Flip
from paceline.engine.loop import Session
from paceline.engine.observe import Observed, Observer
from paceline.engine.serial import run
from paceline.law import KeyedDice, Law, Sampling
from paceline.law.scores import Row, fetched
from paceline.law.table import Acts, SettingRow
from paceline.planning.fixed import Fixed
from paceline.targets.base import Rows, Target
from paceline.targets.hf.target import HFTarget
from paceline.testing.evidence import teacher_forced
from paceline.tree import ROOT
from paceline_lab.check.cases import Setting

TOLERANCE = 1e-6
"""In a probability."""
ROUNDING = {"float64": 1e-6, "float32": 1e-3, "bfloat16": 0.2, "float16": 0.05}
"""The share of the logits' spread by which kernels may change the middle row of a text."""

INTEGERS = 0.2
"""The same share where activations are integers: the last bit of a float may turn one of them into the next."""


@dataclass(frozen=True, eq=False)
class Recording:
    """The text of plain decoding under a setting. Rows are the logits before each emitted token."""

    setting: Setting
    target: Target
    tokens: Ints
    finish: Finish
    logprobs: list[float]
    narrow: list[Row]

    @property
    def start(self) -> int:
        """The index of the first emitted token."""
        return len(self.setting.prompt)

    @property
    def emitted(self) -> Ints:
        return self.tokens[self.start :]

    @cached_property
    def wide(self) -> list[Row]:
        """The rows again, teacher-forced, sixteen at a time."""
        return list(teacher_forced(self.target, self.tokens, self.start))

    @cached_property
    def scale(self) -> float:
        """The spread of a row's logits, at least 1: the unit of tolerances on logits and log-probabilities."""
        return max(1.0, float(np.median([float(row.std()) for row in self.narrow])))

    def control(self) -> list[Flip]:
        """Choices that change when the same text is scored wide: the noise floor of this target and type."""
        law, dice = Law(self.setting.sampling, self.start), KeyedDice(self.setting.context().noise)
        chosen = [
            dice.choose(index, law.distribution(row, self.tokens[:index]))
            for index, row in enumerate(self.wide, start=self.start)
        ]
        pairs = enumerate(zip(chosen, self.emitted.tolist(), strict=True), start=self.start)
        return [Flip(index, ours, plains) for index, (ours, plains) in pairs if ours != plains]


def record(setting: Setting, target: Target, rows: Rows, witness: Observer | None = None) -> Recording:
    """Decode plainly and keep everything that later comparisons need."""
    context, narrow = setting.context(), list[Row]()

    def note(seen: Observed) -> None:
        narrow.append(fetched(seen.scores.row(ROOT)).copy())
        if witness is not None:
            witness(seen)

    session = Session(context, target, rows, Plain(), Fixed(0), top_logprobs=0, checked=True, observer=note)
    logprobs = [e.logprobs.logprob for e in run(session) if e.logprobs is not None]
    assert context.finish is not None, "a session runs until its sequence ends"
    return Recording(setting, target, context.tokens.copy(), context.finish, logprobs, narrow)


def row_faults(recording: Recording) -> tuple[str, ...]:
    """A sentence where plain decoding's rows, or the wide ones that measure differences, are not the model's own."""
    target = recording.target
    if not isinstance(target, HFTarget) or target.switch is not None:
        return ()
    own = target.unassisted(torch.from_numpy(recording.tokens[:-1]))[recording.start - 1 :].cpu().double().numpy()
    limit = (INTEGERS if target.exact else ROUNDING.get(target.dtype, 0.2)) * recording.scale
    for name, rows in (("one at a time", recording.narrow), ("sixteen at a time", recording.wide)):
        gap = float(np.median(np.abs(np.stack(rows) - own).max(axis=-1)))
        if not gap <= limit:
            return (f"rows scored {name} are {gap:.2g} from the model's own, where {limit:.2g} is rounding",)
    return ()


def law_faults(recording: Recording) -> tuple[str, ...]:
    """A sentence about the first place where our law of a recorded text differs from transformers'."""
    law = Law(recording.setting.sampling, recording.start)
    for index, row in enumerate(recording.narrow, start=recording.start):
        tokens, exact = recording.tokens[:index], row.astype(np.float64)
        found = law.distribution(exact, tokens)
        difference = -expected_law(exact, tokens, recording.start, recording.setting.sampling)
        difference[found.ids] += found.probs
        gap = _gap(difference, fetched(law.adjust(exact, tokens)))
        if gap > TOLERANCE:
            return (f"the law at index {index} differs from transformers' by {gap:.2g} in a probability",)
    return ()


def _gap(difference: NDArray[np.float64], scores: Row) -> float:
    """The largest difference in the probability of a score. Tokens that tie count together: half precision makes
    many ties, and we keep the lowest id inside a warp's border, where transformers keeps what its sort puts first."""
    _, tied = np.unique(scores, return_inverse=True)
    return float(np.abs(np.bincount(tied, weights=difference)).max())


def expected_law(row: Row, tokens: Ints, prompt: int, sampling: Sampling) -> NDArray[np.float64]:
    """Probabilities by transformers' processors, in its order; what it lacks acts by a formula of the setting's."""
    emitted = torch.bincount(torch.from_numpy(tokens[prompt:]), minlength=len(row))
    processors = [_processor(*group, emitted) for group in sampling.groups(Acts.ON_LOGITS)]
    if not sampling.greedy:
        processors.append(theirs.TemperatureLogitsWarper(sampling.temperature))
        processors += [_processor(*group, emitted) for group in sampling.groups(Acts.AS_CUT)]
    ids, scores = torch.from_numpy(tokens)[None], torch.tensor(row)[None]
    for processor in processors:
        scores = processor(ids, scores)
    scores = scores[0]
    if sampling.greedy:
        scores = torch.where(torch.arange(len(scores)) == scores.argmax(), scores, float("-inf"))
    return np.exp(Law(Sampling(), 0).log_probabilities(scores))


def _processor(
    rows: tuple[SettingRow, ...], values: tuple[Any, ...], emitted: torch.Tensor
) -> Callable[..., torch.Tensor]:
    """The joint effect of settings that act together, ``(ids, scores) -> scores``."""
    row, (value, *_) = rows[0], values
    if row.transformers is None:
        formula = row.reference
        assert formula is not None, f"{row.name} has a second formula"
        return lambda _, scores: formula(scores, emitted, *values)
    made: Callable[..., torch.Tensor] = getattr(theirs, row.transformers.processor)(row.transformers.given(value))
    return made
