"""A whole forward as one function, which some threads run side by side: each takes its share of every stage and waits
for the others before the next."""

from __future__ import annotations

from paceline.compiled import compiled, native
from paceline.targets.hf.fused import layout as at
from paceline.targets.hf.fused.adapters import adapted
from paceline.targets.hf.fused.heads import attended, together, written
from paceline.targets.hf.fused.stages import entered, gated, moved, prepared, reach
from paceline.targets.hf.fused.tiles import OUTPUTS
from paceline.targets.hf.fused.vector import (
    add,
    double_of,
    doubles_at,
    load,
    longs_at,
    multiply,
    pause,
    yields,
)

SPINS = 2000
"""Looks at a counter before the processor is left to others."""
MINE = "void(int64, int64)"
"""A thread's part of a job."""


@compiled()
def meet(counter: int, threads: int, met: int) -> int:
    """Wait until all threads are here; how often they have met."""
    if threads > 1:
        add(counter, 1)
        wait(counter, (met + 1) * threads)
    return met + 1


@compiled()
def wait(counter: int, due: int) -> None:
    looks = 0
    while load(counter) < due:
        pause()
        looks += 1
        if looks == SPINS:
            yields()
            looks = 0


@compiled()
def shared(
    job: int, thread: int, linear: int, rows: int, inputs: int, outputs: int, count: int, result: int, stride: int
) -> tuple[int, int]:
    """This thread's outputs of the product of rows with a linear layer; which they were."""
    J = longs_at(job)
    units, threads = outputs // OUTPUTS, J[at.THREADS]
    first, last = units * thread // threads * OUTPUTS, units * (thread + 1) // threads * OUTPUTS
    if thread == threads - 1:
        last = outputs
    multiply(longs_at(linear)[at.PRODUCT], linear, inputs, first, last, rows, J[at.STEPS], count, result, stride)
    return first, last


@compiled()
def mapped(
    job: int,
    thread: int,
    layer: int,
    linear: int,
    read: int,
    given: int,
    inputs: int,
    outputs: int,
    count: int,
    result: int,
    stride: int,
) -> tuple[int, int]:
    """`shared` with one of a layer's linear layers, of rows that are ``read``, and as floats ``given``. In rows of
    streams there may be an adapter beside it."""
    J = longs_at(job)
    table = J[at.LAYER_TABLE] + 8 * (at.LAYER * layer + linear)
    first, last = shared(job, thread, table, read, reach(inputs, J[at.FORM]), outputs, count, result, stride)
    if J[at.STREAM_ROWS] and J[at.RANK]:
        adapted(job, thread, layer, linear, given, inputs, first, last, outputs, count, result, stride)
    return first, last


