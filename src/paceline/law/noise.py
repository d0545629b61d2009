"""Random-access noise: every (seed, sample, stream, index, token) names its own fixed 64 bits.

Decoding that must give the same text with every drafter cannot draw from a generator that moves on with each
call: how often it is called depends on the draft. Here a random number is a function of what it decides
about, computed by the counter-based generator Philox4x32-10 (Salmon et al., "Parallel random numbers: as
easy as 1, 2, 3", 2011).

The layout is frozen by tests, because a change would change every seeded text::

    counter words   c0 = token id // 2    c1 = index in the sequence's own token list, prompt included
                    c2 = sample           c3 = stream + 256 turn
    key words       k0 = seed mod 2^32    k1 = seed // 2^32
    output words    r0 r1 r2 r3: token 2b takes r0 + 2^32 r1, token 2b + 1 takes r2 + 2^32 r3

A place may be drawn for several times by drafters, each draw with the next turn, from 0 on; elsewhere the turn is 0.
With *n* the upper 52 of a token's 64 bits its uniform is (n + 1/2) / 2^52: strictly between 0 and 1 and
exact in float64, so uniforms are the same bits on every machine. Exponentials pass through the platform's
logarithm, whose last bit may differ between mathematics libraries.
"""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from paceline.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

Bits = NDArray[np.uint64]
Ids = NDArray[np.int64]
Floats = NDArray[np.float64]

_ROUNDS = 10
_WORD_BITS = np.uint64(32)
_LOW_WORD = np.uint64(0xFFFFFFFF)
M0, M1 = 0xD2511F53, 0xCD9E8D57  # of c0 and of c2
_MULTIPLIERS = np.array([[M1], [M0]], dtype=np.uint64)
_ONE = np.uint64(0x3FF << 52)  # the bits of 1.0
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)

_CHUNK = 20480
"""Tokens at a time: the three work arrays ``[2, chunk / 2]`` then stay in a core's second-level cache."""

FEW = 512
"""Up to this many tokens the number of numpy calls decides the time, beyond it the amount of work: see `Lanes`."""

BLOCK = 128
"""Tokens that `Noise.reaching` compares with one number."""

_BLOCKS = 256
"""Blocks at a time: the six work arrays of `_upper_words` then stay in a core's second-level cache."""

_LANES = 32
"""Work arrays for few tokens come in multiples of this size."""

_KEPT = 16
"""Places whose public noise is kept, about the depth of a draft. At most 160 KB each."""


class Stream(IntEnum):
    """The purposes of noise, each with numbers of its own.

    ``TARGET`` is public: it decides the target's own sample, and a drafter that ranks its candidates with
    the same numbers is accepted more often without changing the text. ``ACCEPT`` and ``RESIDUAL`` are
    private to the rejection rule, which is exact only for drafts independent of its coins. ``DRAFT`` is for
    drafters that sample.
    """

    TARGET = 0
    ACCEPT = 1
    RESIDUAL = 2
    DRAFT = 3


