"""Recurrences over the rows of a draft, compiled. Each thread takes some parts of heads; it reads a part's state once
and computes all rows of the draft with it, while the part stays in the cache."""

from __future__ import annotations

from paceline.compiled import compiled, native
from paceline.targets.hf.fused import layout as at
from paceline.targets.hf.fused.forward import MINE
from paceline.targets.hf.fused.tiles import LANES
from paceline.targets.hf.fused.vector import longs_at
from paceline.targets.hf.recurrent import table
from paceline.targets.hf.recurrent.steps import (
    WIDE,
    delta_narrow,
    delta_one,
    delta_wide,
    diagonal_even,
    diagonal_full,
)

FLOAT = 4
"""Bytes."""


@compiled()
def _columns(part: int, size: int) -> tuple[int, int]:
    """The first column of a part of a state, and their number: first wide parts, then vectors, then single columns."""
    wide = size // WIDE
    if part < wide:
        return part * WIDE, WIDE
    first, left = wide * WIDE, part - wide
    vectors = (size - first) // LANES
    if left < vectors:
        return first + left * LANES, LANES
    return first + vectors * LANES + left - vectors, 1


@compiled()
def _parts(size: int) -> int:
    wide, left = size // WIDE, size % WIDE
    return wide + left // LANES + left % LANES


@compiled()
def _place(job: int, thread: int, place: int, offset: int, line: int, slot_line: int) -> tuple[int, int]:
    """The address of a state, and the bytes from one of its lines to the next. ``offset`` is that of the part in all
    heads' states."""
    J = longs_at(job)
    if place == table.BEFORE:
        return J[table.STATE] + offset, line
    if place == table.KEPT:
        return J[table.FINAL] + offset, line
    return J[table.SCRATCH] + J[table.SLOT] * (thread * J[table.SLOTS] + place), slot_line


@native(MINE)
def delta(job: int, thread: int) -> None:
    J = longs_at(job)
    size, line, heads, threads = J[table.LINES], FLOAT * J[table.LINE], J[table.HEADS], J[at.THREADS]
    parts, served, step = _parts(J[table.LINE]), heads // J[table.GROUPS], FLOAT * J[table.DECAY_STEP]
    decays = size if step else 1
    for item in range(heads * parts * thread // threads, heads * parts * (thread + 1) // threads):
        head, (column, width) = item // parts, _columns(item % parts, J[table.LINE])
        offset, group, begin = head * size * line + FLOAT * column, head // served * size, head * line + FLOAT * column
        for visit in range(J[table.COUNT]):
            row, before, after = _visit(J[table.VISITS], visit)
            source, source_line = _place(job, thread, before, offset, line, FLOAT * width)
            target, target_line = _place(job, thread, after, offset, line, FLOAT * width)
            query = J[table.QUERY] + FLOAT * (row * J[table.QUERY_ROW] + group)
            key = J[table.KEY] + FLOAT * (row * J[table.KEY_ROW] + group)
            value = J[table.VALUE] + FLOAT * row * J[table.VALUE_ROW] + begin
            decay = J[table.DECAY] + FLOAT * (row * J[table.DECAY_ROW] + head * decays)
            beta = J[table.BETA] + FLOAT * (row * J[table.BETA_ROW] + head)
            out = J[table.OUT]
            if out:
                out += row * heads * line + begin
            if width == WIDE:
                delta_wide(source, source_line, target, target_line, size, query, key, value, decay, step, beta, out)
            elif width == LANES:
                delta_narrow(source, source_line, target, target_line, size, query, key, value, decay, step, beta, out)
            else:
                delta_one(source, source_line, target, target_line, size, query, key, value, decay, step, beta, out)


@compiled()
def _visit(visits: int, number: int) -> tuple[int, int, int]:
    """A row, and the places of the state before and after it."""
    found = longs_at(visits + 8 * 3 * number)
    return found[0], found[1], found[2]


@native(MINE)
def diagonal(job: int, thread: int) -> None:
    J = longs_at(job)
    lines, size, heads, threads = J[table.LINES], J[table.LINE], J[table.HEADS], J[at.THREADS]
    some, served, rates = J[table.TOGETHER], heads // J[table.GROUPS], J[table.RATES]
    parts = (lines + some - 1) // some
    for item in range(heads * parts * thread // threads, heads * parts * (thread + 1) // threads):
        head, first = item // parts, item % parts * some
        count, begin, group = min(some, lines - first), head * lines + first, head // served * size
        for visit in range(J[table.COUNT]):
            row, before, after = _visit(J[table.VISITS], visit)
            source, _ = _place(job, thread, before, FLOAT * begin * size, 0, 0)
            target, _ = _place(job, thread, after, FLOAT * begin * size, 0, 0)
            x = J[table.VALUE] + FLOAT * (row * J[table.VALUE_ROW] + begin)
            b = J[table.KEY] + FLOAT * (row * J[table.KEY_ROW] + group)
            c = J[table.QUERY] + FLOAT * (row * J[table.QUERY_ROW] + group)
            decay = J[table.DECAY] + FLOAT * (row * J[table.DECAY_ROW] + (begin if rates else head))
            out = J[table.OUT]
            if out:
                out += FLOAT * (row * heads * lines + begin)
            if rates:
                diagonal_full(source, target, count, size, x, decay, rates + FLOAT * begin * size, b, c, out)
            else:
                diagonal_even(source, target, count, size, x, decay, 0, b, c, out)
