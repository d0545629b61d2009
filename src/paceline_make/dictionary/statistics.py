"""For each beginning of an n-gram, the most frequent next token.

The tokens of n-grams form a tree: below " ком" stand "п'", "уні", ... Each node is a beginning. Its count is the sum
over the n-grams that pass through it. A node inside the k-th word is counted only in n-grams of k words. So a word that
was seen more often than all of its continuations together keeps the difference, which is the count without a known
continuation. A key that was cut until its first word is gone is not counted either, because n-grams of fewer words have
it already.

Of the tree only this is kept: a **key** (the last `LONGEST` tokens of a beginning, as a hash of 64 bits), its count,
its best next token, the probability of that token, and the key that it leads to. A completion is a walk from key to
key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from paceline.dictionary.keys import LONGEST, NOWHERE, POWERS, Hashes, Indices, Tokens, places, starts

if TYPE_CHECKING:
    from paceline_make.dictionary.running import SpelledNgrams

IDS = 2**21
"""More than there are ids in any vocabulary."""


@dataclass(frozen=True)
class Statistics:
    """Keys by falling count; equal ones in the order of their hashes."""

    hashes: Hashes
    counts: NDArray[np.int64]
    best: Tokens
    """The token that followed most often; `NOWHERE` if none is known."""
    likely: NDArray[np.float32]
    """Its share of the key's occurrences."""
    after: Indices
    """The key that it leads to."""
    examples: Tokens
    """N-grams, a row each."""
    rows: NDArray[np.int32]
    """For each key one of the examples that it begins, ..."""
    depths: NDArray[np.int8]
    """... and how many of its tokens lead to the key."""
    longest: int

    def __len__(self) -> int:
        return len(self.hashes)

    def find(self, hashes: Hashes) -> Indices:
        """The keys of these hashes, `NOWHERE` where there is none."""
        order = np.argsort(self.hashes)
        return np.append(order, NOWHERE)[places(hashes, self.hashes[order])]

    def tokens(self, keys: Indices) -> Tokens:
        """The tokens of some keys, right-aligned, `NOWHERE` before the first."""
        tokens = np.full((len(keys), LONGEST), NOWHERE, np.int32)
        rows, depths = self.rows[keys], self.depths[keys].astype(np.int64)
        for back in range(self.longest):
            there = np.flatnonzero(depths > back)
            tokens[there, -1 - back] = self.examples[rows[there], depths[there] - 1 - back]
        return tokens

    def candidates(self, min_probability: float) -> Indices:
        """Keys with something to propose, the most frequent first."""
        return np.flatnonzero((self.best >= 0) & (self.likely >= np.float32(min_probability)))

    def completed(self, keys: Indices, min_probability: float, longest: int) -> tuple[Tokens, NDArray[np.float32]]:
        """The tokens proposed behind some keys, and the estimated probability of each token. The estimate is below the
        token's share: n of n + 1 for a key that was seen n times and always with the token, because a key that was seen
        once may continue differently the next time."""
        return self.walk(keys, min_probability, longest, careful(self.likely, self.counts))

    def thresholds(self, keys: Indices, longest: int) -> tuple[Tokens, NDArray[np.float32]]:
        """The tokens proposed behind some keys at any probability, and the least probability at which each is."""
        tokens, likely = self.walk(keys, 0.0, longest)
        return tokens, np.minimum.accumulate(likely, axis=1)

    def walk(
        self, keys: Indices, min_probability: float, longest: int = LONGEST, values: NDArray[Any] | None = None
    ) -> tuple[Tokens, NDArray[np.float32]]:
        """The proposals behind some keys: tokens, and the probability of each after those before it, or its key's item
        of ``values``. A row ends (`NOWHERE`, 0) before a token that is less probable than allowed."""
        tokens = np.full((len(keys), longest), NOWHERE, np.int32)
        found = np.zeros((len(keys), longest), np.float32)
        rows, at = np.arange(len(keys)), keys
        for step in range(longest):
            going = np.flatnonzero((at >= 0) & (self.best[at] >= 0) & (self.likely[at] >= np.float32(min_probability)))
            rows, at = rows[going], at[going]
            tokens[rows, step] = self.best[at]
            found[rows, step] = (self.likely if values is None else values)[at]
            at = self.after[at]
        return tokens, found


def careful(share: NDArray[Any], counts: NDArray[Any]) -> NDArray[Any]:
    """A cautious probability from a share of ``counts`` cases."""
    return np.asarray(share * counts / (counts + 1))


@dataclass(frozen=True)
class _Steps:
    """Every step from one beginning to the next, once, by its parent's hash and then its child's."""

    parents: Hashes
    """0 for steps from the empty beginning."""
    children: Hashes
    tokens: Tokens
    counts: NDArray[np.int64]
    fresh: NDArray[np.int64]
    """The part of the count in which the child was not counted with an n-gram of fewer words as well."""
    rows: NDArray[np.int32]
    depths: NDArray[np.int8]


