"""What a handful of measurements says: a median with its interval, and how much of a text repeats itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 4000
CONFIDENCE = 0.95
NGRAM = 8


@dataclass(frozen=True)
class Estimate:
    """A median and the bounds of its interval."""

    median: float
    low: float
    high: float


def median_of(values: Sequence[float], *, seed: int = 0) -> Estimate:
    """The median with a percentile bootstrap interval: how far it would move had other measurements of the same kind
    been made. The same values give the same interval; a single one gives an interval of no width, which says nothing.
    """
    if not values:
        raise ValueError("there is no median of nothing; measure at least once")
    found = np.asarray(values, np.float64)
    drawn = np.random.default_rng(seed).integers(len(found), size=(RESAMPLES, len(found)))
    outside = (1 - CONFIDENCE) / 2
    low, high = np.quantile(np.median(found[drawn], axis=1), [outside, 1 - outside])
    return Estimate(float(np.median(found)), float(low), float(high))


def repeated_share(texts: Sequence[Sequence[int]]) -> float:
    """The share of 8-grams that occurred before in the same text. Where it is high, methods that look things up in the
    text are flattered."""
    grams = [list(zip(*(text[i:] for i in range(NGRAM)), strict=False)) for text in texts]
    total = sum(map(len, grams))
    return 1 - sum(len(set(found)) for found in grams) / total if total else 0.0
