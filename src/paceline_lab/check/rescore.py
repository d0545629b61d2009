"""Near tie or bug: one difference, looked at in a wider floating-point type.

A forward over many rows and one over a single row add in different orders, so their logits differ in the last bits.
Where two candidates lie closer than that, either may win. To call a difference such a near tie, the text is scored
again on a copy of the model in the next wider type, and both candidates must be on top there, within twice the error
that the model's own type makes on this text.
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from enum import StrEnum
from functools import cached_property

import numpy as np
import torch

from paceline.engine.follow import Flip
from paceline.law import Law, Noise
from paceline.law.scores import Row, fetched
from paceline.targets.base import Target
from paceline.targets.hf.packed import parameter_count
from paceline.targets.hf.target import HFTarget
from paceline.targets.load import open_model
from paceline.targets.place import free_memory
from paceline.testing.evidence import teacher_forced
from paceline_lab.check.record import Recording

WIDER = {"bfloat16": torch.float32, "float16": torch.float32, "float32": torch.float64}
CONTENDERS = 32
"""Tokens of a row whose logits count for its error; the noise makes any of them a candidate."""


class Cause(StrEnum):
    NEAR_TIE = "near tie"
    BUG = "bug"
    NOT_RESCORED = "not re-scored"


class Rescorer:
    """Judges differences by a copy of the target in a wider type. Keeps the rows of the last text it judged."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._recording: Recording | None = None
        self._rows: list[Row] = []
        self._error = 0.0

    @cached_property
    def _twin(self) -> Target | None:
        return wider_twin(self._target)

    def judge(self, flip: Flip, recording: Recording) -> Cause:
        """The cause of a difference from a recorded text. In float64, and where rows are exact, none is a near tie."""
        if self._target.dtype == "float64" or self._target.exact:
            return Cause.BUG
        if self._twin is None:
            return Cause.NOT_RESCORED
        if self._recording is not recording:
            self._rows = list(teacher_forced(self._twin, recording.tokens, recording.start, width=1))
            self._recording, self._error = recording, measured_error(recording, self._rows)
        row = self._rows[flip.index - recording.start]
        return Cause.NEAR_TIE if _both_on_top(flip, recording, row, self._error) else Cause.BUG


def wider_twin(target: Target) -> Target | None:
    """A copy of the model in the next wider type, if there is one and memory for it."""
    if not isinstance(target, HFTarget) or (dtype := WIDER.get(target.dtype)) is None:
        return None
    if target.ranks > 1:  # this process has a part of the model only
        whole, _ = open_model(target.name, dtype=dtype, device="cpu", with_tokenizer=False)
        return whole
    size = parameter_count(target.model) * dtype.itemsize
    if (free := free_memory(target.model.device)) is not None and size > 0.8 * free:
        return None
    try:
        model = copy.deepcopy(target.model).to(dtype)
        model.tie_weights()  # a packed head is copied as a separate weight
    except (MemoryError, torch.OutOfMemoryError):
        return None
    twin = HFTarget(model, name=f"{target.name} in {dtype}", mode=target.mode)
    twin.limits, twin.switch = target.limits, target.switch
    return twin


def measured_error(recording: Recording, precise: list[Row]) -> float:
    """The largest error on this text, narrow or wide, in the logit of a token that sampling may well choose."""
    worst = 0.0
    for narrow, wide, true in zip(recording.narrow, recording.wide, precise, strict=True):
        best = np.argsort(true)[-CONTENDERS:]
        found = np.stack([narrow[best], wide[best]])
        worst = max(worst, float(np.abs(found - true[best].astype(np.float64)).max()))
    return worst


def _both_on_top(flip: Flip, recording: Recording, row: Row, error: float) -> bool:
    """Whether both candidates win by this row, each granted twice the error, in score and at the warps' borders."""
    sampling, tokens = recording.setting.sampling, recording.tokens[: flip.index]
    temperature = sampling.temperature or 1.0
    slack = 2 * error * math.prod(row.stretch(value) for row, value in sampling.acting() if row.stretch) / temperature
    law = Law(sampling, recording.start)
    scores = fetched(law.adjust(row, tokens)).astype(np.float64) / temperature
    if not sampling.greedy:
        scores = scores + Noise(sampling.seed).gumbel(flip.index, np.arange(len(scores)))
    best = float(scores[law.distribution(row, tokens).ids].max())
    looser = {row.name: row.loosened(value, slack) for row, value in sampling.acting() if row.loosened}
    loose = Law(replace(sampling, **looser), recording.start)
    for candidate in (flip.chosen, flip.expected):
        raised = row.copy()
        raised[candidate] += 2 * error
        inside = sampling.greedy or loose.distribution(raised, tokens).probability(candidate) > 0
        if best - scores[candidate] > slack or not inside:
            return False
    return True
