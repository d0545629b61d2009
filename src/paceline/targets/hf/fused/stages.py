"""The stages between products, row by row and head by head.

No stage lets a row depend on how many others there are, on the threads, or on the memory that it lies in: sums are
exact, or they are sums of doubles in one row and rounded to a float. `int8.operations` says which sums are exact, and
rounds where these stages do, so both find the same bits.
"""

from __future__ import annotations

from typing import Any

from numba import float32, float64, int16, int32

from paceline.targets.hf.fused import layout as at
from paceline.targets.hf.fused.vector import (
    compiled,
    double_of,
    doubles_at,
    float_of,
    floats_at,
    ints_at,
    long_of,
    longs_at,
    root,
    round_even,
    shorts_at,
)

EXPONENT, MAGNITUDE = 0x7F800000, 0x7FFFFFFF
"""Bits of a float."""
WEIGHT_SHIFT = 6.0
"""Next to a number as large as this, floats are 2^-21 apart, the step of weights in attention."""
LARGEST = 127
MAGIC = 6755399441055744.0
"""Next to a number as large as this, doubles are whole."""
LOG2_E, LN2_HIGH, LN2_LOW = 1.4426950408889634, 0.6931471803691238, 1.9082149292705877e-10
FARTHEST = 700.0
"""Exponentials of larger numbers are no floats."""


@compiled(inline="always")
def exponential(x: float) -> float:
    """e to the power of x, right but for the last bits of a double; of NaN NaN."""
    if x > FARTHEST:
        x = FARTHEST
    if x < -FARTHEST:
        x = -FARTHEST
    shifted = x * LOG2_E + MAGIC
    whole = shifted - MAGIC
    rest = (x - whole * LN2_HIGH) - whole * LN2_LOW
    p = 1.6059043836821613e-10  # 1 / 13!, and so on
    p = p * rest + 2.08767569878681e-09
    p = p * rest + 2.505210838544172e-08
    p = p * rest + 2.755731922398589e-07
    p = p * rest + 2.7557319223985893e-06
    p = p * rest + 2.48015873015873e-05
    p = p * rest + 0.0001984126984126984
    p = p * rest + 0.001388888888888889
    p = p * rest + 0.008333333333333333
    p = p * rest + 0.041666666666666664
    p = p * rest + 0.16666666666666666
    p = p * rest + 0.5
    p = p * rest + 1.0
    p = p * rest + 1.0
    return double_of(long_of(p) + (long_of(shifted) << 52))  # type: ignore[no-any-return]


# --- rows -------------------------------------------------------------------------------------------------------


@compiled(fastmath={"reassoc", "contract"})
def _squares(values: Any, count: int) -> float:
    total = 0.0
    for place in range(count):
        wide = float64(values[place])
        total += wide * wide
    return total


@compiled()
def normed(values: Any, weight: Any, eps: float, count: int, result: Any) -> None:
    """A root-mean-square norm in doubles, rounded once."""
    factor = 1.0 / root(_squares(values, count) / count + eps)
    for place in range(count):
        result[place] = float32(float64(values[place]) * factor * float64(weight[place]))


@compiled()
def _largest(values: int, count: int) -> Any:
    """The largest magnitude, as bits: those of NaN are larger than all others."""
    bits, most = ints_at(values), int32(0)
    for place in range(count):
        most = max(most, bits[place] & int32(MAGNITUDE))
    return most


@compiled()
def rounded(values: int, count: int, shorts: int, step: int) -> None:
    """A row as whole numbers and their step. The step of a row that is no number is none."""
    given, result = floats_at(values), shorts_at(shorts)
    largest = _largest(values, count)
    unit = float_of(largest) * float32(1 / LARGEST)
    floats_at(step)[0] = unit
    if unit == float32(0.0) or largest >= int32(EXPONENT):
        for place in range(count):
            result[place] = 0
        return
    for place in range(count):
        result[place] = int16(int32(round_even(given[place] / unit)))


@compiled()
def entered(job: int, row: int, weight: int, eps: float, pending: bool) -> None:
    """Add what the last product found to a row's states; norm and round them for the next, if there is a ``weight``."""
    J = longs_at(job)
    width = J[at.WIDTH]
    states = floats_at(J[at.STATES] + 4 * row * width)
    if pending:
        found = floats_at(J[at.OUT] + 4 * row * width)
        for place in range(width):
            states[place] = states[place] + found[place]
    if weight:
        place = J[at.NORMED] + 4 * row * width
        normed(states, floats_at(weight), eps, width, floats_at(place))
        rounded(place, width, J[at.SHORTS] + 2 * row * width, J[at.STEPS] + 4 * row)


@compiled()
def moved(job: int, origin: int, row: int) -> None:
    """A row's states in another row's place."""
    J = longs_at(job)
    width = J[at.WIDTH]
    given, result = floats_at(J[at.STATES] + 4 * origin * width), floats_at(J[at.STATES] + 4 * row * width)
    for place in range(width):
        result[place] = given[place]


@compiled()
def gated(gate: int, up: int, first: int, last: int) -> None:
    """SiLU of the gate times what it lets through, in its place."""
    one, other = floats_at(gate), floats_at(up)
    for place in range(first, last):
        value = one[place]
        one[place] = (value / (float32(exponential(float64(-value))) + float32(1.0))) * other[place]


