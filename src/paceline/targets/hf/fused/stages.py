"""The stages between products, row by row and head by head.

No stage lets a row depend on how many others there are, on the threads, or on the memory that it lies in. In models of
integers sums are exact, or they are sums of doubles in one row and rounded to a float: `integers.operations` says
which, and rounds where these stages do, so both find the same bits. In models of floats every sum has one order, that
of the row's own text.
"""

from __future__ import annotations

from typing import Any

from numba import float32, float64, int8, int16, int32

from paceline.compiled import compiled
from paceline.targets.hf.fused import layout as at
from paceline.targets.hf.fused.tiles import NARROW as NARROW_SUMS
from paceline.targets.hf.fused.tiles import LINE, SPAN, Bytes, Nibbles
from paceline.targets.hf.fused.vector import (
    bytes_at,
    double_of,
    doubles_at,
    float_of,
    floats_at,
    fused,
    int_of,
    ints_at,
    long_of,
    longs_at,
    multiply,
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
NIBBLES_STEP, BYTES_STEP, PAIRS_OF_SPAN = Nibbles.STEP, Bytes.STEP, NARROW_SUMS.values
OWN = 6
"""Floats for each one of a head that a thread has for itself: sums in doubles, and four rows of keys or values."""
FARTHEST = 700.0
"""Exponentials of larger numbers are no floats."""


@compiled(inline="always")
def exponential(x: float) -> float:
    """e to the power of x, right but for the last bits of a double; of NaN NaN."""
    if x > FARTHEST:
        x = FARTHEST
    if x < -FARTHEST:
        x = -FARTHEST
    shifted = fused(x, LOG2_E, MAGIC)
    whole = shifted - MAGIC
    r = fused(whole, -LN2_LOW, fused(whole, -LN2_HIGH, x))
    r2 = r * r
    r4 = r2 * r2
    # powers of r over 0!, 1!, and so on, added up in pairs: each step could not begin before the last is done
    a, b = fused(r, 1.0, 1.0), fused(r, 0.16666666666666666, 0.5)
    c, d = fused(r, 0.008333333333333333, 0.041666666666666664), fused(r, 0.0001984126984126984, 0.001388888888888889)
    e, f = (
        fused(r, 2.7557319223985893e-06, 2.48015873015873e-05),
        fused(r, 2.505210838544172e-08, 2.755731922398589e-07),
    )
    g = fused(r, 1.6059043836821613e-10, 2.08767569878681e-09)
    p = fused(fused(g, r4, fused(f, r2, e)), r4 * r4, fused(fused(d, r2, c), r4, fused(b, r2, a)))
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
def normed(values: Any, weight: int, narrow: int, eps: float, count: int, result: Any) -> None:
    """A root-mean-square norm in doubles, rounded once. The weight is in bfloat16 where it is ``narrow``."""
    factor = 1.0 / root(_squares(values, count) / count + eps)
    if narrow:
        halves = shorts_at(weight)
        for place in range(count):
            wide = float_of(int32(halves[place]) << int32(16))
            result[place] = float32(float64(values[place]) * factor * float64(wide))
        return
    floats = floats_at(weight)
    for place in range(count):
        result[place] = float32(float64(values[place]) * factor * float64(floats[place]))


@compiled()
def _largest(values: int, count: int) -> Any:
    """The largest magnitude, as bits: those of NaN are larger than all others."""
    bits, most = ints_at(values), int32(0)
    for place in range(count):
        most = max(most, bits[place] & int32(MAGNITUDE))
    return most


@compiled()
def reach(count: int, form: int) -> int:
    """Values of a row that is multiplied, zeros at its end included."""
    if form == at.FLOATS:
        return count
    step = NIBBLES_STEP if form == at.GROUPED else BYTES_STEP
    return (count + step - 1) // step * step


@compiled()
def size_of(padded: int, form: int) -> int:
    """Bytes of a row of so many whole numbers."""
    if form == at.SHORTS:
        return 2 * padded
    if form == at.BYTES:
        return padded + LINE
    return padded + 2 * PAIRS_OF_SPAN * ((padded + SPAN - 1) // SPAN)


@compiled()
def _shorts(values: int, count: int, unit: Any, place: int, padded: int) -> None:
    given, result = floats_at(values), shorts_at(place)
    for number in range(count):
        result[number] = int16(int32(round_even(given[number] / unit)))
    for number in range(count, padded):
        result[number] = int16(0)


@compiled()
def _bytes(values: int, count: int, unit: Any, place: int, padded: int) -> None:
    given, result = floats_at(values), bytes_at(place)
    for number in range(count):
        result[number] = int8(int32(round_even(given[number] / unit)))
    for number in range(count, padded):
        result[number] = int8(0)


@compiled()
def _total(place: int, padded: int) -> Any:
    given, total = bytes_at(place), int32(0)
    for number in range(padded):
        total += int32(given[number])
    return total


@compiled()
def _groups(place: int, padded: int) -> None:
    """The sums of the groups that weights of 4 bits have, behind a row."""
    given, sums, pairs = bytes_at(place), shorts_at(place + padded), PAIRS_OF_SPAN
    for span in range((padded + SPAN - 1) // SPAN):
        line, first = span * pairs, span * SPAN
        for pair in range(pairs):
            sums[line + pair] = int16(0)
        for begin in range(first, min(padded, first + SPAN), 2 * pairs):
            for pair in range(pairs):
                sums[line + pair] += int16(given[begin + 2 * pair]) + int16(given[begin + 2 * pair + 1])


@compiled()
def prepared(job: int, values: int, count: int, row: int, form: int) -> None:
    """A row as whole numbers and their step, for a product. The step of a row that is no number is none."""
    J = longs_at(job)
    largest = _largest(values, count)
    unit = float_of(largest) * float32(1 / LARGEST)
    floats_at(J[at.STEPS])[row] = unit
    if unit == float32(0.0) or largest >= int32(EXPONENT):
        zeros = floats_at(values)
        for place in range(count):
            zeros[place] = float32(0.0)
        unit = float32(1.0)
    padded = reach(count, form)
    place = J[at.PREPARED] + row * size_of(padded, form)
    if form == at.SHORTS:
        _shorts(values, count, unit, place, padded)
        return
    _bytes(values, count, unit, place, padded)
    if form == at.BYTES:
        ints_at(place + padded)[0] = _total(place, padded)
    else:
        _groups(place, padded)


@compiled()
def entered(job: int, row: int, weight: int, eps: float, pending: int, form: int) -> None:
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
        normed(states, weight, J[at.NARROW], eps, width, floats_at(place))
        if form != at.FLOATS:
            prepared(job, place, width, row, form)


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
        shift = float_of(_largest(head, size) & int32(EXPONENT)) * float32(double_of(J[at.COARSENESS]))
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
