"""The effect of integers on a model's predictions: loss on texts, and how often the likeliest token is the same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.law.scores import Row, log_probabilities
from paceline.targets.base import Target
from paceline.testing.evidence import teacher_forced
from paceline.tree import Ints

WINDOW = 512
"""Tokens that are read together; the first half of a window only gives the second its context."""


@dataclass(frozen=True)
class Predictions:
    """Sums over the tokens of one text."""

    tokens: int
    nats: tuple[float, float]
    """Of the model in floats, and in integers."""
    agreed: int
    """Tokens before which both find the same token likeliest."""
    divergence: float
    """The Kullback-Leibler divergence of both laws, in nats."""

    @property
    def losses(self) -> tuple[float, float]:
        """Nats per token."""
        return self.nats[0] / self.tokens, self.nats[1] / self.tokens

    @property
    def change(self) -> float:
        """Of the loss, as a share of it."""
        return self.nats[1] / self.nats[0] - 1 if self.nats[0] else math.nan


def compared(floats: Target, integers: Target, tokens: Ints) -> Predictions:
    """Both models on one text, which begins with its start token."""
    count, nats, agreed, divergence = 0, [0.0, 0.0], 0, 0.0
    for window, first in windows(tokens):
        laws = [_log_law(target, window, first) for target in (floats, integers)]
        followed = window[first:, None]
        for number, law in enumerate(laws):
            nats[number] -= float(np.take_along_axis(law, followed, 1).sum())
        agreed += int((laws[0].argmax(1) == laws[1].argmax(1)).sum())
        shares = np.exp(laws[0])
        divergence += float((shares * (laws[0] - laws[1]))[shares > 0].sum())
        count += len(followed)
    return Predictions(count, (nats[0], nats[1]), agreed, divergence)


def windows(tokens: Ints) -> Sequence[tuple[Ints, int]]:
    """Pieces of a text, and where in each the tokens begin that are counted: every one but the first once."""
    half = WINDOW // 2
    if len(tokens) <= WINDOW:
        return [(tokens, 1)]
    later = [(tokens[start : start + WINDOW], half) for start in range(half, len(tokens) - half, half)]
    return [(tokens[:WINDOW], 1), *later]


def _log_law(target: Target, tokens: Ints, first: int) -> Row:
    return log_probabilities(np.stack(list(teacher_forced(target, tokens, first))).astype(np.float64))
