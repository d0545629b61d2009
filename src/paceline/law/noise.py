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

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import cache, cached_property, lru_cache
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from paceline.compiled import exact
from paceline.errors import InputError

Bits = NDArray[np.uint64]
Ids = NDArray[np.int64]
Floats = NDArray[np.float64]

PHILOX_ROUNDS = 10
_WORD_BITS = np.uint64(32)
_LOW_WORD = np.uint64(0xFFFFFFFF)
M0, M1 = 0xD2511F53, 0xCD9E8D57  # of c0 and of c2
_MULTIPLIERS = np.array([[M1], [M0]], dtype=np.uint64)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)


class Stream(IntEnum):
    """The purposes of noise, each with a separate stream of numbers.

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

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**64:
            raise InputError(f"seed is {self.seed}: choose one from 0 to 2**64 - 1")
        if not 0 <= self.sample < 2**32:
            raise InputError(f"sample is {self.sample}: choose one from 0 to 2**32 - 1")

    def uniform(self, stream: Stream, index: int, ids: Ids, turn: int = 0) -> Floats:
        """Uniforms in (0, 1) for the tokens ``ids``, in any order, at place ``index`` of the token list."""
        assert 0 <= turn < 2**24, f"turn {turn} does not fit its share of a counter word"
        return self._uniforms(stream + 256 * turn, np.array([index]), ids)

    def exponential(self, stream: Stream, index: int, ids: Ids, turn: int = 0) -> Floats:
        """Unit exponentials: the token of least ``exponential / weight`` is drawn in proportion to weight."""
        return _exponentials(self.uniform(stream, index, ids, turn))

    def exponential_each(self, stream: Stream, indices: Ids, ids: Ids) -> Floats:
        """`exponential` of every token, each at its own place, in one call."""
        return _exponentials(self._uniforms(stream, indices, ids))

    def gumbel(self, index: int, ids: Ids) -> NDArray[np.float64]:
        """The public noise in the form drafters add to log-scores.

        The token of greatest ``log-probability + gumbel`` is that of least ``exponential / probability``, so
        a drafter whose scores equal the target's ranks the target's own sample first.
        """
        values = self.exponential(Stream.TARGET, index, ids)
        np.log(values, out=values)
        return np.negative(values, out=values)

    @cached_property
    def key(self) -> tuple[int, int]:
        """Both key words."""
        return self.seed % 2**32, self.seed >> 32

    def _uniforms(self, word: int, indices: Ids, ids: Ids) -> Floats:
        found = np.empty(ids.size)
        if not ids.size:
            return found
        kernel = kernels()
        draw = _drawn if kernel is None else kernel.uniforms
        if not draw(_plain(ids), _plain(indices), self.sample, word, *self.key, found):
            raise AssertionError(f"{indices} or token ids {ids.min()}..{ids.max()} do not fit a counter word")
        return found


def _exponentials(uniforms: Floats) -> Floats:
    np.log(uniforms, out=uniforms)
    return np.negative(uniforms, out=uniforms)


def _plain(values: Ids) -> Ids:
    """An array of the one kind that functions are compiled for."""
    return values if values.flags.carray else values.copy()


@cache
def kernels() -> ModuleType | None:
    """The compiled functions of this room; None where there are none. Then numpy draws the noise, more slowly."""
    return exact("paceline.law.kernels", lambda module: _draws(module.uniforms) == _draws(_drawn) and _contests(module))


def _contests(module: ModuleType) -> bool:
    """Whether a score far above the others wins alone."""
    scores, ids = np.zeros(300, np.float32), np.empty(512, np.int64)
    scores[250] = 100.0
    peak, count = module.contesting(scores, 1.0, 0.0, 5, 3, 7, 11, ids)
    return bool(peak == 100.0 and count == 1 and ids[0] == 250)


def _draws(uniforms: Callable[..., bool]) -> list[float]:
    found = np.empty(8)
    uniforms(np.arange(8), np.array([2**32 - 1]), 3, 256, 2**32 - 5, 2**31, found)
    return found.tolist()


def _drawn(ids: Ids, indices: Ids, sample: int, word: int, k0: int, k1: int, found: Floats) -> bool:
    """`kernels.uniforms` in numpy."""
    if not (0 <= ids.min() <= ids.max() < 2**33 and 0 <= indices.min() <= indices.max() < 2**32):
        return False
    even, odd = np.empty((2, ids.size), np.uint64), np.empty((2, indices.size), np.uint64)
    even[0], even[1], odd[0], odd[1] = ids >> 1, sample, indices, word
    low, high = philox(even, odd, k0 | k1 << 32)
    bits = high << _WORD_BITS | low & _LOW_WORD
    found[:] = ((np.where(ids & 1, bits[1], bits[0]) >> np.uint64(12)) + 0.5) * 2.0**-52
    return True


def philox(even: Bits, odd: Bits, key: int) -> tuple[Bits, Bits]:
    """Philox4x32-10 of counters with words (c0, c2) = ``even [2, n]``, (c1, c3) = ``odd [2, n or 1]``.

    Returns the output words in the same halves; those of the odd half carry junk above their 32 bits. A round is ::

        c0, c1, c2, c3 = high(M1 c2) ^ c1 ^ k0, low(M1 c2), high(M0 c0) ^ c3 ^ k1, low(M0 c0)

    so words sit in 64-bit lanes, the new even words come from the products of the *reversed* even words, and
    the new odd words are those products: they only meet an exclusive or, and are cut to 32 bits after it.
    """
    for words in keys_of(key):
        products = even[::-1] * _MULTIPLIERS
        even = (products >> _WORD_BITS ^ odd ^ np.array([[word] for word in words], np.uint64)) & _LOW_WORD
        odd = products
    return even, odd


@lru_cache(maxsize=64)
def keys_of(key: int) -> list[tuple[int, int]]:
    """Both key words of every round."""
    (first, step0), (second, step1) = zip((key % 2**32, key >> 32), KEY_STEPS, strict=True)
    return [((first + turn * step0) % 2**32, (second + turn * step1) % 2**32) for turn in range(PHILOX_ROUNDS)]