def statistics(spelled: Sequence[SpelledNgrams], longest: int = LONGEST) -> Statistics:
    """Count what follows each beginning of the n-grams."""
    width = max((one.tokens.shape[1] for one in spelled), default=0)
    examples = np.full((sum(len(one.tokens) for one in spelled), width), NOWHERE, np.int32)
    kinds = (np.uint64, np.uint64, np.int32, np.int64, np.int64, np.int32, np.int8)
    parts: list[Sequence[NDArray[Any]]] = [[np.zeros(0, kind) for kind in kinds]]
    first = 0
    for one in spelled:
        examples[first : first + len(one.tokens), : one.tokens.shape[1]] = one.tokens
        parts += _steps(one, first, longest)
        first += len(one.tokens)
    return _ranked(_summed([np.concatenate(column) for column in zip(*parts, strict=True)]), examples, longest)


def _steps(one: SpelledNgrams, first: int, longest: int) -> list[Sequence[NDArray[Any]]]:
    """The steps of some n-grams, column by column: of each n-gram those within its last word, and none that starts at
    a key of which nothing of the first word is left."""
    running = [np.zeros(len(one.tokens), np.uint64)]
    found: list[Sequence[NDArray[Any]]] = []
    rows = np.arange(first, first + len(one.tokens), dtype=np.int32)
    before = running[0]
    for depth in range(1, one.tokens.shape[1] + 1):
        column = one.tokens[:, depth - 1]
        running = [*running[-longest:], running[-1] * POWERS[1] + (column.astype(np.uint64) + np.uint64(1))]
        here = running[-1] if depth <= longest else running[-1] - running[0] * POWERS[longest]
        chosen = np.flatnonzero((one.starts < depth) & (one.lengths >= depth) & (one.repeated > depth - 1 - longest))
        if len(chosen):
            counts = one.counts[chosen]
            fresh = np.where(one.repeated[chosen] > depth - longest, counts, 0)
            depths = np.full(len(chosen), depth, np.int8)
            found.append((before[chosen], here[chosen], column[chosen], counts, fresh, rows[chosen], depths))
        before = here
    return found


def _summed(columns: Sequence[NDArray[Any]]) -> _Steps:
    """Equal steps as one."""
    order = np.lexsort((columns[1], columns[0]))
    parents, children, tokens, counts, fresh, rows, depths = (column[order] for column in columns)
    new = starts(parents, children)
    if len(new):
        counts, fresh = np.add.reduceat(counts, new), np.add.reduceat(fresh, new)
    return _Steps(parents[new], children[new], tokens[new], counts, fresh, rows[new], depths[new])


def _ranked(steps: _Steps, examples: Tokens, longest: int) -> Statistics:
    """Keys with their best steps, sorted."""
    hashes, sources, reached = np.unique(steps.children, return_index=True, return_inverse=True)
    counts = np.zeros(len(hashes), np.int64)
    np.add.at(counts, reached, steps.fresh)
    best, likely, after = _best(steps, hashes, counts, reached)
    rank = np.lexsort((hashes, -counts))
    place = np.empty(len(rank) + 1, np.int64)
    place[rank] = np.arange(len(rank))
    place[NOWHERE] = NOWHERE
    return Statistics(
        hashes=hashes[rank],
        counts=counts[rank],
        best=best[rank],
        likely=likely[rank],
        after=place[after[rank]],
        examples=examples,
        rows=steps.rows[sources[rank]],
        depths=steps.depths[sources[rank]],
        longest=longest,
    )


def _best(steps: _Steps, hashes: Hashes, counts: NDArray[np.int64], reached: Indices) -> tuple[Any, Any, Any]:
    """For each key its most frequent step; of equally frequent ones that with the lowest token."""
    best = np.full(len(hashes), NOWHERE, np.int32)
    likely = np.zeros(len(hashes), np.float32)
    after = np.full(len(hashes), NOWHERE, np.int64)
    new = starts(steps.parents)
    if len(new):
        assert steps.tokens.max() < IDS and steps.counts.max() < 2**63 // IDS, "counts and ids fit into 64 bits"
        value = steps.counts * IDS + (IDS - 1 - steps.tokens)
        highest = np.maximum.reduceat(value, new)
        chosen = np.flatnonzero(value == np.repeat(highest, np.diff(new, append=len(value))))
        key = places(steps.parents[chosen], hashes)
        chosen, key = chosen[key >= 0], key[key >= 0]  # the empty beginning and n-grams left out are no keys
        best[key] = steps.tokens[chosen]
        likely[key] = np.minimum(steps.counts[chosen] / np.maximum(counts[key], 1), 1.0)
        after[key] = reached[chosen]
    return best, likely, after
