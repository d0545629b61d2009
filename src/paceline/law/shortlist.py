"""The few tokens of a row that can still win the race, and how they are found in the host's memory (`contenders`)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.law.distribution import Distribution
from paceline.law.noise import Noise, kernels
from paceline.law.scores import Row
from paceline.law.warp import Warps, check_peak, tempered

ROOM = 1024
"""Tokens of a row that are kept on the host until the bound on the time has come down."""
WHOLE_ROW_TOKENS = 4096
"""Rows of vocabularies up to this size are read whole."""
SINGLE = 4
"""Bytes of a number in single precision."""

Coins = tuple[Noise, int]
"""The noise that decides, and the index in the token list."""


@dataclass(frozen=True)
class Shortlist:
    """The tokens of one row that can win, on the host, ids ascending; empty where the whole row has to decide."""

    ids: NDArray[np.int64]
    scores: NDArray[np.float64]
    peak: float
    """The greatest score of the whole row."""

    def law(self, warps: Warps) -> Distribution:
        """The tokens that weigh enough, with their weights in the whole row's law."""
        check_peak(self.peak)
        weights = tempered(self.scores, self.peak, warps.temperature)
        kept = np.flatnonzero((weights > 0) & (weights >= warps.least))
        return Distribution(self.ids[kept], weights[kept])


def on_host(row: Row, warps: Warps, coins: Coins) -> Distribution | None:
    """`contenders` for one row in the host's memory."""
    compiled = kernels()
    if (
        compiled is None
        or warps.most
        or not warps.in_one_race
        or row.dtype.itemsize != SINGLE
        or len(row) <= WHOLE_ROW_TOKENS
    ):
        return None
    scores, (noise, index), ids = np.ascontiguousarray(row), coins, np.empty(ROOM, np.int64)
    numbers = float(warps.temperature), float(warps.least)
    peak, count = compiled.contesting(scores, *numbers, index, noise.sample, *noise.key, ids)
    if count == 1:
        return Distribution.one_hot(int(ids[0]))
    if not count:
        return None
    ids = np.sort(ids[:count])
    return Shortlist(ids, scores[ids].astype(np.float64), peak).law(warps)