@native(MINE)
def forward(job: int, thread: int) -> None:
    """Layers ``FIRST .. LAST`` of all rows, and with ``HEAD`` the logits of the chosen rows behind the last layer."""
    J = longs_at(job)
    threads, counter, count, form = J[at.THREADS], J[at.MEETING], J[at.COUNT], J[at.FORM]
    width, heads, groups, size, inner = J[at.WIDTH], J[at.HEADS], J[at.SHARED], J[at.SIZE], J[at.INNER]
    line, pending, met, mixed = (heads + 2 * groups) * size, J[at.PENDING], 0, heads * size
    gate, up = J[at.GATE], J[at.UP]
    choice = longs_at(J[at.CHOICE])
    normed, mixes, raised = J[at.NORMED], J[at.MIXED], gate
    if form != at.FLOATS:
        normed = mixes = raised = J[at.PREPARED]
    for layer in range(J[at.FIRST], J[at.LAST]):
        L, N = (
            longs_at(J[at.LAYER_TABLE] + 8 * at.LAYER * layer),
            doubles_at(J[at.LAYER_NUMBERS] + 8 * at.NUMBERS * layer),
        )
        read, given, reads = normed, J[at.NORMED], width
        if J[at.GIVEN] and layer == 0:
            given, reads = J[at.GIVEN], J[at.GIVEN_WIDTH]
            if form == at.FLOATS:
                read = given
            else:
                for row in range(thread, count, threads):
                    prepared(job, given + 4 * row * reads, reads, row, form)
                met = meet(counter, threads, met)
        else:
            for row in range(thread, count, threads):
                entered(job, row, L[at.BEFORE], N[at.EPS_BEFORE], pending, form)
            met = meet(counter, threads, met)
        place = J[at.PROJECTED]
        mapped(job, thread, layer, at.QUERY, read, given, reads, heads * size, count, place, line)
        place += 4 * heads * size
        mapped(job, thread, layer, at.KEY, read, given, reads, groups * size, count, place, line)
        place += 4 * groups * size
        mapped(job, thread, layer, at.VALUE, read, given, reads, groups * size, count, place, line)
        met = meet(counter, threads, met)
        for item in range(thread, count * groups, threads):
            written(job, layer, item // groups, item % groups, thread)
        ends = J[at.HEAD] != 0 and layer == J[at.LAYERS] - 1
        if ends and J[at.CHOSEN] == 0:
            return
        met = meet(counter, threads, met)
        active = J[at.CHOSEN] if ends else count
        block = max(1, min(together(heads // groups), active * groups // threads))
        for item in range(thread, (active + block - 1) // block * groups, threads):
            row = item // groups * block
            attended(job, layer, row, min(active, row + block), ends, item % groups, thread)
        if active < count and thread == 0:
            for row in range(active):
                moved(job, choice[row], row)
        count = active
        met = meet(counter, threads, met)
        if form != at.FLOATS:
            for row in range(thread, count, threads):
                prepared(job, J[at.MIXED] + 4 * row * mixed, mixed, row, form)
            met = meet(counter, threads, met)
        mapped(job, thread, layer, at.PROJECT, mixes, J[at.MIXED], mixed, width, count, J[at.OUT], width)
        met = meet(counter, threads, met)
        for row in range(thread, count, threads):
            entered(job, row, L[at.BETWEEN], N[at.EPS_BETWEEN], 1, form)
        met = meet(counter, threads, met)
        first, last = mapped(job, thread, layer, at.GATED, normed, J[at.NORMED], width, inner, count, gate, inner)
        mapped(job, thread, layer, at.RAISED, normed, J[at.NORMED], width, inner, count, up, inner)
        for row in range(count):
            gated(gate + 4 * row * inner, up + 4 * row * inner, first, last)
        met = meet(counter, threads, met)
        if form != at.FLOATS:
            for row in range(thread, count, threads):
                prepared(job, gate + 4 * row * inner, inner, row, form)
            met = meet(counter, threads, met)
        mapped(job, thread, layer, at.LOWERED, raised, gate, inner, width, count, J[at.OUT], width)
        met = meet(counter, threads, met)
        pending = 1
    norm = J[at.NORM] if J[at.HEAD] else 0
    for row in range(thread, count, threads):
        entered(job, row, norm, double_of(J[at.EPS]), pending, J[at.HEAD_FORM])
    met = meet(counter, threads, met)
    if norm:
        outputs, head = J[at.VOCABULARY], job + 8 * at.UNEMBEDDING
        shared(job, thread, head, normed, reach(width, J[at.HEAD_FORM]), outputs, count, J[at.LOGITS], outputs)


@native(MINE)
def product(job: int, thread: int) -> None:
    """The head's product alone, of rows that are prepared, or of `STATES`, which are floats."""
    J = longs_at(job)
    threads, form, width = J[at.THREADS], J[at.FORM], J[at.WIDTH]
    if J[at.STATES]:
        for row in range(thread, J[at.COUNT], threads):
            prepared(job, J[at.STATES] + 4 * row * width, width, row, form)
        meet(J[at.MEETING], threads, 0)
    linear, outputs = job + 8 * at.UNEMBEDDING, J[at.VOCABULARY]
    inputs = reach(width, form)
    shared(job, thread, linear, J[at.PREPARED], inputs, outputs, J[at.COUNT], J[at.LOGITS], outputs)
