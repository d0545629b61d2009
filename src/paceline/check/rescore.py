"""Near tie or bug: one difference, looked at in a wider floating-point type.

A forward over many rows and one over a single row add in different orders, so their logits differ in the last bits.
Where two candidates lie closer than that, either may win. To call a difference such a near tie, the text is scored
again on a copy of the model in the next wider type, and both candidates must be on top there, within twice the error
that the model's own type is seen to make on this text.
"""

from __future__ import annotations

import copy
import math
import os
from dataclasses import replace
from enum import StrEnum

import numpy as np
import torch

from paceline.check.record import Recording, teacher_forced
from paceline.engine.follow import Flip
from paceline.law import Law, Noise, Sampling
from paceline.targets.base import Target
from paceline.targets.hf.packed import parameter_count
from paceline.targets.hf.target import HFTarget

WIDER = {torch.bfloat16: torch.float32, torch.float16: torch.float32, torch.float32: torch.float64}

CONTENDERS = 32
"""Tokens of a row whose logits count for its error; the noise makes any of them a candidate."""


class Verdict(StrEnum):
    NEAR_TIE = "near tie"
    BUG = "bug"
    NOT_RESCORED = "not re-scored"


class Rescorer:
    """Judges differences against a wider twin of the target, one text at a time."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._twin: Target | None = None
        self._tried = False
        self._recording: Recording | None = None
        self._rows: list[torch.Tensor] = []
        self._error = 0.0

    def judge(self, flip: Flip, recording: Recording) -> Verdict:
        """What a difference from a recorded text is. In float64 nothing is a near tie."""
        if self._target.dtype == torch.float64:
            return Verdict.BUG
        if not self._load(recording):
            return Verdict.NOT_RESCORED
        row = self._rows[flip.index - len(recording.setting.prompt)]
        explained = _both_on_top(flip, row, recording, self._error)
        return Verdict.NEAR_TIE if explained else Verdict.BUG

    def _load(self, recording: Recording) -> bool:
        if not self._tried:
            self._twin, self._tried = wider_twin(self._target), True
        if self._twin is None:
            return False
        if self._recording is not recording:
            self._recording = recording
            self._rows = list(teacher_forced(self._twin, recording.tokens, len(recording.setting.prompt), width=1))
            self._error = measured_error(recording, self._rows)
        return True


def wider_twin(target: Target) -> Target | None:
    """A copy of the model in the next wider type, if there is one and memory for it."""
    if not isinstance(target, HFTarget) or (dtype := WIDER.get(target.dtype)) is None:
        return None
    size = parameter_count(target.model) * dtype.itemsize
    if (free := _free_memory(target.model.device)) is not None and size > 0.8 * free:
        return None
    try:
        model = copy.deepcopy(target.model).to(dtype)
        model.tie_weights()  # a packed head is copied as a weight of its own
    except (MemoryError, torch.OutOfMemoryError):
        return None
    twin = HFTarget(model, name=f"{target.name} in {dtype}", mode=target.mode)
    twin.limits, twin.switch = target.limits, target.switch
    return twin


def _free_memory(device: torch.device) -> int | None:
    """Bytes free where a model stands, if that can be known. A system that promises more memory than it has ends the
    process instead of refusing, so it is asked first."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


def measured_error(recording: Recording, precise: list[torch.Tensor]) -> float:
    """The largest error seen on this text, narrow or wide, in the logit of a token that sampling may well choose."""
    worst = 0.0
    for narrow, wide, true in zip(recording.narrow, recording.wide, precise, strict=True):
        best = true.topk(min(CONTENDERS, len(true))).indices
        for row in (narrow, wide):
            worst = max(worst, float((row[best].double() - true[best].double()).abs().max()))
    return worst


def _both_on_top(flip: Flip, row: torch.Tensor, recording: Recording, error: float) -> bool:
    """Both candidates win under this row, each being granted twice the error, in score and at the warps' borders."""
    sampling = recording.setting.sampling
    prompt, tokens = len(recording.setting.prompt), recording.tokens[: flip.index]
    temperature = sampling.temperature or 1.0
    penalty = max(sampling.repetition_penalty, 1 / sampling.repetition_penalty)
    slack = 2 * error * penalty / temperature
    law = Law(sampling, prompt)
    scores = law.adjust(row, tokens).double().cpu().numpy() / temperature
    if not sampling.greedy:
        scores = scores + Noise(sampling.seed).gumbel(flip.index, np.arange(len(scores)))
    best = float(scores[law.distribution(row, tokens).ids].max())
    loose = Law(_loosened(sampling, slack), prompt)
    for candidate in (flip.chosen, flip.expected):
        raised = row.clone()
        raised[candidate] += 2 * error
        inside = sampling.greedy or loose.distribution(raised, tokens).probability(candidate) > 0
        if best - scores[candidate] > slack or not inside:
            return False
    return True


def _loosened(sampling: Sampling, slack: float) -> Sampling:
    """The warps with borders moved by as much as logits may be off."""
    return replace(
        sampling,
        top_p=min(1.0, sampling.top_p * math.exp(2 * slack)),
        min_p=sampling.min_p * math.exp(-2 * slack),
    )
