"""The public noise of whole places, drawn for several places together.

A text that is sampled needs the exponentials of its whole vocabulary at one place after the other. For one place of a
small vocabulary the calls of numpy take as long as the computation, so those of the next places are drawn with it: the
text goes on to them. They are kept, and drafts that ask for the noise of a few tokens there get it from here, too.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from paceline.law.noise import M0, M1, Bits, Floats, Ids, Noise, Stream, keys_of, philox, spread

Coins = tuple[Noise, int]
"""The noise that decides, and the place in the token list."""

Luck = NDArray[np.float32]

LOW = 0xFFFFFFFF
"""The lower half of a lane of 64 bits."""
AHEAD = 1 << 15
"""Tokens, of this and the next places, that are drawn together."""
LEAD = 4
"""So many places, this one included, are there before a draft asks for them."""
KEPT = 4
"""Places before this one that are kept."""


def luck_of(noise: Noise, index: int, size: int) -> Luck:
    """Minus the logarithms of the public exponentials of the tokens ``0 .. size - 1`` at a place, in float32.

    They are kept, and the exponentials with them, so both are read-only. Those of the next places are drawn as well,
    before the next draft needs them."""
    count = max(1, AHEAD // size)
    for place in range(index, min(index + min(count, LEAD), 2**32)):
        if (known := noise.luck.get(place)) is None or known.size < size:
            for kept in (noise.rows, noise.luck):
                for old in [old for old in kept if not index - KEPT <= old < place]:
                    kept.pop(old, None)
            _draw(noise, range(place, min(place + count, 2**32)), size)
    return noise.luck[index][:size]


def _draw(noise: Noise, places: range, size: int) -> None:
    """Draw these places and keep them."""
    rows = _drawn(noise, np.array(places, np.uint64), -(-size // 2))
    luck = rows.astype(np.float32)
    np.negative(np.log(luck, out=luck), out=luck)
    rows.flags.writeable = luck.flags.writeable = False
    noise.rows.update(zip(places, rows, strict=True))
    noise.luck.update(zip(places, luck, strict=True))


def exponentials_each(coins: Sequence[Coins], sizes: Sequence[int], ids: Ids) -> Floats:
    """The public exponentials of tokens at places of several texts: so many at the first place, then at the next."""
    drawn_before = all(index in noise.rows for noise, index in coins)
    if not drawn_before and all(noise == coins[0][0] for noise, _ in coins):
        indices = np.repeat([index for _, index in coins], sizes)
        return coins[0][0].exponential_each(Stream.TARGET, indices, ids)
    drawn, start = [], 0
    for (noise, index), size in zip(coins, sizes, strict=True):
        drawn.append(noise.exponential(Stream.TARGET, index, ids[start : start + size]))
        start += size
    return np.concatenate(drawn)


class _Work(threading.local):
    """The work arrays of a thread: using fresh memory takes longer than the computation."""

    def __init__(self) -> None:
        self._halves = np.empty((3, 2, 0), np.uint64)

    def halves(self, blocks: int) -> Bits:
        """The counters of so many blocks in two halves, and their products twice."""
        if self._halves.shape[2] != blocks:
            self._halves = np.empty((3, 2, blocks), np.uint64)
        return self._halves


_work = _Work()


def _drawn(noise: Noise, places: Bits, blocks: int) -> Floats:
    """The public exponentials at some places, ``[places, 2 blocks]``: of the tokens of the first ``blocks`` blocks."""
    even, *products = _work.halves(len(places) * blocks)
    odd = products[1]  # the first round reads it, the second one writes to it
    shape = 2, len(places), blocks
    _third_round(noise, places, even.reshape(shape), odd.reshape(shape))
    low, high = philox(even, odd, noise.seed, products, first=3)
    high <<= np.uint64(32)
    high |= low
    values = np.empty((len(places), 2 * blocks))
    for parity in (0, 1):
        spread(high[parity], values.reshape(-1)[parity::2])
    np.log(values, out=values)
    return np.negative(values, out=values)


def _third_round(noise: Noise, places: Bits, even: Bits, odd: Bits) -> None:
    """Fill in the counters after three rounds of `philox`. The words of the first two depend on the block or on the
    place alone, so only the third is computed for every block of every place."""
    (k0, k1), (l0, l1), (m0, m1) = keys_of(noise.seed)[:3]
    first, by_sample = np.arange(even.shape[2], dtype=np.uint64) * np.uint64(M0), noise.sample * M1
    block2, block3 = (first >> 32) ^ (Stream.TARGET ^ k1), first & LOW
    second, by_place = block2 * M1, (places ^ (by_sample >> 32 ^ k0)) * M0
    block0, block1 = (second >> 32) ^ (by_sample & LOW ^ l0), second & LOW
    np.bitwise_xor(block3 ^ l1, (by_place >> 32)[:, None], out=even[1])
    np.multiply(even[1], M1, out=odd[0])
    np.right_shift(odd[0], 32, out=even[0])
    even[0] ^= block1 ^ m0
    third = block0 * M0
    np.bitwise_xor((third >> 32) ^ m1, (by_place & LOW)[:, None], out=even[1])
    odd[1] = third
