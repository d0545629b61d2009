"""The kernels of a layer beside attention and its products with weights. Each rounds where torch's operations round, so
that in any type its results are theirs but for the order of sums."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def normed(x, weight, width, eps):
    """The root-mean-square norm of a row whose places beyond ``width`` are 0, as a llama's module computes it."""
    wide = x.to(tl.float32)
    wide = wide * tl.rsqrt(tl.sum(wide * wide) / width + eps)
    return (wide.to(x.dtype).to(tl.float32) * weight.to(tl.float32)).to(x.dtype)


@triton.jit
def add_norm(
    states, more, weight, total, result, width, eps, states_row, more_row, ADDS: tl.constexpr, PAD: tl.constexpr
):
    """``total = states + more`` where there is more, and the norm of it; one program for each row."""
    row = tl.program_id(0).to(tl.int64)
    places = tl.arange(0, PAD)
    inside = places < width
    x = tl.load(states + row * states_row + places, mask=inside, other=0.0)
    if ADDS:
        y = tl.load(more + row * more_row + places, mask=inside, other=0.0)
        x = (x.to(tl.float32) + y.to(tl.float32)).to(x.dtype)
        tl.store(total + row * width + places, x, mask=inside)
    scale = tl.load(weight + places, mask=inside, other=0.0)
    tl.store(result + row * width + places, normed(x, scale, width, eps), mask=inside)


@triton.jit
def gate(gates, ups, result, width, gates_row, ups_row, BLOCK: tl.constexpr):
    """``silu(gate) * up``; one program for a piece of each row."""
    row = tl.program_id(0).to(tl.int64)
    places = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = places < width
    x = tl.load(gates + row * gates_row + places, mask=inside, other=0.0)
    y = tl.load(ups + row * ups_row + places, mask=inside, other=0.0)
    wide = x.to(tl.float32)
    bent = (wide / (1 + tl.exp(-wide))).to(x.dtype)
    tl.store(result + row * width + places, (bent.to(tl.float32) * y.to(tl.float32)).to(x.dtype), mask=inside)


@triton.jit
def rotate_and_write(
    together,
    cosines,
    sines,
    query_norm,
    key_norm,
    query_eps,
    key_eps,
    queries,
    keys,
    values,
    places,
    together_row,
    n,
    key_slot,
    key_head,
    value_slot,
    value_head,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    PAD: tl.constexpr,
    NORMED: tl.constexpr,
):
    """Norms and rotates queries and keys, and writes keys and values to their slots; a program for each head of a
    row. ``together`` holds the row's queries, keys and values one behind the other. Sines of the first half of a head
    are negated."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    slot, place = row // n, tl.load(places + row)
    d = tl.arange(0, PAD)
    inside = d < WIDTH
    here = together + row * together_row + head * WIDTH
    x = tl.load(here + d, mask=inside, other=0.0)
    if head >= HEADS + KV_HEADS:
        where = values + slot * value_slot + (head - HEADS - KV_HEADS) * value_head + place * WIDTH
        tl.store(where + d, x, mask=inside)
    else:
        partner = tl.where(d < WIDTH // 2, d + WIDTH // 2, d - WIDTH // 2)
        y = tl.load(here + partner, mask=inside, other=0.0)
        if NORMED:
            eps = tl.where(head < HEADS, query_eps, key_eps)
            weight = query_norm if head < HEADS else key_norm
            x = normed(x, tl.load(weight + d, mask=inside, other=0.0), WIDTH, eps)
            y = normed(y, tl.load(weight + partner, mask=inside, other=0.0), WIDTH, eps)
        c = tl.load(cosines + row * WIDTH + d, mask=inside, other=0.0)
        s = tl.load(sines + row * WIDTH + d, mask=inside, other=0.0)
        kept = (x.to(tl.float32) * c.to(tl.float32)).to(x.dtype)
        turned = (y.to(tl.float32) * s.to(tl.float32)).to(x.dtype)
        z = (kept.to(tl.float32) + turned.to(tl.float32)).to(x.dtype)
        if head < HEADS:
            tl.store(queries + (row * HEADS + head) * WIDTH + d, z, mask=inside)
        else:
            tl.store(keys + slot * key_slot + (head - HEADS) * key_head + place * WIDTH + d, z, mask=inside)


@triton.jit
def write(
    new_keys,
    new_values,
    keys,
    values,
    places,
    n,
    new_key_head,
    new_key_row,
    new_value_head,
    new_value_row,
    key_slot,
    key_head,
    value_slot,
    value_head,
    WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    PAD: tl.constexpr,
):
    """Writes keys and values to their slots; a program for each head of a row."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    slot, place = row // n, tl.load(places + row)
    d = tl.arange(0, PAD)
    x = tl.load(new_keys + row * new_key_row + head * new_key_head + d, mask=d < WIDTH, other=0.0)
    tl.store(keys + slot * key_slot + head * key_head + place * WIDTH + d, x, mask=d < WIDTH)
    y = tl.load(new_values + row * new_value_row + head * new_value_head + d, mask=d < VALUE_WIDTH, other=0.0)
    tl.store(values + slot * value_slot + head * value_head + place * VALUE_WIDTH + d, y, mask=d < VALUE_WIDTH)
