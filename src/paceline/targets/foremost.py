"""The best tokens of rows of a large vocabulary, compiled for the processor: `reading` says what is computed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import float32, int32

from paceline.compiled import compiled

BLOCK, PIECE = 128, 1024
SLOPE = float32(2.0**23 / math.log(2))
BIAS = float32(127 * 2.0**23)
SIGN, UNSIGNED = int32(31), int32(0x7FFFFFFF)
LEAST = int32(-(2**31))


@compiled(forceinline=True)
def _flipped(bits: Any) -> Any:
    """Bits of a float that ascend, as a signed number, as floats do; and back."""
    return bits ^ ((bits >> SIGN) & UNSIGNED)


@compiled(forceinline=True)
def _greatest(row: Any, start: int, end: int) -> Any:
    greatest = LEAST
    for place in range(start, end):
        greatest = max(greatest, _flipped(row[place]))
    return greatest


@compiled()
def _maxima(row: Any, maxima: Any) -> None:
    """The greatest of every block."""
    for block in range(row.size // BLOCK):
        maxima[block] = _greatest(row, block * BLOCK, block * BLOCK + BLOCK)
    if row.size % BLOCK:
        maxima[-1] = _greatest(row, row.size // BLOCK * BLOCK, row.size)


@compiled()
def _best(row: Any, maxima: Any, ids: Any, found: Any) -> None:
    """The best tokens, best first; of equals the lower id."""
    last = ids.size - 1
    found[:] = LEAST
    for block in range(maxima.size):
        if maxima[block] <= found[last]:
            continue
        for token in range(block * BLOCK, min(block * BLOCK + BLOCK, row.size)):
            value = _flipped(row[token])
            if value <= found[last]:
                continue
            place = last
            while place and found[place - 1] < value:
                found[place], ids[place] = found[place - 1], ids[place - 1]
                place -= 1
            found[place], ids[place] = value, token


@compiled()
def _exponentials(row: Any, shift: Any, bits: Any) -> None:
    for place in range(row.size):
        scaled = row[place] * SLOPE + shift
        bits[place] = int32(scaled if scaled > float32(0) else float32(0))


@compiled(fastmath={"reassoc"})
def _sum(numbers: Any) -> Any:
    total = float32(0)
    for place in range(numbers.size):
        total += numbers[place]
    return total


@compiled()
def _mass(row: Any, shift: Any, bits: Any) -> float:
    """The sum of the estimated exponentials, in the memory of a piece."""
    total = 0.0
    for start in range(0, row.size, PIECE):
        count = min(PIECE, row.size - start)
        _exponentials(row[start : start + count], shift, bits)
        total += _sum(bits[:count].view(np.float32))
    return total


@compiled(public=True)
def best(rows: Any, ids: Any, values: Any, masses: Any) -> None:
    """Fill in the best tokens of rows, their logits, and the sums of the estimated exponentials of all logits minus the
    greatest, of which those of the best are left out; no number where that is none."""
    maxima, bits = np.empty(-(-rows.shape[1] // BLOCK), np.int32), np.empty(PIECE, np.int32)
    for number in range(len(rows)):
        row, found = rows[number], values[number].view(np.int32)
        _maxima(row.view(np.int32), maxima)
        _best(row.view(np.int32), maxima, ids[number], found)
        for place in range(found.size):
            found[place] = _flipped(found[place])
        masses[number] = np.nan
        if math.isfinite(values[number, 0]):
            shift = BIAS - SLOPE * values[number, 0]
            masses[number] = _mass(row, shift, bits) - _mass(values[number], shift, bits)
