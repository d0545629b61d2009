"""The texts and drafts that probes score, and how far rows may differ. Probes of all libraries share them."""

from __future__ import annotations

import numpy as np

from paceline.law.scores import Row
from paceline.tree import DraftTree, Ints

TOLERANCE = {"float64": 1e-4, "float32": 1e-3, "bfloat16": 0.2, "float16": 0.05}
"""As a share of the logits' standard deviation: far above the rounding of kernels, far below the effect of another
context."""
HALVES = frozenset({"bfloat16", "float16"})
OTHER_TYPES = 0.2
"""The tolerance of types that are not listed."""
PREFIX, DRAFT = 6, 5
PROBED_WINDOW = 512
"""Windows of a model's own attention code are probed from behind them, up to this size."""

TRUNK = (0, 2, 4, 6, 8)
TRUNK_ROWS = [0, *(node + 1 for node in TRUNK)]
"""The root's row and those of the line in a `branched` tree."""


def branched(line: Ints, other: Ints) -> DraftTree:
    """The line's tokens, each with a sibling directly behind it."""
    pairs = np.stack([line, other], axis=1)
    above = np.array([-1, *TRUNK[:-1]])
    return DraftTree.build(pairs.reshape(-1), np.repeat(above, 2))


def some_tokens(vocab_size: int, count: int, salt: int = 0) -> Ints:
    return np.random.default_rng(20 + salt).integers(0, vocab_size, count)


def differ(one: Row, other: Row, dtype: str, share: float = 1.0) -> bool:
    """Whether rows differ by more than the rounding of kernels: in mean square, since the largest of many small
    differences grows with the vocabulary. In half precision the median row decides, because rounding may send a single
    row to another expert."""
    spread = float(other.std()) or 1.0
    gaps = np.sqrt(np.square(one.astype(np.float64) - other).mean(axis=-1))
    gap = float(np.median(gaps) if dtype in HALVES else gaps.max())
    return not gap <= TOLERANCE.get(dtype, OTHER_TYPES) * share * spread
