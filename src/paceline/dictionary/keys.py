"""Keys: the last tokens of a text, as rows of tokens or as hashes; values and places of sorted columns."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int32]
Indices = NDArray[np.int64]
Hashes = NDArray[np.uint64]

LONGEST = 8
"""The most tokens of a key, and of a proposal."""
NOWHERE = -1
POWERS = [np.uint64(pow(0x9E3779B97F4A7C15, power, 2**64)) for power in range(LONGEST + 1)]


def starts(*columns: NDArray[Any]) -> Indices:
    """The places of sorted columns at which a value is new."""
    fresh = np.empty(len(columns[0]), np.bool_)
    fresh[:1] = True
    np.not_equal(columns[0][1:], columns[0][:-1], out=fresh[1:])
    for column in columns[1:]:
        fresh[1:] |= column[1:] != column[:-1]
    return fresh.nonzero()[0]


def places(wanted: NDArray[Any], ascending: NDArray[Any]) -> Indices:
    """The place of each wanted value among ascending ones; `NOWHERE` where it is missing."""
    if not len(ascending):
        return np.full(len(wanted), NOWHERE, np.int64)
    place = np.minimum(np.searchsorted(ascending, wanted), len(ascending) - 1)
    return np.where(ascending[place] == wanted, place, NOWHERE)


def rolling(tokens: NDArray[Any], size: int) -> Hashes:
    """The hash of the ``size`` tokens that end at each place of a text; meaningless where fewer stand before it."""
    hashes = np.zeros(len(tokens), np.uint64)
    values = tokens.astype(np.uint64) + np.uint64(1)
    for back in range(size):
        hashes[size - 1 :] += values[size - 1 - back : len(tokens) - back] * POWERS[back]
    return hashes


def hashed(rows: NDArray[Any]) -> Hashes:
    """The hash of each row's tokens, as `rolling` has it; they are right-aligned, `NOWHERE` before the first."""
    hashes = np.zeros(len(rows), np.uint64)
    for back in range(rows.shape[1]):
        hashes += (rows[:, -1 - back].astype(np.uint64) + np.uint64(1)) * POWERS[back]
    return hashes
