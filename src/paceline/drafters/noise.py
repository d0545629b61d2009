"""The shared noise, as drafters use it.

The target samples by a race: of all tokens the one with the least exponential / weight is chosen, and the exponentials
are public (`paceline.law.noise`). So a drafter runs the same race with its own weights, in which a token's *speed* is
weight / exponential. With the target's weights the target's own sample wins. With rougher ones a token wins with the
probability speed / sum of all speeds, if the target's weights are the drafter's times errors that are independent and
exponential themselves.

There is no such race where the target decodes greedily, where the method has the option ``noise=none``, or under the
rejection rule, whose coins are hidden from drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.context import Context
from paceline.errors import InputError
from paceline.law import Distribution, Noise
from paceline.targets.scores import Scores
from paceline.tree import Floats, Ints

COLDEST = 0.02
"""Lower temperatures count as this one: greedy in effect, and no number overflows."""
SHARED = "shared"
NOISES = (SHARED, "none")
"""Values of the option ``noise``."""
BEST = 8
"""The number of best tokens after a row among which the target's sample is sought."""
TINIEST = float(np.finfo(np.float64).tiny)
"""Added to sums that may be 0, by which is divided."""

Chances = NDArray[np.floating[Any]]
Ids = NDArray[np.signedinteger[Any]]


def wants_noise(method: str, option: str) -> bool:
    """The option ``noise`` of a method: whether it ranks candidates by the shared noise."""
    if option not in NOISES:
        raise InputError(f"{method} takes noise={' or noise='.join(NOISES)}, not {option!r}")
    return option == SHARED


def hides_noise(context: Context) -> bool:
    """Whether the target samples with coins that no draft may see.

    A drafter then does best to sample, too. And it drafts from this text alone: other texts may have been sampled with
    the same coins, so a draft that knows them knows something of the coins, and the text would follow another law.
    """
    return not context.foreseeable and not context.sampling.greedy


class SharedNoise:
    """The noise ahead of one text. ``ahead`` counts places from the next token on, which is place 0."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.sharpness = 1 / max(context.sampling.temperature, COLDEST)

    @classmethod
    def of(cls, context: Context, wanted: bool = True) -> SharedNoise | None:
        """None where the target does not choose by it, or where it is not wanted."""
        return cls(context) if wanted and context.foreseeable and not context.sampling.greedy else None

    def exponentials(self, ahead: int, ids: Ints) -> Floats:
        """The exponentials of several tokens at one place."""
        return self._context.exponentials(ahead, ids)

    def coins(self, ahead: int) -> tuple[Noise, int]:
        """The noise of a place, and the place in the text."""
        return self._context.noise, len(self._context) + ahead

    def speeds(self, weights: dict[int, float], ahead: int) -> dict[int, float]:
        """The speeds of tokens at one place, from weights at the settings' temperature."""
        exponentials = self.exponentials(ahead, np.array(list(weights), np.int64)).tolist()
        return {token: weight / time for (token, weight), time in zip(weights.items(), exponentials, strict=True)}

    def wins(self, chances: Chances, ids: Ids, ahead: int) -> Floats:
        """``[rows, candidates]``: how likely each candidate is to win the race of its row, all at one place."""
        starts, width = np.arange(0, ids.size, ids.shape[1]), ids.shape[1]
        drawn = self.exponentials(ahead, ids.astype(np.int64).ravel())
        return self.won(chances.astype(np.float64).ravel(), starts, width, drawn).reshape(ids.shape)

    def won(self, chances: Floats, starts: Ints, sizes: Ints | int, exponentials: Floats) -> Floats:
        """How likely each candidate is to win its race. The candidates of a race, as many as its size, are adjacent,
        from one of the ``starts`` on.

        ``chances`` are probabilities at temperature 1. What they leave of 1 counts as one token without noise.
        """
        unnamed = np.fmax(1.0 - np.add.reduceat(chances, starts), 0.0)
        speeds = chances
        if self.sharpness != 1:
            speeds = chances**self.sharpness
            unnamed **= self.sharpness
        speeds = speeds / exponentials
        unnamed += TINIEST
        unnamed += np.add.reduceat(speeds, starts)
        speeds /= unnamed.repeat(sizes)
        return speeds

    def sharpened(self, chances: Chances, unnamed: Chances, ahead: Ints, ids: Ints) -> tuple[Chances, Chances]:
        """The speeds of tokens, each at its own place, and of what is unnamed beside them, without noise."""
        speeds = chances**self.sharpness / self._context.exponentials(ahead, ids)
        return speeds, unnamed**self.sharpness

    def samples(self, scores: Scores, rows: Ints, ahead: Ints) -> Ints:
        """The target's samples after each of the ``rows``, at the places ``ahead``, by its temperature alone."""
        top = scores.top(BEST)
        ids = top.ids[rows]
        favour = top.logits[rows] / max(self._context.sampling.temperature, COLDEST)
        favour -= np.log(self._context.exponentials(np.repeat(ahead, ids.shape[1]), ids.ravel())).reshape(ids.shape)
        found: Ints = ids[np.arange(len(rows)), favour.argmax(axis=1)]
        return found


def exponentials_of(noises: Sequence[SharedNoise], whose: Ints, ids: Ints, ahead: int) -> Floats:
    """The exponentials of tokens of several texts, at the same place ahead in each. ``whose`` says which text a token
    is for; these numbers ascend."""
    if len(noises) == 1:
        return noises[0].exponentials(ahead, ids)
    ends = np.searchsorted(whose, np.arange(1, len(noises)))
    parts = zip(noises, np.split(ids, ends), strict=True)
    return np.concatenate([noise.exponentials(ahead, part) for noise, part in parts])


def choices(scores: Scores, rows: Ints, noise: SharedNoise | None, ahead: Ints) -> Ints:
    """The target's choices after each of the ``rows``, at the places ``ahead``; without noise its likeliest tokens."""
    found: Ints = scores.choices()[rows] if noise is None else noise.samples(scores, rows, ahead)
    return found


def log_chances(
    weights: Floats, others: float, groups: Ints, noise: SharedNoise | None, ahead: Ints, ids: Ints
) -> Floats:
    """Log-probabilities of candidates by what they weigh beside the rivals of their group and ``others`` unnamed, and
    with noise of winning their race.

    ``groups`` are numbered from 0 on; ``ahead`` and ``ids`` are each candidate's place and token.
    """
    if not len(ids):
        return np.empty(0)
    whole = np.bincount(groups, weights=weights)[groups] + others
    favour: Chances = weights / whole
    unnamed: Chances = others / whole
    if noise is not None:
        favour, unnamed = noise.sharpened(favour, unnamed, ahead, ids)
    rivals = np.bincount(groups, weights=favour)[groups]
    found: Floats = np.log(favour / (rivals + unnamed))
    return found


def foremost(law: Distribution, count: int, exponentials: Floats | None = None) -> tuple[Ints, Floats]:
    """The ``count`` tokens that the target is likeliest to choose, best first, and log-probabilities of that; in the
    order of the race where its ``exponentials`` are given, one for each token of the law."""
    speeds = law.weights if exponentials is None else law.weights / exponentials
    if count < speeds.size:
        leading = np.argpartition(-speeds, count - 1)[:count] if count > 1 else np.array([speeds.argmax()])
    else:
        leading = np.arange(speeds.size)
    leading = leading[np.argsort(-speeds[leading], kind="stable")]
    return law.ids[leading], np.log(speeds[leading] / speeds.sum())
