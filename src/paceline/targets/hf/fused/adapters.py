"""Adapters of the rows of streams: what they add to the outputs of a linear layer.

Rows of streams are the last ones of a forward. An adapter makes a few values of a row, and of these values what is
added to each output. There are so few rows that reading an adapter takes longer than computing with it. So its
matrices are 8-bit integers with a factor for each value, also beside floats: streams only guess. Its first half is so
small that every thread computes it instead of waiting for the others.
"""

from __future__ import annotations

from typing import Any

from numba import float32

from paceline.compiled import compiled
from paceline.targets.hf.fused import layout as at
from paceline.targets.hf.fused.vector import bytes_at, floats_at, longs_at

AT_ONCE = 4
"""Values whose columns are added up together; a rank is a multiple of it."""


@compiled()
def adapted(
    job: int,
    thread: int,
    layer: int,
    linear: int,
    given: int,
    inputs: int,
    first: int,
    last: int,
    outputs: int,
    count: int,
    result: int,
    stride: int,
) -> None:
    """Add to the outputs ``first .. last`` of the rows of streams, the last ones of ``count``. ``given`` are all rows
    as floats."""
    J = longs_at(job)
    number = at.MAPS * (layer - J[at.STREAMED_FROM]) + (linear - at.QUERY) // at.LINEAR
    A, rank = longs_at(J[at.ADAPTERS] + 8 * at.ADAPTER * number), J[at.RANK]
    factors, values = floats_at(A[at.FACTORS]), floats_at(J[at.THIN] + 4 * thread * rank)
    for row in range(count - J[at.STREAM_ROWS], count):
        for value in range(rank):
            narrow = bytes_at(A[at.NARROWING] + value * inputs)
            values[value] = factors[value] * _product(floats_at(given + 4 * row * inputs), narrow, inputs)
        found = floats_at(result + 4 * row * stride)
        for value in range(0, rank, AT_ONCE):
            _added(values, value, A[at.WIDENING] + value * outputs, outputs, first, last, found)


@compiled(fastmath={"reassoc", "contract"})
def _product(values: Any, weights: Any, count: int) -> Any:
    total = float32(0.0)
    for place in range(count):
        total += values[place] * float32(weights[place])
    return total


@compiled(fastmath={"contract"})
def _added(values: Any, value: int, wide: int, outputs: int, first: int, last: int, found: Any) -> None:
    """Some values times their weights."""
    one, two = bytes_at(wide), bytes_at(wide + outputs)
    three, four = bytes_at(wide + 2 * outputs), bytes_at(wide + 3 * outputs)
    a, b, c, d = values[value], values[value + 1], values[value + 2], values[value + 3]
    for place in range(first, last):
        before, after = a * float32(one[place]) + b * float32(two[place]), c * float32(three[place])
        found[place] += before + (after + d * float32(four[place]))
