"""Adapters of the rows of streams: what they add to the outputs of a linear layer.

Rows of streams are the last ones of a forward. An adapter makes a few values of a row, and of these values what is
added to each output, all in floats, also beside integers. Its first half is so small that every thread computes it for
itself instead of waiting for the others.
"""

from __future__ import annotations

from paceline.compiled import compiled
from paceline.targets.hf.fused import layout as at
from paceline.targets.hf.fused.vector import floats_at, longs_at, multiply

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
    rows, rank = J[at.STREAM_ROWS], J[at.RANK]
    number = at.MAPS * (layer - J[at.STREAMED_FROM]) + (linear - at.QUERY) // at.LINEAR
    table = J[at.ADAPTERS] + 8 * at.ADAPTER * number
    A, thin, begin = longs_at(table), J[at.THIN] + thread * J[at.THIN_SIZE], count - rows
    multiply(A[at.PRODUCT], table, inputs, 0, rank, given + 4 * begin * inputs, 0, rows, thin, rank)
    for row in range(rows):
        values, found = floats_at(thin + 4 * row * rank), floats_at(result + 4 * (begin + row) * stride)
        for value in range(0, rank, AT_ONCE):
            wide = floats_at(A[at.WIDENED] + 4 * value * outputs)
            a, b, c, d = values[value], values[value + 1], values[value + 2], values[value + 3]
            for place in range(first, last):
                found[place] += (a * wide[place] + b * wide[place + outputs]) + (
                    c * wide[place + 2 * outputs] + d * wide[place + 3 * outputs]
                )
