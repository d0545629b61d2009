"""The stages of a row between products. Those of its heads are in `heads`.

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
from paceline.targets.hf.fused.instructions import NARROW
from paceline.targets.hf.fused.tiles import CACHE_LINE_BYTES, SPAN, Bytes, Nibbles
from paceline.targets.hf.fused.vector import (
    bytes_at,
    double_of,
    float_of,
    floats_at,
    fused,
    ints_at,
    long_of,
    longs_at,
    root,
    round_even,
    shorts_at,
)

EXPONENT, MAGNITUDE = 0x7F800000, 0x7FFFFFFF
"""Bits of a float."""
LARGEST = 127
MAGIC = 6755399441055744.0
"""Next to a number as large as this, doubles are whole."""
LOG2_E, LN2_HIGH, LN2_LOW = 1.4426950408889634, 0.6931471803691238, 1.9082149292705877e-10
NIBBLES_STEP, BYTES_STEP, PAIRS_OF_SPAN = Nibbles.STEP, Bytes.STEP, NARROW.values
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
def largest_bits(values: int, count: int) -> Any:
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
    """Bytes of a row of ``padded`` whole numbers."""
    if form == at.SHORTS:
        return 2 * padded
    if form == at.BYTES:
        return padded + CACHE_LINE_BYTES
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
    largest = largest_bits(values, count)
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
