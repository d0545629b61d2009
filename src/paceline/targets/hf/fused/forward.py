"""A whole forward as one function, which some threads run side by side: each takes its share of every stage and waits
for the others before the next."""

from __future__ import annotations

from paceline.targets.hf.fused import layout as at
from paceline.targets.hf.fused.stages import attended, entered, gated, moved, rounded, written
from paceline.targets.hf.fused.vector import add, compiled, double_of, doubles_at, load, longs_at, pause, tile, yields

SPINS = 2000
"""Looks at a counter before the processor is left to others."""
OUTPUTS = 4
"""Outputs of a weight that are computed together."""
FOUR, PAIR, ALONE, ONE = tile(4, 2), tile(2, OUTPUTS), tile(1, OUTPUTS), tile(1, 1)


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
def products(
    weight: int,
    inputs: int,
    first: int,
    last: int,
    scales: int,
    bias: int,
    shorts: int,
    steps: int,
    count: int,
    result: int,
    stride: int,
) -> None:
    """Outputs ``first .. last`` of so many rows. A weight is read once: all rows take a few of its outputs."""
    output = first
    while output + OUTPUTS <= last:
        place, scale, to = weight + output * inputs, scales + 4 * output, result + 4 * output
        more, second, row = 0, 0, 0
        if bias:
            more, second = bias + 4 * output, bias + 4 * output + 8
        while row < count:
            rows, step, into = shorts + 2 * row * inputs, steps + 4 * row, to + 4 * row * stride
            if row + 4 <= count:
                FOUR(place, rows, inputs, scale, step, more, into, stride)
                FOUR(place + 2 * inputs, rows, inputs, scale + 8, step, second, into + 8, stride)
                row += 4
            elif row + 2 <= count:
                PAIR(place, rows, inputs, scale, step, more, into, stride)
                row += 2
            else:
                ALONE(place, rows, inputs, scale, step, more, into, stride)
                row += 1
        output += OUTPUTS
    while output < last:
        more = bias + 4 * output if bias else 0
        for row in range(count):
            rows, into = shorts + 2 * row * inputs, result + 4 * (row * stride + output)
            ONE(weight + output * inputs, rows, inputs, scales + 4 * output, steps + 4 * row, more, into, stride)
        output += 1


@compiled()
def shared_product(
    job: int, thread: int, linear: int, inputs: int, outputs: int, count: int, result: int, stride: int
) -> tuple[int, int]:
    """This thread's outputs of a linear layer, whose weight, scales and bias stand at an address; which they were."""
    J, L = longs_at(job), longs_at(linear)
    units, threads = outputs // OUTPUTS, J[at.THREADS]
    first, last = units * thread // threads * OUTPUTS, units * (thread + 1) // threads * OUTPUTS
    if thread == threads - 1:
        last = outputs
    products(L[0], inputs, first, last, L[1], L[2], J[at.SHORTS], J[at.STEPS], count, result, stride)
    return first, last


@compiled()
def forward(job: int, thread: int) -> None:
    """Layers ``FIRST .. LAST`` of all rows, and with ``HEAD`` the logits of the chosen rows behind the last layer."""
    J = longs_at(job)
    threads, counter, count = J[at.THREADS], J[at.MEETING], J[at.COUNT]
    width, heads, shared, size, inner = J[at.WIDTH], J[at.HEADS], J[at.SHARED], J[at.SIZE], J[at.INNER]
    line, pending, met = (heads + 2 * shared) * size, J[at.PENDING] != 0, 0
    shorts, steps, gate, up = J[at.SHORTS], J[at.STEPS], J[at.GATE], J[at.UP]
    choice = longs_at(J[at.CHOICE])
    for layer in range(J[at.FIRST], J[at.LAST]):
        table = J[at.LAYER_TABLE] + 8 * at.LAYER * layer
        L, N = longs_at(table), doubles_at(J[at.LAYER_NUMBERS] + 8 * at.NUMBERS * layer)
        for row in range(thread, count, threads):
            entered(job, row, L[at.BEFORE], N[at.EPS_BEFORE], pending)
        met = meet(counter, threads, met)
        place = J[at.PROJECTED]
        shared_product(job, thread, table + 8 * at.QUERY, width, heads * size, count, place, line)
        place += 4 * heads * size
        shared_product(job, thread, table + 8 * at.KEY, width, shared * size, count, place, line)
        place += 4 * shared * size
        shared_product(job, thread, table + 8 * at.VALUE, width, shared * size, count, place, line)
        met = meet(counter, threads, met)
        for item in range(thread, count * shared, threads):
            written(job, layer, item // shared, item % shared, thread)
        ends = J[at.HEAD] != 0 and layer == J[at.LAYERS] - 1
        if ends and J[at.CHOSEN] == 0:
            return
        met = meet(counter, threads, met)
        active = J[at.CHOSEN] if ends else count
        for item in range(thread, active * shared, threads):
            row = item // shared
            attended(job, layer, choice[row] if ends else row, row, item % shared, thread)
        met = meet(counter, threads, met)
        for row in range(thread, active, threads):
            rounded(
                J[at.MIXED] + 4 * row * heads * size, heads * size, shorts + 2 * row * heads * size, steps + 4 * row
            )
        if active < count and thread == 0:
            for row in range(active):
                moved(job, choice[row], row)
        count = active
        met = meet(counter, threads, met)
        shared_product(job, thread, table + 8 * at.PROJECT, heads * size, width, count, J[at.OUT], width)
        met = meet(counter, threads, met)
        for row in range(thread, count, threads):
            entered(job, row, L[at.BETWEEN], N[at.EPS_BETWEEN], True)
        met = meet(counter, threads, met)
        first, last = shared_product(job, thread, table + 8 * at.GATED, width, inner, count, gate, inner)
        shared_product(job, thread, table + 8 * at.RAISED, width, inner, count, up, inner)
        for row in range(count):
            gated(gate + 4 * row * inner, up + 4 * row * inner, first, last)
        met = meet(counter, threads, met)
        for row in range(thread, count, threads):
            rounded(gate + 4 * row * inner, inner, shorts + 2 * row * inner, steps + 4 * row)
        met = meet(counter, threads, met)
        shared_product(job, thread, table + 8 * at.LOWERED, inner, width, count, J[at.OUT], width)
        met = meet(counter, threads, met)
        pending = True
    norm = J[at.NORM] if J[at.HEAD] else 0
    for row in range(thread, count, threads):
        entered(job, row, norm, double_of(J[at.EPS]), pending)
    met = meet(counter, threads, met)
    if norm:
        shared_product(job, thread, job + 8 * at.WEIGHT, width, J[at.VOCABULARY], count, J[at.LOGITS], J[at.VOCABULARY])


@compiled()
def work(job: int, thread: int) -> None:
    """A thread's part of a job."""
    J = longs_at(job)
    if J[at.KIND] == at.FORWARD:
        forward(job, thread)
    else:
        outputs = J[at.VOCABULARY]
        shared_product(job, thread, job + 8 * at.WEIGHT, J[at.WIDTH], outputs, J[at.COUNT], J[at.LOGITS], outputs)
