"""The public noise of whole places, drawn for several places together.

A text that is sampled needs the exponentials of its whole vocabulary at one place after the other. For one place of a
small vocabulary the calls of numpy take as long as the computation, so those of the next places are drawn with it: the
text goes on to them. They are kept, and drafts that ask for the noise of a few tokens there get it from here, too.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from paceline.law.noise import Bits, Floats, Ids, Noise, Stream, philox, spread

Coins = tuple[Noise, int]
"""The noise that decides, and the place in the token list."""

AHEAD = 1 << 15
"""Tokens, of this and the next places, that are drawn together."""
KEPT = 8
"""Places that are kept besides those that were drawn last."""


def exponentials_of(noise: Noise, index: int, size: int) -> Floats:
    """The public exponentials of the tokens ``0 .. size - 1`` at a place. They are kept, so they are read-only. Those
    of the next places are drawn as well, before the next draft needs them."""
    count = max(1, AHEAD // size)
    row = noise.rows.get(index)
    if row is None or row.size < size:
        row = _draw(noise, index, count, size)
    if (last := min(index + count, 2**32) - 1) not in noise.rows:
        _draw(noise, next(place for place in range(index + 1, last + 1) if place not in noise.rows), count, size)
    return row[:size]


def _draw(noise: Noise, index: int, count: int, size: int) -> Floats:
    """Draw so many places and keep them; returns the first."""
    places = range(index, min(index + count, 2**32))
    rows = _drawn(noise, np.array(places), -(-size // 2))
    while len(noise.rows) >= KEPT:
        noise.rows.pop(next(iter(noise.rows)), None)
    noise.rows.update(zip(places, rows, strict=True))
    first: Floats = rows[0]
    return first


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


def _drawn(noise: Noise, places: Ids, blocks: int) -> Floats:
    """The public exponentials at some places, ``[places, 2 blocks]``: of the tokens of the first ``blocks`` blocks."""
    even, *products = _work.halves(len(places) * blocks)
    odd = products[1]  # the first round reads it, the second one writes to it
    even[0].reshape(-1, blocks)[...], even[1] = np.arange(blocks), noise.sample
    odd[0].reshape(-1, blocks)[...], odd[1] = places[:, None], Stream.TARGET
    low, high = philox(even, odd, noise.seed, products)
    high <<= np.uint64(32)
    high |= low
    values = np.empty((len(places), 2 * blocks))
    for parity in (0, 1):
        spread(high[parity], values.reshape(-1)[parity::2])
    np.log(values, out=values)
    np.negative(values, out=values)
    values.flags.writeable = False
    return values
