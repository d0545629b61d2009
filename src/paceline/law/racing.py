"""The race of a row on a GPU in three kernels, written in Triton; `contenders` says what they compute and why it
suffices. Numbers are float64, and sums do not occur, so the order of programs changes nothing but that of the tokens.
"""

import triton
import triton.language as tl

ROUNDS = tl.constexpr(10)
ALL = tl.constexpr(4294967296.0)


# fmt: off
@triton.jit
def _words(ids, index, sample, stream, key0, key1):
# fmt: on
    """The upper 32 of the public bits of tokens, as int64."""
    c0 = (ids >> 1).to(tl.uint32)
    c1 = tl.zeros_like(c0) + index.to(tl.uint32)
    c2 = tl.zeros_like(c0) + sample.to(tl.uint32)
    c3 = tl.zeros_like(c0) + stream.to(tl.uint32)
    k0, k1 = tl.zeros_like(c0) + key0.to(tl.uint32), tl.zeros_like(c0) + key1.to(tl.uint32)
    m0, m1 = tl.zeros_like(c0) + 0xD2511F53, tl.zeros_like(c0) + 0xCD9E8D57
    s0, s1 = tl.zeros_like(c0) + 0x9E3779B9, tl.zeros_like(c0) + 0xBB67AE85
    for _ in tl.static_range(ROUNDS):
        high0, low0 = tl.umulhi(c0, m0), c0 * m0
        high1, low1 = tl.umulhi(c2, m1), c2 * m1
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + s0, k1 + s1
    return tl.where(ids % 2 == 0, c1, c3).to(tl.int64)


@triton.jit
def _setting(numbers, place):
    """Of all rows, by place: the temperature, min-p, and 1 + the margin of rounding."""
    return tl.load(numbers + place).to(tl.float64, bitcast=True)


@triton.jit
def _noise(numbers, row):
    """The counter words and keys of a row's place."""
    at = numbers + 3 + 5 * row
    return tl.load(at), tl.load(at + 1), tl.load(at + 2), tl.load(at + 3), tl.load(at + 4)


@triton.jit(do_not_specialize=["size", "blocks"])
def block_maxima(rows, maxima, size, blocks, BLOCK: tl.constexpr, MANY: tl.constexpr):
    """The greatest score of every block; infinite where one is not a number. A program takes ``MANY`` blocks."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1) * MANY + tl.arange(0, MANY)
    ids = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    scores = tl.load(rows + row * size + ids, mask=ids < size, other=float("-inf")).to(tl.float32)
    scores = tl.where(scores == scores, scores, float("inf"))
    tl.store(maxima + row * blocks + block, tl.max(scores, 1), mask=block < blocks)


# fmt: off
@triton.jit(do_not_specialize=["size", "blocks", "line"])
def bounds(
    rows, maxima, numbers, kth, found, limits, size, blocks, line,
    BLOCK: tl.constexpr, PAD: tl.constexpr, HEAVY: tl.constexpr, CUT: tl.constexpr,
):
# fmt: on
    """Of a row the greatest score and the bound on the time of the winner, by the blocks with the greatest scores."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.arange(0, PAD)
    left = tl.load(maxima + row * blocks + block, mask=block < blocks, other=float("-inf"))
    peak = tl.max(left, 0)
    index, sample, stream, key0, key1 = _noise(numbers, row)
    temperature, least, wider = _setting(numbers, 0), _setting(numbers, 1), _setting(numbers, 2)
    bound = tl.full([BLOCK], float("inf"), tl.float64)
    for _ in tl.static_range(HEAVY):
        heavy = tl.argmax(left, 0)
        left = tl.where(block == heavy, float("-inf"), left)
        ids = heavy * BLOCK + tl.arange(0, BLOCK)
        scores = tl.load(rows + row * size + ids, mask=ids < size, other=float("-inf")).to(tl.float32)
        weights = tl.exp((scores.to(tl.float64) - peak.to(tl.float64)) / temperature)
        certain = ((weights > least * wider) | (scores == peak)) & (ids < size)
        if CUT:
            certain = certain & (scores >= tl.load(kth + row).to(tl.float32))
        words = _words(ids, index, sample, stream, key0, key1)
        times = -tl.log(words.to(tl.float64) / ALL) / weights
        bound = tl.minimum(bound, tl.where(certain, times, float("inf")))
    limit = tl.min(bound, 0)
    tl.store(limits + row, limit)
    shown = tl.where(limit == float("inf"), float("-inf"), peak.to(tl.float64))
    tl.store(found + row * line, shown.to(tl.int64, bitcast=True))
    tl.store(found + row * line + 1, 0)


# fmt: off
@triton.jit(do_not_specialize=["size", "blocks", "line", "room"])
def reached(
    rows, maxima, numbers, kth, found, limits, size, blocks, line, room,
    BLOCK: tl.constexpr, MANY: tl.constexpr, CUT: tl.constexpr,
):
# fmt: on
    """Appends to each row's line the tokens that can win: how many, their ids, then their scores. A program takes
    ``MANY`` blocks."""
    row = tl.program_id(0).to(tl.int64)
    here = found + row * line
    peak = tl.load(here).to(tl.float64, bitcast=True)
    limit = tl.load(limits + row)
    block = tl.program_id(1) * MANY + tl.arange(0, MANY)
    greatest = tl.load(maxima + row * blocks + block, mask=block < blocks, other=float("-inf")).to(tl.float64)
    weights = tl.exp((greatest - peak) / _setting(numbers, 0))
    chances = tl.exp(-limit * weights * _setting(numbers, 2))
    least = tl.maximum(tl.ceil(chances * ALL - 2), 0.0)
    least = tl.where(block < blocks, least, ALL)
    if (tl.min(least, 0) < ALL) & (limit < float("inf")):
        index, sample, stream, key0, key1 = _noise(numbers, row)
        ids = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
        scores = tl.load(rows + row * size + ids, mask=ids < size, other=float("-inf")).to(tl.float64)
        can = (_words(ids, index, sample, stream, key0, key1).to(tl.float64) >= least[:, None]) & (ids < size)
        if CUT:
            can = can & (scores >= tl.load(kth + row).to(tl.float64))
        can = tl.reshape(can.to(tl.int32), [MANY * BLOCK])
        count = tl.sum(can, 0)
        if count > 0:
            first = tl.atomic_add(here + 1, count.to(tl.int64))
            place = first + tl.cumsum(can, 0) - 1
            fits = (can != 0) & (place < room)
            tl.store(here + 2 + place, tl.reshape(ids, [MANY * BLOCK]).to(tl.int64), mask=fits)
            bits = tl.reshape(scores, [MANY * BLOCK]).to(tl.int64, bitcast=True)
            tl.store(here + 2 + room + place, bits, mask=fits)


@triton.jit(do_not_specialize=["size", "row", "ahead"])
def gumbel(ids, numbers, result, size, row, ahead, BLOCK: tl.constexpr):
    """Minus the logarithms of the exponentials of tokens ``ahead`` places behind a text's."""
    text = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tokens = tl.load(ids + text * size + place, mask=place < size, other=0)
    at = numbers + text * row
    words = _words(tokens, tl.load(at) + ahead, tl.load(at + 1), tl.load(at + 2), tl.load(at + 3), tl.load(at + 4))
    uniforms = (words.to(tl.float64) + 0.5) / ALL
    tl.store(result + text * size + place, (-tl.log(-tl.log(uniforms))).to(tl.float32), mask=place < size)
