"""Attention of a few rows over long slots. The text is split among programs, so that one sequence keeps a whole GPU
busy; what a row sees is found from its length and its ancestors, without a mask.

A program reads a part of the text for up to ``ROWS`` rows of one head, which are the rows of all query heads that share
its keys. It reads as far as the text goes, whatever the slot has room for, so a recording serves every length.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _visible(
    row, live, at, slot, place, start, inside, tentative, seen, window, TENTATIVE: tl.constexpr, WINDOW: tl.constexpr
):
    """``[rows, keys]``: which keys rows see. All of the text, of the draft their ancestors, both within the window."""
    behind = place - start
    drafted = inside & (behind >= 0) & (behind < TENTATIVE)
    ancestors = tl.load(
        seen + row[:, None] * TENTATIVE + behind[None, :], mask=live[:, None] & drafted[None, :], other=0
    )
    shown = ancestors != 0
    text = (behind < 0)[None, :] & live[:, None]
    if WINDOW:
        theirs = tl.load(tentative + slot * TENTATIVE + behind, mask=drafted, other=0)
        shown = shown & (at[:, None] - theirs[None, :] < window)
        text = text & (at[:, None] - place[None, :] < window)
    return shown | text


# fmt: off
@triton.jit(do_not_specialize=["n", "window"])
def attend(
    queries, keys, values, result, parts, sums,
    committed, fresh, tentative, seen, positions, sinks,
    scale, softcap, window, n,
    query_row, query_head, key_slot, key_head, value_slot, value_head,
    GROUP: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, PAD: tl.constexpr, VALUE_PAD: tl.constexpr,
    TENTATIVE: tl.constexpr, SPLITS: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, SINKS: tl.constexpr,
):
# fmt: on
    """``result`` ``[rows, heads, value width]`` where the text is not split; else ``parts`` and their ``sums``."""
    head, kv_heads = tl.program_id(1).to(tl.int64), tl.num_programs(1)
    slot, split = (tl.program_id(2) // SPLITS).to(tl.int64), tl.program_id(2) % SPLITS
    of_head = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    live = of_head < GROUP * n
    row, query = slot * n + of_head % n, head * GROUP + of_head // n
    d, e = tl.arange(0, PAD), tl.arange(0, VALUE_PAD)
    start = tl.load(committed + slot)
    end = start + tl.load(fresh + slot)
    at = tl.load(positions + row, mask=live, other=0)
    q = tl.load(
        queries + row[:, None] * query_row + query[:, None] * query_head + d[None, :],
        mask=live[:, None] & (d < WIDTH)[None, :],
        other=0.0,
    )
    first = start * 0
    if WINDOW:
        first = tl.maximum(start - window + 1, 0) // KEYS
    blocks = tl.cdiv(end, KEYS)
    share = tl.cdiv(tl.maximum(blocks - first, 0), SPLITS)
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, VALUE_PAD], tl.float32)
    for block in range(first + split * share, tl.minimum(first + (split + 1) * share, blocks)):
        place = block * KEYS + tl.arange(0, KEYS)
        inside = place < end
        k = tl.load(
            keys + slot * key_slot + head * key_head + place[None, :] * WIDTH + d[:, None],
            mask=inside[None, :] & (d < WIDTH)[:, None],
            other=0.0,
        )
        scores = tl.dot(q, k, input_precision="ieee") * scale
        if SOFTCAP:
            scores = softcap * (1 - 2 / (tl.exp(2 * scores / softcap) + 1))
        shown = _visible(
            row, live, at, slot, place, start, inside, tentative, seen, window, TENTATIVE=TENTATIVE, WINDOW=WINDOW
        )
        scores = tl.where(shown, scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp(scores - base[:, None])
        fade = tl.exp(peak - base)
        v = tl.load(
            values + slot * value_slot + head * value_head + place[:, None] * VALUE_WIDTH + e[None, :],
            mask=inside[:, None] & (e < VALUE_WIDTH)[None, :],
            other=0.0,
        )
        total = total * fade + tl.sum(weights, 1)
        mixed = mixed * fade[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        peak = higher
    kept = live[:, None] & (e < VALUE_WIDTH)[None, :]
    if SPLITS == 1:
        if SINKS:
            sink = tl.load(sinks + query, mask=live, other=0.0).to(tl.float32)
            higher = tl.maximum(peak, sink)
            fade = tl.exp(peak - higher)
            total = total * fade + tl.exp(sink - higher)
            mixed = mixed * fade[:, None]
        mixed = mixed / tl.where(total == 0, 1.0, total)[:, None]
        where = result + (row * kv_heads * GROUP + query)[:, None] * VALUE_WIDTH + e[None, :]
        tl.store(where, mixed.to(result.dtype.element_ty), mask=kept)
    else:
        part = (row * kv_heads * GROUP + query) * SPLITS + split
        tl.store(parts + part[:, None] * VALUE_WIDTH + e[None, :], mixed, mask=kept)
        tl.store(sums + 2 * part, peak, mask=live)
        tl.store(sums + 2 * part + 1, total, mask=live)


@triton.jit
def join(
    parts,
    sums,
    result,
    sinks,
    heads,
    VALUE_WIDTH: tl.constexpr,
    VALUE_PAD: tl.constexpr,
    SPLITS: tl.constexpr,
    SINKS: tl.constexpr,
):
    """The mean of the parts of a text, weighted by their sums; a program for each head of a row."""
    number = tl.program_id(0).to(tl.int64)
    split, e = tl.arange(0, SPLITS), tl.arange(0, VALUE_PAD)
    part = number * SPLITS + split
    peaks, totals = tl.load(sums + 2 * part), tl.load(sums + 2 * part + 1)
    peak = tl.max(peaks, 0)
    sink = float("-inf")
    if SINKS:
        sink = tl.load(sinks + number % heads).to(tl.float32)
        peak = tl.maximum(peak, sink)
    base = tl.where(peak == float("-inf"), 0.0, peak)
    shares = tl.exp(peaks - base)
    total = tl.sum(shares * totals, 0)
    if SINKS:
        total += tl.exp(sink - base)
    inside = e < VALUE_WIDTH
    mixed = tl.load(parts + part[:, None] * VALUE_WIDTH + e[None, :], mask=inside[None, :], other=0.0)
    mixed = tl.sum(mixed * shares[:, None], 0) / tl.where(total == 0, 1.0, total)
    tl.store(result + number * VALUE_WIDTH + e, mixed.to(result.dtype.element_ty), mask=inside)
