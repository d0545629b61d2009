"""Noise and the race, compiled for the processor.

`uniforms` draws the noise of `paceline.law.noise`; `contesting` finds the tokens that can win the race, as
`paceline.law.contenders` explains, and leaves what rounding may decide to numpy.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import uint64

from paceline.compiled import compiled

M0, M1 = uint64(0xD2511F53), uint64(0xCD9E8D57)
S0, S1 = uint64(0x9E3779B9), uint64(0xBB67AE85)
LOW, WORD, ODD, UNUSED = uint64(0xFFFFFFFF), uint64(32), uint64(1), uint64(12)
ROUNDS = 10
BLOCK = 128
"""Tokens that are compared with one number."""
MARGIN = 2.0**-20
"""By which bounds are widened: far more than rounding."""
SIGN, UNSIGNED, INFINITE = np.int32(31), np.int32(0x7FFFFFFF), np.int32(0x7F800000)
LEAST = 2.0**-53
"""No exponential is less."""


@compiled(forceinline=True)
def _round(c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any) -> Any:
    product2, product0 = (c2 & LOW) * M1, (c0 & LOW) * M0
    return (product2 >> WORD) ^ c1 ^ k0, product2, (product0 >> WORD) ^ c3 ^ k1, product0


@compiled(forceinline=True)
def _pair(block: Any, index: Any, sample: Any, stream: Any, k0: Any, k1: Any) -> Any:
    """Philox4x32-10: the bits of the even and of the odd token of a block. Of words only the lower halves count."""
    c0, c1, c2, c3 = _round(block, index, sample, stream, k0, k1)
    c0, c1, c2, c3 = _round(c0, c1, c2, c3, (k0 + S0) & LOW, (k1 + S1) & LOW)
    c0, c1, c2, c3 = _round(c0, c1, c2, c3, (k0 + uint64(2) * S0) & LOW, (k1 + uint64(2) * S1) & LOW)
    c0, c1, c2, c3 = _round(c0, c1, c2, c3, (k0 + uint64(3) * S0) & LOW, (k1 + uint64(3) * S1) & LOW)
    c0, c1, c2, c3 = _round(c0, c1, c2, c3, (k0 + uint64(4) * S0) & LOW, (k1 + uint64(4) * S1) & LOW)
    c0, c1, c2, c3 = _round(c0, c1, c2, c3, (k0 + uint64(5) * S0) & LOW, (k1 + uint64(5) * S1) & LOW)
    c0, c1, c2, c3 = _round(c0, c1, c2, c3, (k0 + uint64(6) * S0) & LOW, (k1 + uint64(6) * S1) & LOW)
    c0, c1, c2, c3 = _round(c0, c1, c2, c3, (k0 + uint64(7) * S0) & LOW, (k1 + uint64(7) * S1) & LOW)
    c0, c1, c2, c3 = _round(c0, c1, c2, c3, (k0 + uint64(8) * S0) & LOW, (k1 + uint64(8) * S1) & LOW)
    c0, c1, c2, c3 = _round(c0, c1, c2, c3, (k0 + uint64(9) * S0) & LOW, (k1 + uint64(9) * S1) & LOW)
    return (c0 & LOW) | (c1 << WORD), (c2 & LOW) | (c3 << WORD)


@compiled()
def uniform(token: Any, index: Any, sample: Any, stream: Any, k0: Any, k1: Any) -> Any:
    even, odd = _pair(token >> ODD, index, sample, stream, k0, k1)
    return (np.float64((odd if token & ODD else even) >> UNUSED) + 0.5) * 2.0**-52


@compiled(public=True)
def uniforms(ids: Any, indices: Any, sample: int, stream: int, k0: int, k1: int, found: Any) -> bool:
    """The uniform of each token: at its own place, or all at one. False where a number does not fit its word."""
    text, word, key0, key1 = uint64(sample), uint64(stream), uint64(k0), uint64(k1)
    tokens, places = uint64(0), uint64(0)
    for number in range(ids.size):
        token, index = uint64(ids[number]), uint64(indices[number if indices.size > 1 else 0])
        tokens, places = tokens | token, places | index
        found[number] = uniform(token, index, text, word, key0, key1)
    fits: bool = tokens >> uint64(33) == 0 and places <= LOW
    return fits


@compiled(forceinline=True)
def _greatest(row: Any, start: int, end: int) -> Any:
    greatest, largest = np.int32(-(2**31)), np.int32(0)
    for place in range(start, end):
        score = row[place]
        largest = max(largest, score & UNSIGNED)
        greatest = max(greatest, score ^ ((score >> SIGN) & UNSIGNED))
    return greatest ^ ((greatest >> SIGN) & UNSIGNED), largest


@compiled()
def _maxima(row: Any, maxima: Any) -> Any:
    """The greatest score of every block of a row, all by their bits; and the greatest bits without their signs, of
    which only those of NaNs are above infinity's. As signed numbers, bits ascend as scores do once those of negative
    scores are flipped."""
    largest = np.int32(0)
    for block in range(row.size // BLOCK):
        greatest, most = _greatest(row, block * BLOCK, block * BLOCK + BLOCK)
        maxima[block], largest = greatest, max(largest, most)
    if row.size % BLOCK:
        greatest, most = _greatest(row, row.size // BLOCK * BLOCK, row.size)
        maxima[-1], largest = greatest, max(largest, most)
    return largest


@compiled()
def _words(block: Any, index: Any, sample: Any, k0: Any, k1: Any, words: Any) -> Any:
    """The upper words of the even and of the odd tokens of a block, and the greatest of them."""
    greatest, start = uint64(0), uint64(block) * uint64(BLOCK // 2)
    for place in range(BLOCK // 2):
        even, odd = _pair(start + uint64(place), index, sample, uint64(0), k0, k1)
        words[0, place], words[1, place] = even >> WORD, odd >> WORD
        greatest = max(greatest, max(even, odd))
    return greatest >> WORD


@compiled()
def _drop(ids: Any, times: Any, count: int, bound: float) -> int:
    """Drop the tokens whose time is above the bound; how many are left."""
    left = 0
    for number in range(count):
        if times[number] <= bound:
            ids[left], times[left] = ids[number], times[number]
            left += 1
    return left


@compiled(public=True)
def contesting(
    row: Any, temperature: float, lightest: float, index: int, sample: int, k0: int, k1: int, ids: Any
) -> Any:
    """The greatest score of a row, and how many tokens have the least time but for rounding, of those that min-p may
    keep. None have where there is no finite greatest score, or too many are so close."""
    place, text, key0, key1 = uint64(index), uint64(sample), uint64(k0), uint64(k1)
    bits, words = np.empty(-(-row.size // BLOCK), np.int32), np.empty((2, BLOCK // 2), np.uint64)
    times, count = np.empty(ids.size), 0
    has_nan = _maxima(row.view(np.int32), bits) > INFINITE
    maxima, best = bits.view(np.float32), 0
    for block in range(maxima.size):
        best = block if maxima[block] > maxima[best] else best
    peak = float(maxima[best])
    if has_nan or not math.isfinite(peak):
        return peak, 0
    bound, lowest = np.inf, -np.inf
    for turn in range(-1, maxima.size):  # the best token's block first: it bounds the time of all others
        block = best if turn < 0 else turn
        heaviest: Any = (np.float64(maxima[block]) - peak) / temperature
        if turn == best or heaviest < lowest:
            continue
        heaviest = math.exp(heaviest)
        least = 2.0**32 * math.exp(-bound * heaviest) - 2
        if _words(block, place, text, key0, key1, words) < least:
            continue
        for token in range(block * BLOCK, min(block * BLOCK + BLOCK, row.size)):
            if words[token & 1, (token % BLOCK) >> 1] < least:
                continue
            weight = math.exp((np.float64(row[token]) - peak) / temperature)
            time = -math.log(uniform(uint64(token), place, text, uint64(0), key0, key1)) / weight
            if time > bound or weight < lightest * (1 - MARGIN):
                continue
            if count == ids.size:
                count = _drop(ids, times, count, bound)
            if count == ids.size:
                return peak, 0
            ids[count], times[count] = token, time
            count += 1
            if row[token] == peak or weight >= lightest * (1 + MARGIN):
                bound = min(bound, time * (1 + MARGIN))
                least = 2.0**32 * math.exp(-bound * heaviest) - 2
                lowest = math.log(max(lightest, LEAST / bound)) - MARGIN
    return peak, _drop(ids, times, count, bound)