# --- heads ------------------------------------------------------------------------------------------------------


@compiled()
def coarseness(size: int) -> Any:
    """What a power of two is multiplied with to round a head of this size as coarsely as exact products want it."""
    bits, reach = 0, 1
    while reach < size:
        reach, bits = 2 * reach, bits + 1
    return float32(1.5 * 2.0 ** (24 - (24 - bits) // 2))


@compiled()
def _prepared(job: int, row: int, head: int, norm: int, eps: float, spare: int) -> None:
    """Norm, rotate and round one head of a row in its place."""
    J = longs_at(job)
    size = J[at.SIZE]
    values, before, half = floats_at(head), floats_at(spare), size // 2
    if norm:
        normed(values, floats_at(norm), eps, size, values)
    cosines, sines = floats_at(J[at.COSINES] + 4 * row * size), floats_at(J[at.SINES] + 4 * row * size)
    for place in range(size):
        before[place] = values[place]
    for place in range(half):
        values[place] = before[place] * cosines[place] + before[place + half] * sines[place]
    for place in range(half, size):
        values[place] = before[place] * cosines[place] + before[place - half] * sines[place]
    shift = float_of(_largest(head, size) & int32(EXPONENT)) * coarseness(size)
    for place in range(size):
        values[place] = (values[place] + shift) - shift


@compiled()
def written(job: int, layer: int, row: int, head: int, thread: int) -> None:
    """The key and the value of a row in the memory of its text. Values that are no numbers are zeros."""
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
    place = 4 * (head * B[at.CAPACITY] + R[at.PLACE]) * size
    keys, values = floats_at(B[at.KEYS] + place), floats_at(B[at.VALUES] + place)
    for number in range(size):
        keys[number] = given[number]
        value = (other[number] + shift) - shift
        values[number] = value if value - value == float32(0.0) else float32(0.0)


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
    offset = 4 * head * B[at.CAPACITY] * size
    keys, values = B[at.KEYS] + offset, B[at.VALUES] + offset
    spare = J[at.SCRATCH] + thread * J[at.SCRATCH_SIZE]
    for number in range(head * group, (head + 1) * group):
        query = J[at.PROJECTED] + 4 * (row * (heads + 2 * shared) + number) * size
        _prepared(job, row, query, L[at.QUERY_NORM], N[at.EPS_QUERY], spare)
        weights = spare + 8 * size
        is_number = _scored(query, keys, start, prefix, further, count, size, float32(N[at.SCALE]), weights)
        result = floats_at(J[at.MIXED] + 4 * (into * heads + number) * size)
        _mixed(values, start, prefix, further, count, size, weights, spare, result)
        if not is_number:
            for place in range(size):
                result[place] = float32(float("nan"))


@compiled(fastmath={"reassoc", "contract"})
def _dot(one: Any, other: Any, count: int) -> Any:
    """Exact, so in any order."""
    total = float32(0.0)
    for place in range(count):
        total += one[place] * other[place]
    return total


@compiled()
def _scored(
    query: int, keys: int, start: int, prefix: int, further: int, count: int, size: int, scale: Any, weights: int
) -> bool:
    """The weights of all keys that a row sees, as floats; whether its scores are numbers."""
    given, result, more = floats_at(query), floats_at(weights), longs_at(further)
    for j in range(prefix):
        result[j] = _dot(given, floats_at(keys + 4 * (start + j) * size), size) * scale
    for j in range(count):
        result[prefix + j] = _dot(given, floats_at(keys + 4 * more[j] * size), size) * scale
    most, is_number = result[0], True
    for j in range(prefix + count):
        most = max(most, result[j])
        is_number = is_number and result[j] == result[j]
    shift = float32(WEIGHT_SHIFT)
    for j in range(prefix + count):
        result[j] = (float32(exponential(float64(result[j] - most))) + shift) - shift
    return is_number


@compiled(fastmath={"reassoc", "contract"})
def _mixed(
    values: int, start: int, prefix: int, further: int, count: int, size: int, weights: int, spare: int, result: Any
) -> None:
    """Values by their weights. Sums in doubles are exact."""
    given, totals, more, whole = floats_at(weights), doubles_at(spare), longs_at(further), 0.0
    for j in range(prefix + count):
        whole += float64(given[j])
    for place in range(size):
        totals[place] = 0.0
    fours = prefix // 4 * 4
    for j in range(0, fours, 4):
        a, b = float64(given[j]), float64(given[j + 1])
        c, d = float64(given[j + 2]), float64(given[j + 3])
        if a == 0.0 and b == 0.0 and c == 0.0 and d == 0.0:
            continue
        line = values + 4 * (start + j) * size
        one, two = floats_at(line), floats_at(line + 4 * size)
        three, four = floats_at(line + 8 * size), floats_at(line + 12 * size)
        for place in range(size):
            totals[place] += (
                a * float64(one[place]) + b * float64(two[place]) + c * float64(three[place]) + d * float64(four[place])
            )
    for j in range(fours, prefix + count):
        slot = start + j if j < prefix else more[j - prefix]
        a, one = float64(given[j]), floats_at(values + 4 * slot * size)
        for place in range(size):
            totals[place] += a * float64(one[place])
    for place in range(size):
        result[place] = float32(totals[place] / whole)