@dataclass(frozen=True)
class Noise:
    """The noise of one sampled sequence; ``sample`` numbers several sequences with one seed."""

    seed: int
    sample: int = 0
    _recent: dict[int, tuple[int, Bits]] = field(default_factory=dict, init=False, repr=False, compare=False)
    rows: dict[int, Floats] = field(default_factory=dict, init=False, repr=False, compare=False)  # kept by `places`
    luck: dict[int, NDArray[np.float32]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**64:
            raise InputError(f"seed is {self.seed}: choose one from 0 to 2**64 - 1")
        if not 0 <= self.sample < 2**32:
            raise InputError(f"sample is {self.sample}: choose one from 0 to 2**32 - 1")

    def uniform(self, stream: Stream, index: int, ids: Ids, turn: int = 0) -> NDArray[np.float64]:
        """Uniforms in (0, 1) for the tokens ``ids``, in any order, at place ``index`` of the token list."""
        assert 0 <= index < 2**32, f"index {index} does not fit a counter word"
        assert 0 <= turn < 2**24, f"turn {turn} does not fit its share of a counter word"
        word = stream + 256 * turn
        values = np.empty(ids.size, dtype=np.float64)
        for start in range(0, ids.size, _CHUNK):
            chunk = slice(start, start + _CHUNK)
            spread(self._bits(word, index, ids[chunk]), values[chunk])
        return values

    def exponential(self, stream: Stream, index: int, ids: Ids, turn: int = 0) -> NDArray[np.float64]:
        """Unit exponentials: the token of least ``exponential / weight`` is drawn in proportion to weight."""
        row = self.rows.get(index) if stream == Stream.TARGET and turn == 0 else None
        if row is not None and ids.size and ids.max() < row.size:
            return row.take(ids)
        values = self.uniform(stream, index, ids, turn)
        np.log(values, out=values)
        return np.negative(values, out=values)

    def exponential_each(self, stream: Stream, indices: Ids, ids: Ids) -> NDArray[np.float64]:
        """`exponential` of every token at a place of its own, in one go."""
        assert not len(indices) or 0 <= indices.min() <= indices.max() < 2**32, f"{indices} do not fit a counter word"
        values = np.empty(ids.size, dtype=np.float64)
        if ids.size <= FEW:
            spread(_lanes(ids.size).bits(self, stream, indices, ids), values)
        else:
            even, odd = self._blocks(stream, indices, ids >> 1)
            spread(np.where(ids & 1, odd, even), values)
        np.log(values, out=values)
        return np.negative(values, out=values)

    def gumbel(self, index: int, ids: Ids) -> NDArray[np.float64]:
        """The public noise in the form drafters add to log-scores.

        The token of greatest ``log-probability + gumbel`` is that of least ``exponential / probability``, so
        a drafter whose scores equal the target's ranks the target's own sample first.
        """
        values = self.exponential(Stream.TARGET, index, ids)
        np.log(values, out=values)
        return np.negative(values, out=values)

    def reaching(self, index: int, least: Bits) -> Ids:
        """The ascending ids whose upper public bits are at least their block's number; every `BLOCK` ids have one."""
        found = []
        for first in range(0, len(least), _BLOCKS):
            bounds = least[first : first + _BLOCKS, None] << _WORD_BITS
            start = first * BLOCK // 2
            halves = _upper_words(self, Stream.TARGET, index, start, bounds.size * BLOCK // 2)
            for parity, words in enumerate(halves):
                reached = np.flatnonzero(words.reshape(len(bounds), -1) >= bounds)
                found.append(2 * (start + reached) + parity)
        ids = np.concatenate(found)
        ids.sort()
        return ids

    def _bits(self, stream: int, index: int, ids: Ids) -> Bits:
        """The 64 bits of each token. A block serves two, so a dense set is cut out of its whole range."""
        if ids.size <= FEW:
            return _lanes(ids.size).bits(self, stream, index, ids)
        low, high = int(ids.min()), int(ids.max())
        assert 0 <= low <= high < 2**33, f"token ids {low}..{high} do not fit a counter word"
        if 2 * ids.size <= high - low + 1:
            even, odd = self._blocks(stream, index, ids >> 1)
            return np.where(ids & 1, odd, even)
        first, bits = self._range(stream, index, low >> 1, high >> 1)
        return bits.take(ids - 2 * first)

    def _range(self, stream: int, index: int, first: int, last: int) -> tuple[int, Bits]:
        """The first block of a run that holds ``first .. last``, and its tokens' bits in order.

        Drafts of several rounds and then the target use the noise of a place, so the public noise of recent places is
        kept.
        """
        known = self._recent.get(index) if stream == Stream.TARGET else None
        if known is not None and known[0] <= first and 2 * (last + 1 - known[0]) <= known[1].size:
            return known
        even, odd = self._blocks(stream, index, np.arange(first, last + 1))
        pairs = np.empty((even.size, 2), dtype=np.uint64)
        pairs[:, 0], pairs[:, 1] = even, odd
        found = first, pairs.reshape(-1)
        if stream == Stream.TARGET:
            while len(self._recent) >= _KEPT:
                self._recent.pop(next(iter(self._recent)), None)
            self._recent[index] = found
        return found

    def _blocks(self, stream: int, index: int | Ids, blocks: Ids) -> tuple[Bits, Bits]:
        """The bits of the even and of the odd token of each block."""
        even = np.empty((2, blocks.size), dtype=np.uint64)
        even[0], even[1] = blocks, self.sample
        odd = np.empty((2, np.size(index)), dtype=np.uint64)
        odd[0], odd[1] = index, stream
        low, high = philox(even, odd, self.seed)
        high <<= _WORD_BITS
        high |= low
        return high[0], high[1]


def philox(even: Bits, odd: Bits, key: int, products: Sequence[Bits] | Bits = (), first: int = 0) -> tuple[Bits, Bits]:
    """Philox4x32-10 of counters with words (c0, c2) = ``even [2, n]``, (c1, c3) = ``odd [2, n or 1]``.

    Returns the output words in the same halves; those of the odd half carry junk above their 32 bits. A round is ::

        c0, c1, c2, c3 = high(M1 c2) ^ c1 ^ k0, low(M1 c2), high(M0 c0) ^ c3 ^ k1, low(M0 c0)

    so words sit in 64-bit lanes, the new even words come from the products of the *reversed* even words, and
    the new odd words are those products: they only meet an exclusive or, and are cut to 32 bits after it. Two arrays
    for ``products``, of which ``odd`` may be the second, save memory; then ``even`` is lost. ``first`` is a round.
    """
    if not len(products):
        even, products = even.copy(), np.empty((2, *even.shape), dtype=np.uint64)
    for turn, round_key in enumerate(_round_keys(key)[first:]):
        product = products[turn % 2]  # in turn: one is written, one is the odd words
        np.multiply(even[::-1], _MULTIPLIERS, out=product)
        np.right_shift(product, _WORD_BITS, out=even)
        even ^= odd
        even ^= round_key
        even &= _LOW_WORD
        odd = product
    return even, odd


@lru_cache(maxsize=64)
def keys_of(key: int) -> list[tuple[int, int]]:
    """Both key words of every round."""
    (first, step0), (second, step1) = zip((key % 2**32, key >> 32), _KEY_STEPS, strict=True)
    return [((first + turn * step0) % 2**32, (second + turn * step1) % 2**32) for turn in range(_ROUNDS)]


@lru_cache(maxsize=64)
def _round_keys(key: int) -> tuple[Bits, ...]:
    return tuple(np.array([[word] for word in words], np.uint64) for words in keys_of(key))


def spread(bits: Bits, values: NDArray[np.float64]) -> None:
    """Uniforms of the bits, which are spent."""
    bits >>= 12
    bits |= _ONE  # 1 + n / 2^52
    np.subtract(bits.view(np.float64), 1 - 2.0**-53, out=values)


class Lanes:
    """`philox` for few tokens, in work arrays made once. A draft needs some dozens at a time, in every round for every
    level; then a call of numpy costs more than its computation.

    The even words lie as ``[c2 | c0]`` in 64-bit lanes whose upper halves stay 0, their products as ``[p1 | p0]``, so
    all arrays are one line, which numpy walks fastest; a half of a product is its upper or lower 32 bits, read where
    they lie. A round key meets words that come from a product's upper half, the next round's key words from its lower
    half: one exclusive or brings both.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._even = np.zeros(2 * size, np.uint64)
        self._c2, self._c0 = np.split(_words(self._even)[0], 2)
        self._block = self._even.view(np.int64)[size:]
        self._multipliers = _MULTIPLIERS.repeat(size, axis=1).ravel()
        self._now, self._later = np.empty(2 * size, np.uint64), np.empty(2 * size, np.uint64)
        self._now_low, self._now_high = (np.split(half, 2) for half in _words(self._now))
        (self._c1, self._c3), self._later_high = (np.split(half, 2) for half in _words(self._later))
        self._bits = np.empty(2 * size, np.uint64)
        low, high = _words(self._bits)
        self._r0, self._r1, self._r2, self._r3 = low[::2], high[::2], low[1::2], high[1::2]
        self._pairs = np.arange(0, 2 * size, 2)

    def bits(self, noise: Noise, stream: int, index: int | Ids, ids: Ids) -> Bits:
        """The 64 bits of each token, at one place or each at its own."""
        count = ids.size
        merged = int(np.bitwise_or.reduce(ids))
        assert 0 <= merged < 2**33, f"token ids {ids.min()}..{ids.max()} do not fit a counter word"
        np.right_shift(ids, 1, out=self._block[:count])
        self._c2.fill(noise.sample)
        self._c3.fill(stream)
        if isinstance(index, int):
            self._c1.fill(index)
        else:
            self._c1[:count] = index
        self._turn(noise.seed)
        chosen = ids & 1
        chosen += self._pairs[:count]
        return self._bits.take(chosen)

    def _turn(self, key: int) -> None:
        """All rounds, two at a time: the products are written in turn, and the other ones' lower halves are the odd
        words."""
        multiply, mix, multipliers = np.multiply, np.bitwise_xor, self._multipliers
        even, c0, c2, c1, c3 = self._even, self._c0, self._c2, self._c1, self._c3
        now, (low1, low0), (high1, high0) = self._now, self._now_low, self._now_high
        later, (later1, later0) = self._later, self._later_high
        keys = _key_lanes(key, self.size)
        for round_key in keys:
            multiply(even, multipliers, now)
            mix(now, round_key, now)
            mix(high1, c1, c0)
            mix(high0, c3, c2)
            multiply(even, multipliers, later)
            if round_key is keys[-1]:
                break
            mix(later1, low1, c0)
            mix(later0, low0, c2)
        mix(later1, low1, self._r0)
        mix(later0, low0, self._r2)
        self._r1[...], self._r3[...] = c1, c3


def _words(lanes: Bits) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """The lower and the upper halves of 64-bit lanes, as they lie in this machine's memory."""
    words = lanes.view(np.uint32)
    return (words[::2], words[1::2]) if sys.byteorder == "little" else (words[1::2], words[::2])


@lru_cache(maxsize=64)
def _key_lanes(key: int, size: int) -> tuple[Bits, ...]:
    """The keys of every two rounds for all lanes, the first round's in their upper halves."""
    rounds = _round_keys(key)
    pairs = zip(rounds[::2], rounds[1::2], strict=True)
    return tuple(((first << _WORD_BITS) | second).repeat(size, axis=1).ravel() for first, second in pairs)


class _Made(threading.local):
    """The work arrays of a thread."""

    def __init__(self) -> None:
        self.lanes: dict[int, Lanes] = {}

    @cached_property
    def upper(self) -> Bits:
        return np.empty((6, _BLOCKS * BLOCK // 2), np.uint64)

    @cached_property
    def blocks(self) -> Bits:
        return np.arange(_BLOCKS * BLOCK // 2, dtype=np.uint64)


_made = _Made()


def _lanes(count: int) -> Lanes:
    size = max(1, -(-count // _LANES)) * _LANES
    found = _made.lanes.get(size)
    if found is None:
        found = _made.lanes[size] = Lanes(size)
    return found


def _upper_words(noise: Noise, stream: int, index: int, start: int, count: int) -> tuple[Bits, Bits]:
    """`philox` for the tokens of ``count`` blocks from ``start`` on, as far as their upper words need it: those of the
    even and of the odd tokens, in the upper halves of 64-bit lanes.

    Words that are the same for all tokens are computed once: of the first two rounds that is half.
    """
    c0, c2, product2, c1, product0, c3 = _made.upper[:, :count]
    keys = keys_of(noise.seed)
    (k0, k1), (k2, k3) = keys[:2]
    np.multiply(_made.blocks[:count] + np.uint64(start), M0, out=c3)
    np.bitwise_xor(np.right_shift(c3, _WORD_BITS, out=c2), stream ^ k1, out=c2)
    same1 = M1 * noise.sample
    same0 = M0 * (same1 >> 32 ^ index ^ k0)
    np.multiply(c2, M1, out=c1)
    np.bitwise_xor(np.right_shift(c1, _WORD_BITS, out=c0), same1 % 2**32 ^ k2, out=c0)
    np.bitwise_xor(c3, same0 >> 32 ^ k3, out=c2)
    c2 &= _LOW_WORD
    c3.fill(same0 % 2**32)
    for k0, k1 in keys[2:-1]:
        np.multiply(c2, M1, out=product2)
        np.multiply(c0, M0, out=product0)
        _mixed(product2, c1, k0, c0)
        _mixed(product0, c3, k1, c2)
        c1, product2, c3, product0 = product2, c1, product0, c3
    np.left_shift(np.multiply(c2, M1, out=product2), _WORD_BITS, out=product2)
    np.left_shift(np.multiply(c0, M0, out=product0), _WORD_BITS, out=product0)
    return product2, product0


def _mixed(product: Bits, odd: Bits, key: int, word: Bits) -> None:
    """A round's new even word, of the upper half of a product."""
    np.right_shift(product, _WORD_BITS, out=word)
    word ^= odd
    word ^= key
    word &= _LOW_WORD
