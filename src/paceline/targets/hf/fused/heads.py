"""The stages of a row's heads: rotation, keys and values in the memory of a text, and attention."""

from __future__ import annotations

from typing import Any

from numba import float32, float64, int16, int32

from paceline.compiled import compiled
from paceline.targets.hf.fused import layout as at
from paceline.targets.hf.fused.stages import EXPONENT, exponential, largest_bits, normed
from paceline.targets.hf.fused.vector import (
    double_of,
    doubles_at,
    float_of,
    floats_at,
    int_of,
    ints_at,
    longs_at,
    multiply,
    shorts_at,
)

WEIGHT_SHIFT = 6.0
"""Next to a number as large as this, floats are 2^-21 apart, the step of weights in attention."""
OWN = 6
"""Floats for each one of a head that a thread has for itself: sums in doubles, and four rows of keys or values."""


@compiled()
def _prepared(job: int, row: int, head: int, norm: int, eps: float, spare: int) -> None:
    """Norm and rotate one head of a row in its place; round it, where its products are to be exact."""
    J = longs_at(job)
    size = J[at.SIZE]
    values, before, half = floats_at(head), floats_at(spare), size // 2
    if norm:
        normed(values, norm, J[at.NARROW], eps, size, values)
    angles = J[at.ANGLES] + 8 * longs_at(J[at.ROWS] + 8 * at.ROW * row)[at.POSITION] * size
    cosines, sines = floats_at(angles), floats_at(angles + 4 * size)
    for place in range(size):
        before[place] = values[place]
    for place in range(half):
        values[place] = before[place] * cosines[place] + before[place + half] * sines[place]
    for place in range(half, size):
        values[place] = before[place] * cosines[place] + before[place - half] * sines[place]
    if J[at.FORM] != at.FLOATS:
        shift = float_of(largest_bits(head, size) & int32(EXPONENT)) * float32(double_of(J[at.COARSENESS]))
        for place in range(size):
            values[place] = (values[place] + shift) - shift


@compiled()
def written(job: int, layer: int, row: int, head: int, thread: int) -> None:
    """The key and the value of a row in the memory of its text. Values that are no numbers are zeros: those of hidden
    rows are multiplied by weights of zero."""
    J = longs_at(job)
    L = longs_at(J[at.LAYER_TABLE] + 8 * at.LAYER * layer)
    N = doubles_at(J[at.LAYER_NUMBERS] + 8 * at.NUMBERS * layer)
    R = longs_at(J[at.ROWS] + 8 * at.ROW * row)
    texts = longs_at(J[at.TEXTS])[R[at.TEXT]]
    size, heads, shared = J[at.SIZE], J[at.HEADS], J[at.SHARED]
    key = J[at.PROJECTED] + 4 * (row * (heads + 2 * shared) + heads + head) * size
    _prepared(job, row, key, L[at.KEY_NORM], N[at.EPS_KEY], J[at.SCRATCH] + thread * J[at.SCRATCH_SIZE])
    given, other, shift = floats_at(key), floats_at(key + 4 * shared * size), float32(N[at.VALUE_SHIFT])
    B = longs_at(texts + 8 * at.BUFFERS * layer)
    place = (head * B[at.CAPACITY] + R[at.PLACE]) * size
    for number in range(size):
        value = (other[number] + shift) - shift if J[at.FORM] != at.FLOATS else other[number]
        other[number] = value if value - value == float32(0.0) else float32(0.0)
    if J[at.NARROW]:
        _narrowed(given, size, shorts_at(B[at.KEYS] + 2 * place))
        _narrowed(other, size, shorts_at(B[at.VALUES] + 2 * place))
        return
    keys, values = floats_at(B[at.KEYS] + 4 * place), floats_at(B[at.VALUES] + 4 * place)
    for number in range(size):
        keys[number], values[number] = given[number], other[number]


@compiled()
def _narrowed(values: Any, count: int, result: Any) -> None:
    """Floats as bfloat16, the nearest, of two the even one."""
    for place in range(count):
        bits = int_of(values[place])
        result[place] = int16((bits + int32(0x7FFF) + ((bits >> int32(16)) & int32(1))) >> int32(16))


@compiled(inline="always")
def _at(rows: int, row: int, size: int, narrow: bool, spare: int) -> int:
    """The address of a row of keys or values as floats."""
    if not narrow:
        return rows + 4 * row * size
    given, result = shorts_at(rows + 2 * row * size), ints_at(spare)
    for place in range(size):
        result[place] = int32(given[place]) << int32(16)
    return spare


