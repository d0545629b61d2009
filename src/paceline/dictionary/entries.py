"""The entries of a dictionary: keys, the tokens that they propose, and their probabilities."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.dictionary.keys import Indices, Tokens

LEVELS = 16
"""Probabilities are stored as one of these levels, evenly spaced in log odds between the lowest and the highest."""
LOWEST, HIGHEST = 0.05, 0.995
_ODDS = (math.log(LOWEST / (1 - LOWEST)), math.log(HIGHEST / (1 - HIGHEST)))
_STEP = (_ODDS[1] - _ODDS[0]) / (LEVELS - 1)


@dataclass(frozen=True)
class Entries:
    """Entries in the order of their keys read backwards, each key once; tokens in `LONGEST` columns."""

    prefixes: Tokens
    """Their keys, right-aligned, `NOWHERE` before the first token."""
    completions: Tokens
    """The number in ``texts`` that each entry proposes."""
    first: NDArray[np.uint8]
    """The level of the first token's probability."""
    rest: NDArray[np.uint8]
    """The level of each later token's probability, on average."""
    texts: Tokens
    """Different completions in ascending order, each proposed by an entry; left-aligned, `NOWHERE` behind the last
    token."""

    def __len__(self) -> int:
        return len(self.prefixes)

    @property
    def highest(self) -> int:
        """The highest token id."""
        return int(max(self.prefixes.max(initial=0), self.texts.max(initial=0)))


def level(probability: NDArray[Any]) -> NDArray[np.uint8]:
    """The nearest level."""
    inside = np.clip(probability.astype(np.float64), LOWEST, HIGHEST)
    return np.rint((np.log(inside / (1 - inside)) - _ODDS[0]) / _STEP).astype(np.uint8)


def probability(level: int) -> float:
    return 1 / (1 + math.exp(-(_ODDS[0] + _STEP * level)))


def ascending(rows: Tokens) -> Indices:
    """The order in which rows of `LONGEST` tokens ascend, the first token deciding first. Two tokens are compared at
    once; NumPy's own sorting of rows compares them as records, which takes several times as long."""
    return np.lexsort(_pairs(rows).T[::-1])


def different(rows: Tokens) -> tuple[Tokens, Tokens]:
    """Different rows of `LONGEST` tokens, ascending, and which of them each row is."""
    order = ascending(rows)
    pairs = _pairs(rows)[order]
    fresh = np.ones(len(rows), bool)
    fresh[1:] = (pairs[1:] != pairs[:-1]).any(axis=1)
    which = np.empty(len(rows), np.int32)
    which[order] = np.cumsum(fresh) - 1
    return rows[order[fresh]], which


def _pairs(rows: Tokens) -> NDArray[np.uint64]:
    """Each two tokens as one number; `NOWHERE` is less than any token."""
    return (np.ascontiguousarray(rows) + np.int32(1)).astype(">u4").view(">u8").astype(np.uint64)
