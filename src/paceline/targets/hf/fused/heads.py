"""The stages of a row's heads: rotation, keys and values in the memory of a text, and attention."""

from __future__ import annotations

import math
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
    longs_at,
    mix,
    multiply,
    shorts_at,
)

NAN, WEIGHT_SHIFT = math.nan, 6.0
"""Next to a number as large as this, floats are 2^-21 apart, the step of weights in attention."""
QUERIES, BLOCK = 32, 8
"""Queries, and rows, that are computed together, at most."""


@compiled()
def together(group: int) -> int:
    """The most rows whose attention is computed together, of ``group`` queries each."""
    return max(1, min(BLOCK, QUERIES // group))


def own_floats(group: int, size: int, length: int) -> int:
    """A thread's own memory for attention over texts up to a length."""
    return int(2 * size + together.py_func(group) * group * 3 * (size + length))


@compiled()
def _prepared(job: int, row: int, head: int, norm: int, eps: float, spare: int) -> None:
    """Norm and rotate one head of a row in its place; round it, if its products must be exact."""
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


@compiled()
def attended(job: int, layer: int, first: int, last: int, ends: bool, head: int, thread: int) -> None:
    """Attention of the query heads that share a head of keys, of some rows: rows of one text are computed together."""
    J = longs_at(job)
    while first < last:
        text = _row(job, first, ends)[at.TEXT]
        behind = first + 1
        while behind < last and _row(job, behind, ends)[at.TEXT] == text:
            behind += 1
        _attended_together(job, layer, longs_at(J[at.TEXTS])[text], first, behind, ends, head, thread)
        first = behind


@compiled(inline="always")
def _origin(job: int, row: int, ends: bool) -> int:
    """Of the chosen rows, if the layer ``ends`` with these, else of all."""
    return longs_at(longs_at(job)[at.CHOICE])[row] if ends else row


@compiled(inline="always")
def _row(job: int, row: int, ends: bool) -> Any:
    return longs_at(longs_at(job)[at.ROWS] + 8 * at.ROW * _origin(job, row, ends))


@compiled()
def _seen(job: int, row: int, ends: bool, window: int) -> tuple[int, int, int, int]:
    """Where the first places begin that a row sees, and how many these are; where the list of the others begins, and
    how many these are."""
    R = _row(job, row, ends)
    start = skipped = 0
    if R[at.PLACE] >= longs_at(job)[at.SKIPPED]:
        start = longs_at(job)[at.SKIPPED]
    if window:
        window += R[at.AHEAD]
        start, skipped = max(start, R[at.POSITION] + 1 - window), max(0, R[at.FURTHER_COUNT] - window)
    further = longs_at(job)[at.EXTRAS] + 8 * (R[at.FURTHER] + skipped)
    return start, max(0, R[at.PREFIX] - start), further, R[at.FURTHER_COUNT] - skipped


@compiled()
def _attended_together(
    job: int, layer: int, text: int, first: int, last: int, ends: bool, head: int, thread: int
) -> None:
    """Rows of one text read the places that all of them see once. Windows that begin elsewhere are read row by row."""
    J = longs_at(job)
    L = longs_at(J[at.LAYER_TABLE] + 8 * at.LAYER * layer)
    N = doubles_at(J[at.LAYER_NUMBERS] + 8 * at.NUMBERS * layer)
    B = longs_at(text + 8 * at.BUFFERS * layer)
    size, heads, shared, exact = J[at.SIZE], J[at.HEADS], J[at.SHARED], J[at.FORM] != at.FLOATS
    group, line = heads // shared, (2 if J[at.NARROW] else 4) * size
    offset = head * B[at.CAPACITY] * line
    keys, values, count = B[at.KEYS] + offset, B[at.VALUES] + offset, last - first
    begin, common, _, _ = _seen(job, first, ends, L[at.WINDOW])
    most = 0
    for row in range(first, last):
        start, prefix, _, more = _seen(job, row, ends, L[at.WINDOW])
        common = min(common, prefix) if start == begin else 0
        most = max(most, prefix + more)
    # a thread's own memory: a table for products, then queries, sums, scores and weights
    spare = J[at.SCRATCH] + thread * J[at.SCRATCH_SIZE]
    queries = spare + 8 * size
    sums = queries + 4 * group * count * size
    weights = sums + 8 * group * count * size
    scores = weights + 8 * group * count * most
    for row in range(first, last):
        origin = _origin(job, row, ends)
        given = J[at.PROJECTED] + 4 * (origin * (heads + 2 * shared) + head * group) * size
        own = queries + 4 * (row - first) * group * size
        for number in range(group):
            _prepared(job, origin, given + 4 * number * size, L[at.QUERY_NORM], N[at.EPS_QUERY], spare)
            _copied(given + 4 * number * size, own + 4 * number * size, size)
    _scored(job, spare, keys + begin * line, common, queries, count * group, scores, most)
    for row in range(first, last):
        start, prefix, further, more = _seen(job, row, ends, L[at.WINDOW])
        own, place = queries + 4 * (row - first) * group * size, scores + 4 * (row - first) * group * most
        _scored(job, spare, keys + (start + common) * line, prefix - common, own, group, place + 4 * common, most)
        for j in range(more):
            key = keys + longs_at(further)[j] * line
            _scored(job, spare, key, 1, own, group, place + 4 * (prefix + j), most)
        for number in range(group):
            line_of = (row - first) * group + number
            _weighed(
                scores + 4 * line_of * most, prefix + more, float32(N[at.SCALE]), exact, weights + 8 * line_of * most
            )
    totals = doubles_at(sums)
    for place in range(count * group * size):
        totals[place] = 0.0
    mix(J[at.MIXING], values + begin * line, size, common, weights, most, count * group, sums)
    for row in range(first, last):
        start, prefix, further, more = _seen(job, row, ends, L[at.WINDOW])
        number = (row - first) * group
        own, place = weights + 8 * number * most, sums + 8 * number * size
        rest = values + (start + common) * line
        mix(J[at.MIXING], rest, size, prefix - common, own + 8 * common, most, group, place)
        for j in range(more):
            value = values + longs_at(further)[j] * line
            mix(J[at.MIXING], value, size, 1, own + 8 * (prefix + j), most, group, place)
        for each in range(group):
            result = J[at.MIXED] + 4 * (row * heads + head * group + each) * size
            _divided(place + 8 * each * size, own + 8 * each * most, prefix + more, size, result)


@compiled()
def _copied(given: int, result: int, count: int) -> None:
    one, other = floats_at(given), floats_at(result)
    for place in range(count):
        other[place] = one[place]


@compiled()
def _scored(job: int, table: int, keys: int, seen: int, queries: int, count: int, scores: int, apart: int) -> None:
    """Keys are the outputs of a product with the queries that read them."""
    J, T = longs_at(job), longs_at(table)
    T[at.BIAS], T[at.WEIGHT] = 0, keys
    multiply(J[at.SCORING], table, J[at.SIZE], 0, seen, queries, 0, count, scores, apart)


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
def _weighed(scores: int, count: int, scale: Any, exact: bool, weights: int) -> None:
    """Scores as weights, the largest 1; NaN if one of them is no number."""
    given, result = floats_at(scores), doubles_at(weights)
    is_number = _scaled(given, scale, count)
    most = _most(given, count)
    for j in range(count):
        given[j] = float32(exponential(float64(given[j] - most)))
    if exact:
        shift = float32(WEIGHT_SHIFT)
        for j in range(count):
            given[j] = (given[j] + shift) - shift
    for j in range(count):
        result[j] = float64(given[j])
    if not is_number:
        result[0] = NAN


@compiled(fastmath={"reassoc"})
def _divided(sums: int, weights: int, seen: int, size: int, result: int) -> None:
    """Sums of values over that of their weights."""
    given, totals, found, whole = doubles_at(weights), doubles_at(sums), floats_at(result), 0.0
    for j in range(seen):
        whole += given[j]
    for place in range(size):
        found[place] = float32(totals[place] / whole)
