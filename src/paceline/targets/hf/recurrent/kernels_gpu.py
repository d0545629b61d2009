"""Recurrences over the rows of a draft, as Triton kernels. A program takes a part of one head's state, and computes all
rows of a sequence with it, one after the other; a chain's state stays in registers.

The same compiled code computes every row: nothing in it depends on how many rows there are, where they lie in memory,
or whether outputs are written. So a row has the same bits whatever rows are computed beside it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from paceline.targets.hf.recurrent import table

BEFORE, KEPT, HERE, NOWHERE = (tl.constexpr(place) for place in (table.BEFORE, table.KEPT, table.HERE, table.NOWHERE))
EPS = tl.constexpr(1e-6)
"""Of the norms of queries and keys."""


@triton.jit
def _taken(state, source, states, scratch, finals, slot, part, inside):
    """The state before a row. The barrier waits for what other threads of the program have written."""
    if source != HERE:
        tl.debug_barrier()
        if source == BEFORE:
            state = tl.load(states + part, mask=inside, other=0.0)
        elif source == KEPT:
            state = tl.load(finals + part, mask=inside, other=0.0)
        else:
            state = tl.load(scratch + source * slot + part, mask=inside, other=0.0)
    return state


@triton.jit
def _left(state, target, scratch, finals, slot, part, inside):
    """Write the state after a row, if it is read again. The barrier waits for what other threads still read."""
    if target != NOWHERE:
        tl.debug_barrier()
        if target == KEPT:
            tl.store(finals + part, state, mask=inside)
        else:
            tl.store(scratch + target * slot + part, state, mask=inside)


# fmt: off
@triton.jit(
    do_not_specialize=["query_row", "key_row", "value_row", "decay_row", "beta_row", "writes"],
    do_not_specialize_on_alignment=["visits", "query", "key", "value", "decay", "beta", "outputs"],
)
def delta(
    states, scratch, finals, visits, query, key, value, decay, beta, outputs,
    query_row, key_row, value_row, decay_row, beta_row, writes, scale,
    HEADS: tl.constexpr, SERVED: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr,
    PAD: tl.constexpr, BLOCK: tl.constexpr, RAW: tl.constexpr, CHANNELS: tl.constexpr,
):
# fmt: on
    """The delta rule for some columns of ``SIZE`` lines. With ``RAW``, queries and keys are normed here, queries are
    scaled, and decays are logarithms. With ``CHANNELS``, each line has a decay."""
    head, sequence, sequences = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64), tl.num_programs(2)
    line, column = tl.arange(0, PAD), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    long, wide = line < SIZE, column < WIDTH
    inside = long[:, None] & wide[None, :]
    part = line[:, None] * WIDTH + column[None, :]
    begin = (sequence * HEADS + head) * SIZE * WIDTH
    states, scratch, finals = states + begin, scratch + begin, finals + begin
    slot = tl.full([], HEADS * SIZE * WIDTH, tl.int64) * sequences
    group = head // SERVED
    state = tl.zeros([PAD, BLOCK], tl.float32)
    for visit in range(tl.load(visits + sequence), tl.load(visits + sequence + 1)):
        place = visits + sequences + 1 + 3 * visit
        row, source, target = tl.load(place).to(tl.int64), tl.load(place + 1), tl.load(place + 2)
        state = _taken(state, source, states, scratch, finals, slot, part, inside)
        k = tl.load(key + row * key_row + group * SIZE + line, mask=long, other=0.0).to(tl.float32)
        q = tl.load(query + row * query_row + group * SIZE + line, mask=long, other=0.0).to(tl.float32)
        v = tl.load(value + row * value_row + head * WIDTH + column, mask=wide, other=0.0).to(tl.float32)
        b = tl.load(beta + row * beta_row + head).to(tl.float32)
        if CHANNELS:
            d = tl.load(decay + row * decay_row + head * SIZE + line, mask=long, other=0.0).to(tl.float32)
        else:
            d = tl.load(decay + row * decay_row + head).to(tl.float32)
        if RAW:
            k = k * tl.rsqrt(tl.sum(k * k, 0) + EPS)
            q = q * tl.rsqrt(tl.sum(q * q, 0) + EPS) * scale
            d = tl.exp(d)
        if CHANNELS:
            state = state * d[:, None]
        else:
            state = state * d
        change = (v - tl.sum(state * k[:, None], 0)) * b
        state = state + k[:, None] * change[None, :]
        found = tl.sum(state * q[:, None], 0).to(outputs.dtype.element_ty)
        tl.store(outputs + (row * HEADS + head) * WIDTH + column, found, mask=wide & (writes != 0))
        _left(state, target, scratch, finals, slot, part, inside)


# fmt: off
@triton.jit(
    do_not_specialize=["c_row", "b_row", "inputs_row", "decay_row", "writes"],
    do_not_specialize_on_alignment=["visits", "c", "b", "inputs", "decay", "rates", "outputs"],
)
def diagonal(
    states, scratch, finals, visits, c, b, inputs, decay, rates, outputs,
    c_row, b_row, inputs_row, decay_row, writes,
    HEADS: tl.constexpr, SERVED: tl.constexpr, LINES: tl.constexpr, SIZE: tl.constexpr,
    PAD: tl.constexpr, BLOCK: tl.constexpr, FULL: tl.constexpr,
):
# fmt: on
    """The diagonal recurrence for some lines of ``SIZE`` numbers. With ``FULL``, the factors are the exponentials of a
    number for each line times a rate for each number of the state."""
    head, sequence, sequences = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64), tl.num_programs(2)
    line, number = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, PAD)
    long, wide = line < LINES, number < SIZE
    inside = long[:, None] & wide[None, :]
    part = line[:, None] * SIZE + number[None, :]
    begin = (sequence * HEADS + head) * LINES * SIZE
    states, scratch, finals = states + begin, scratch + begin, finals + begin
    slot = tl.full([], HEADS * LINES * SIZE, tl.int64) * sequences
    group = head // SERVED
    state = tl.zeros([BLOCK, PAD], tl.float32)
    if FULL:
        rate = tl.load(rates + head * LINES * SIZE + part, mask=inside, other=0.0)
    for visit in range(tl.load(visits + sequence), tl.load(visits + sequence + 1)):
        place = visits + sequences + 1 + 3 * visit
        row, source, target = tl.load(place).to(tl.int64), tl.load(place + 1), tl.load(place + 2)
        state = _taken(state, source, states, scratch, finals, slot, part, inside)
        x = tl.load(inputs + row * inputs_row + head * LINES + line, mask=long, other=0.0).to(tl.float32)
        into = tl.load(b + row * b_row + group * SIZE + number, mask=wide, other=0.0).to(tl.float32)
        out = tl.load(c + row * c_row + group * SIZE + number, mask=wide, other=0.0).to(tl.float32)
        if FULL:
            d = tl.load(decay + row * decay_row + head * LINES + line, mask=long, other=0.0).to(tl.float32)
            state = state * tl.exp(d[:, None] * rate)
        else:
            state = state * tl.load(decay + row * decay_row + head).to(tl.float32)
        state = state + x[:, None] * into[None, :]
        found = tl.sum(state * out[None, :], 1).to(outputs.dtype.element_ty)
        tl.store(outputs + (row * HEADS + head) * LINES + line, found, mask=long & (writes != 0))
        _left(state, target, scratch, finals, slot, part, inside)
