"""What a drafter makes of its own logits: which tokens the target may choose next, and how likely each.

The target's settings are applied to the drafter's row, since a target that samples at temperature 0.8 from its ten
best tokens chooses otherwise than the raw logits say. Two things differ from `Law`. Custom processors are left out:
they may keep state, and only plain decoding's calls may reach them. And tokens that hardly matter are dropped before
anything costly is done, which no drafter need be exact about: a wrong guess is refused, never emitted.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.law.adjust import Adjustment
from paceline.law.distribution import Distribution
from paceline.law.scores import full_precision
from paceline.law.settings import Sampling
from paceline.law.warp import warped

if TYPE_CHECKING:
    from collections.abc import Iterable

NEGLIGIBLE = 1e-5
"""Tokens less likely than this share of the best one are not drafted."""

LOG_NEGLIGIBLE = math.log(NEGLIGIBLE)
NOTHING_LIKELY = Distribution(np.empty(0, np.int64), np.empty(0))

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Outlook:
    """One sequence's settings, as a drafter applies them; of greedy decoding, the raw probabilities to rank by."""

    def __init__(self, sampling: Sampling, prompt_length: int) -> None:
        settings = replace(sampling, processors=())
        if sampling.greedy:
            settings = replace(settings, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
        self._sampling = settings
        self._adjustment = lru_cache(maxsize=1)(lambda size: Adjustment(_within(settings, size), prompt_length))

    def laws(self, rows: torch.Tensor, texts: Iterable[Ints]) -> list[Distribution]:
        """The law after each row ``[rows, vocabulary]``; ``texts`` are the tokens before each, one read after the other
        and only if needed."""
        rows = full_precision(rows.detach())
        if self._sampling.adjusts:
            adjustment = self._adjustment(rows.shape[1])
            rows = torch.stack([adjustment.apply(row.clone(), text) for row, text in zip(rows, texts, strict=True)])
        return [self._law(row) for row in rows.numpy(force=True)]

    def _law(self, row: NDArray[np.floating[Any]]) -> Distribution:
        """Empty where the row says nothing: that the drafter is lost is no mistake of the text."""
        peak = float(row.max())
        if not np.isfinite(peak):
            return NOTHING_LIKELY
        least = peak + self._sampling.temperature * LOG_NEGLIGIBLE
        ids = np.flatnonzero(row >= least)
        law = warped(row[ids], self._sampling)
        return Distribution(ids[law.ids], law.weights)


def _within(sampling: Sampling, size: int) -> Sampling:
    """The settings, less what they say of tokens that the drafter's model does not have."""
    return replace(
        sampling,
        logit_bias={token: bias for token, bias in sampling.logit_bias.items() if token < size},
        banned=tuple(entry for entry in sampling.banned if entry[-1] < size),
    )
