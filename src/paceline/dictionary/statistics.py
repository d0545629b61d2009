"""What usually follows: for each beginning of an n-gram, its most frequent next token.

Tokens of n-grams make a tree: below " ком" stand "п'", "уні", ...; each node is a beginning, and how often it was seen
is the sum over the n-grams that go through it. A node inside the k-th word of an n-gram is counted in n-grams of k
words and in no others, so words that were seen more often than any of their continuations keep the difference: it is
what is not known to go on. Nor is a key that was cut so short that the first word is gone: n-grams of fewer words have
it already.

Of the tree only this much is needed: a *beginning* (a **key**: its last `LONGEST` tokens at most, by a hash of 64
bits), how often it was seen, its best next token, how likely that is, and which key is reached by it. Whatever follows
a key is then found by walking from key to key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from paceline.dictionary.running import Spelled

LONGEST = 8
"""Tokens of a key, and of what is proposed behind it."""
NOWHERE = -1

Hashes = NDArray[np.uint64]
Indices = NDArray[np.int64]

_FACTOR = 0x9E3779B97F4A7C15
_POWERS = [np.uint64(pow(_FACTOR, power, 2**64)) for power in range(LONGEST + 1)]
_IDS = 2**21
"""More than there are ids in any vocabulary."""


@dataclass(frozen=True)
class Examples:
    """An n-gram for each key, as a row of a table, and how many of its tokens lead to the key."""

    table: NDArray[np.int32]
    rows: NDArray[np.int32]
    depths: NDArray[np.int8]


@dataclass(frozen=True)
class Statistics:
    """Keys by how often they were seen, the most frequent first; equals in the order of their hashes."""

    hashes: Hashes
    counts: NDArray[np.int64]
    best: NDArray[np.int32]
    """The token that followed most often; `NOWHERE` if none is known."""
    likely: NDArray[np.float32]
    """How often it did, of all the times that the key was seen."""
    after: Indices
    """The key that is reached by it."""
    examples: Examples
    longest: int

    def __len__(self) -> int:
        return len(self.hashes)

    def find(self, hashes: Hashes) -> Indices:
        """The keys of these hashes, `NOWHERE` where there is none."""
        order = np.argsort(self.hashes)
        return np.append(order, NOWHERE)[_found(self.hashes[order], hashes)]

    def tokens(self, keys: Indices) -> NDArray[np.int32]:
        """The tokens of some keys, right-aligned, `NOWHERE` before the first."""
        tokens = np.full((len(keys), LONGEST), NOWHERE, np.int32)
        rows, depths = self.examples.rows[keys], self.examples.depths[keys].astype(np.int64)
        for back in range(self.longest):
            there = np.flatnonzero(depths > back)
            tokens[there, -1 - back] = self.examples.table[rows[there], depths[there] - 1 - back]
        return tokens

    def candidates(self, min_probability: float) -> Indices:
        """Keys with something to propose, the most frequent first."""
        return np.flatnonzero((self.best >= 0) & (self.likely >= np.float32(min_probability)))

    def walk(
        self,
        keys: Indices,
        min_probability: float,
        longest: int = LONGEST,
        told: NDArray[Any] | None = None,
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """What is proposed behind some keys: tokens, and how likely each is after those before it, or what else is to
        be told of each step. A row ends (`NOWHERE`, 0) where the next token is less likely than that."""
        tokens = np.full((len(keys), longest), NOWHERE, np.int32)
        values = np.zeros((len(keys), longest), np.float32)
        rows, at = np.arange(len(keys)), keys
        for step in range(longest):
            going = np.flatnonzero((at >= 0) & (self.best[at] >= 0) & (self.likely[at] >= np.float32(min_probability)))
            rows, at = rows[going], at[going]
            tokens[rows, step] = self.best[at]
            values[rows, step] = (self.likely if told is None else told)[at]
            at = self.after[at]
        return tokens, values


def statistics(spelled: Sequence[Spelled], longest: int = LONGEST) -> Statistics:
    """Count what follows each beginning of the n-grams."""
    return _ranked(_Edges.of(spelled, longest), _table(spelled), longest)


def rolling(tokens: NDArray[Any], size: int) -> Hashes:
    """The hash of the ``size`` tokens that end at each place of a text; meaningless before there are so many."""
    hashes = np.zeros(len(tokens), np.uint64)
    values = tokens.astype(np.uint64) + np.uint64(1)
    for back in range(size):
        hashes[size - 1 :] += values[size - 1 - back : len(tokens) - back] * _POWERS[back]
    return hashes


def hashed(rows: NDArray[Any]) -> Hashes:
    """The hash of each row's tokens, as that of a text's; they are right-aligned, `NOWHERE` before the first."""
    hashes = np.zeros(len(rows), np.uint64)
    for back in range(rows.shape[1]):
        hashes += (rows[:, -1 - back].astype(np.uint64) + np.uint64(1)) * _POWERS[back]
    return hashes


@dataclass(frozen=True)
class _Edges:
    """Every step from one beginning to the next, once, in the order of where it starts, and how often it was made."""

    parents: Hashes
    """0 for steps from nothing."""
    children: Hashes
    tokens: NDArray[np.int32]
    counts: NDArray[np.int64]
    seen: NDArray[np.int64]
    """Of these, how often the key behind the step was not counted with a shorter n-gram as well."""
    rows: NDArray[np.int32]
    depths: NDArray[np.int8]

    @classmethod
    def of(cls, spelled: Sequence[Spelled], longest: int) -> _Edges:
        parts, first = [_NONE], 0
        for one in spelled:
            parts += _steps(one, first, longest)
            first += len(one.tokens)
        parents, children, tokens, counts, seen, rows, depths = (
            np.concatenate(column) for column in zip(*parts, strict=True)
        )
        order = np.lexsort((children, parents))
        parents, children = parents[order], children[order]
        starts = _starts(parents, children)
        kept = order[starts]
        summed, told = (np.add.reduceat(one[order], starts) if len(starts) else one for one in (counts, seen))
        return cls(parents[starts], children[starts], tokens[kept], summed, told, rows[kept], depths[kept])


_NONE = tuple(np.zeros(0, kind) for kind in (np.uint64, np.uint64, np.int32, np.int64, np.int64, np.int32, np.int8))


def _steps(one: Spelled, first: int, longest: int) -> list[tuple[Any, ...]]:
    """The steps of some n-grams, column by column, each n-gram's only within its last word, and none that starts at a
    key of which nothing of the first word is left."""
    running = [np.zeros(len(one.tokens), np.uint64)]
    found = list[tuple[Any, ...]]()
    rows = np.arange(first, first + len(one.tokens), dtype=np.int32)
    before = running[0]
    for depth in range(1, one.tokens.shape[1] + 1):
        column = one.tokens[:, depth - 1]
        running.append(running[-1] * _POWERS[1] + (column.astype(np.uint64) + np.uint64(1)))
        here = running[-1]
        if depth > longest:
            here = here - running[-1 - longest] * _POWERS[longest]
            running = running[-longest - 1 :]
        chosen = np.flatnonzero((one.starts < depth) & (one.lengths >= depth) & (one.repeated > depth - 1 - longest))
        if len(chosen):
            counts = one.counts[chosen]
            seen = np.where(one.repeated[chosen] > depth - longest, counts, 0)
            depths = np.full(len(chosen), depth, np.int8)
            found.append((before[chosen], here[chosen], column[chosen], counts, seen, rows[chosen], depths))
        before = here
    return found


def _ranked(edges: _Edges, table: NDArray[np.int32], longest: int) -> Statistics:
    """Keys with their best steps, sorted."""
    order = np.argsort(edges.children, kind="stable")
    starts = _starts(edges.children[order])
    hashes = edges.children[order[starts]]
    counts = np.add.reduceat(edges.seen[order], starts) if len(starts) else edges.seen
    reached = np.empty(len(order), np.int64)
    reached[order] = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(order)))
    best, likely, after = _best(edges, hashes, counts, reached)
    rank = np.lexsort((hashes, -counts))
    place = np.empty(len(rank) + 1, np.int64)
    place[rank] = np.arange(len(rank))
    place[NOWHERE] = NOWHERE
    source = order[starts][rank]
    return Statistics(
        hashes=hashes[rank],
        counts=counts[rank],
        best=best[rank],
        likely=likely[rank],
        after=place[after[rank]],
        examples=Examples(table, edges.rows[source], edges.depths[source]),
        longest=longest,
    )


def _best(edges: _Edges, hashes: Hashes, counts: NDArray[np.int64], reached: Indices) -> tuple[Any, Any, Any]:
    """For each key its most frequent step; of equally frequent ones that with the lowest token."""
    best = np.full(len(hashes), NOWHERE, np.int32)
    likely = np.zeros(len(hashes), np.float32)
    after = np.full(len(hashes), NOWHERE, np.int64)
    starts = _starts(edges.parents)
    if len(starts):
        assert edges.tokens.max() < _IDS and edges.counts.max() < 2**63 // _IDS, "counts and ids fit into 64 bits"
        value = edges.counts * _IDS + (_IDS - 1 - edges.tokens)
        highest = np.maximum.reduceat(value, starts)
        firsts = np.flatnonzero(value == np.repeat(highest, np.diff(starts, append=len(value))))
        key = _found(hashes, edges.parents[firsts])
        firsts, key = firsts[key >= 0], key[key >= 0]  # of what starts from nothing, and of n-grams left out, none
        best[key] = edges.tokens[firsts]
        likely[key] = np.minimum(edges.counts[firsts] / np.maximum(counts[key], 1), 1.0)
        after[key] = reached[firsts]
    return best, likely, after


def _starts(*columns: NDArray[Any]) -> Indices:
    """Where something new begins in sorted columns."""
    size = len(columns[0])
    fresh = np.zeros(size, bool)
    fresh[:1] = True
    for column in columns:
        fresh[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(fresh)


def _found(hashes: Hashes, wanted: Hashes) -> Indices:
    """Where wanted hashes stand among sorted ones; `NOWHERE` if they don't."""
    if not len(hashes):
        return np.full(len(wanted), NOWHERE, np.int64)
    place = np.minimum(np.searchsorted(hashes, wanted), len(hashes) - 1)
    return np.where(hashes[place] == wanted, place, NOWHERE)


def _table(spelled: Sequence[Spelled]) -> NDArray[np.int32]:
    """The tokens of all n-grams."""
    width = max((one.tokens.shape[1] for one in spelled), default=0)
    table = np.full((sum(len(one.tokens) for one in spelled), width), NOWHERE, np.int32)
    first = 0
    for one in spelled:
        table[first : first + len(one.tokens), : one.tokens.shape[1]] = one.tokens
        first += len(one.tokens)
    return table