@compiled()
def attended(job: int, layer: int, row: int, into: int, head: int, thread: int) -> None:
    """Attention of the query heads that share a head of keys, of one row."""
    J = longs_at(job)
    L = longs_at(J[at.LAYER_TABLE] + 8 * at.LAYER * layer)
    N = doubles_at(J[at.LAYER_NUMBERS] + 8 * at.NUMBERS * layer)
    R = longs_at(J[at.ROWS] + 8 * at.ROW * row)
    texts = longs_at(J[at.TEXTS])[R[at.TEXT]]
    size, heads, shared = J[at.SIZE], J[at.HEADS], J[at.SHARED]
    group = heads // shared
    further, count = J[at.EXTRAS] + 8 * R[at.FURTHER], R[at.FURTHER_COUNT]
    start = skipped = 0
    if L[at.WINDOW]:
        start, skipped = max(0, R[at.POSITION] + 1 - L[at.WINDOW]), max(0, count - L[at.WINDOW])
    further, count, prefix = further + 8 * skipped, count - skipped, max(0, R[at.PREFIX] - start)
    B = longs_at(texts + 8 * at.BUFFERS * layer)
    exact, narrow = J[at.FORM] != at.FLOATS, J[at.NARROW] != 0
    line = (2 if narrow else 4) * size
    offset = head * B[at.CAPACITY] * line
    keys, values = B[at.KEYS] + offset, B[at.VALUES] + offset
    spare = J[at.SCRATCH] + thread * J[at.SCRATCH_SIZE]
    wide, weights, seen = spare + 8 * size, spare + 4 * OWN * size, prefix + count
    first = head * group
    queries = J[at.PROJECTED] + 4 * (row * (heads + 2 * shared) + first) * size
    for number in range(group):
        _prepared(job, row, queries + 4 * number * size, L[at.QUERY_NORM], N[at.EPS_QUERY], spare)
    # keys are the outputs of a product with the queries that read them
    table, more = longs_at(spare), longs_at(further)
    table[at.BIAS] = 0
    table[at.WEIGHT] = keys + start * line
    multiply(J[at.SCORING], spare, size, 0, prefix, queries, 0, group, weights, seen)
    for j in range(count):
        table[at.WEIGHT] = keys + more[j] * line
        multiply(J[at.SCORING], spare, size, 0, 1, queries, 0, group, weights + 4 * (prefix + j), seen)
    for number in range(group):
        own = weights + 4 * number * seen
        is_number = _weighed(own, seen, float32(N[at.SCALE]), exact)
        result = floats_at(J[at.MIXED] + 4 * (into * heads + first + number) * size)
        _mixed(values, start, prefix, further, count, size, own, spare, wide, narrow, result)
        if not is_number:
            for place in range(size):
                result[place] = float32(float("nan"))


@compiled(fastmath={"reassoc"})
def _scaled(scores: Any, scale: Any, count: int) -> bool:
    """Scores times a number; whether all are numbers."""
    nothing = float32(0.0)
    for j in range(count):
        scores[j] = scores[j] * scale
        nothing += scores[j] - scores[j]
    return nothing == float32(0.0)  # type: ignore[no-any-return]


@compiled(fastmath={"nnan", "nsz", "reassoc"})
def _most(scores: Any, count: int) -> Any:
    """The largest of some numbers."""
    most = scores[0]
    for j in range(count):
        most = max(most, scores[j])
    return most


@compiled()
def _weighed(scores: int, count: int, scale: Any, exact: bool) -> bool:
    """Scores as weights, the largest 1; whether they are numbers."""
    result = floats_at(scores)
    is_number = _scaled(result, scale, count)
    most = _most(result, count)
    for j in range(count):
        result[j] = float32(exponential(float64(result[j] - most)))
    if exact:
        shift = float32(WEIGHT_SHIFT)
        for j in range(count):
            result[j] = (result[j] + shift) - shift
    return is_number  # type: ignore[no-any-return]


@compiled(fastmath={"reassoc", "contract"})
def _mixed(
    values: int,
    start: int,
    prefix: int,
    further: int,
    count: int,
    size: int,
    weights: int,
    spare: int,
    wide: int,
    narrow: bool,
    result: Any,
) -> None:
    """Values by their weights, in doubles, four by four in the order of the text: wherever they lie in memory."""
    given, totals, more, whole = floats_at(weights), doubles_at(spare), longs_at(further), 0.0
    seen = prefix + count
    for j in range(seen):
        whole += float64(given[j])
    for place in range(size):
        totals[place] = 0.0
    fours = seen // 4 * 4
    for j in range(0, fours, 4):
        a, b = float64(given[j]), float64(given[j + 1])
        c, d = float64(given[j + 2]), float64(given[j + 3])
        if a == 0.0 and b == 0.0 and c == 0.0 and d == 0.0:
            continue
        line = 4 * size
        one = floats_at(_at(values, start + j if j < prefix else more[j - prefix], size, narrow, wide))
        j += 1
        two = floats_at(_at(values, start + j if j < prefix else more[j - prefix], size, narrow, wide + line))
        j += 1
        three = floats_at(_at(values, start + j if j < prefix else more[j - prefix], size, narrow, wide + 2 * line))
        j += 1
        four = floats_at(_at(values, start + j if j < prefix else more[j - prefix], size, narrow, wide + 3 * line))
        for place in range(size):
            totals[place] += (
                a * float64(one[place]) + b * float64(two[place]) + c * float64(three[place]) + d * float64(four[place])
            )
    for j in range(fours, seen):
        a = float64(given[j])
        one = floats_at(_at(values, start + j if j < prefix else more[j - prefix], size, narrow, wide))
        for place in range(size):
            totals[place] += a * float64(one[place])
    for place in range(size):
        result[place] = float32(totals[place] / whole)
