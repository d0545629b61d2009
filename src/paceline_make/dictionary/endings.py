"""For each beginning of an n-gram, the most probable of its endings: the rule of the DictSpec paper.

An **ending** of a beginning is the rest of an n-gram behind it, cut to a number of tokens. The most probable ending is
proposed if it is likely enough as a whole; otherwise nothing is proposed. (`Statistics` proposes token by token.) The
paper describes this in section 3.1, section 4.4 and Table 1. It leaves some details open, which are decided here:

- The probability of an ending is its count over that of the key, the last tokens of a beginning. The key's count is
  that of `Statistics`: each occurrence in the text counts once, n-grams that end with the key included. In Table 1 no
  n-gram ends there, and both endings add up to 100%.
- A longer n-gram is never more frequent than its beginning. So an ending at the end of the word is at least as
  probable as one that continues into the next word. Of equally probable endings the longest is taken, because it saves
  the most; of equally long ones the one with the lowest tokens.
- Endings are cut before they are counted: endings that differ only behind the cut are one. If several n-grams of the
  same text have an ending, because it was cut or because the key has lost its first words, the n-gram with the fewest
  words counts.
- A dictionary of N entries has the N most frequent keys with something to propose.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from paceline.dictionary.header import EntryRule
from paceline.dictionary.keys import LONGEST, NOWHERE, POWERS, Hashes, Indices, Tokens, starts
from paceline_make.dictionary.statistics import Statistics, careful

if TYPE_CHECKING:
    from paceline_make.dictionary.running import SpelledNgrams


def under(rule: EntryRule, found: Statistics, spelled: Sequence[SpelledNgrams], longest: int = LONGEST) -> Statistics:
    """The statistics of some n-grams under a rule, with completions of up to ``longest`` tokens."""
    return endings(found, spelled, longest) if rule is EntryRule.PAPER else found


@dataclass(frozen=True)
class EndingStatistics(Statistics):
    """Keys by falling count, each with its most probable ending."""

    share: NDArray[np.float32]
    """The ending's share of the key's occurrences; 0 if nothing follows."""
    held_by: NDArray[np.int32]
    """The example that contains it, ..."""
    begins: NDArray[np.int8]
    """... where in it the ending begins, ..."""
    sizes: NDArray[np.int8]
    """... and how many tokens it has."""

    def candidates(self, min_probability: float) -> Indices:
        return np.flatnonzero((self.sizes > 0) & (self.share >= np.float32(min_probability)))

    def completed(self, keys: Indices, min_probability: float, longest: int) -> tuple[Tokens, NDArray[np.float32]]:
        """Only the probability of the whole ending is known, so each of its tokens has the same part in it."""
        tokens, share = self.thresholds(keys, longest)
        tokens[share < np.float32(min_probability)] = NOWHERE
        there = tokens != NOWHERE
        each = careful(share, self.counts[keys, None]) ** (1 / np.maximum(self.sizes[keys, None], 1))
        return tokens, np.where(there, each, 0.0).astype(np.float32)

    def thresholds(self, keys: Indices, longest: int) -> tuple[Tokens, NDArray[np.float32]]:
        tokens = _ends(self.examples, self.held_by[keys], self.begins[keys], self.sizes[keys])[:, :longest]
        return tokens, np.where(tokens != NOWHERE, self.share[keys, None], np.float32(0.0))


def endings(found: Statistics, spelled: Sequence[SpelledNgrams], longest: int = LONGEST) -> EndingStatistics:
    """The most probable ending behind each key of the n-grams' statistics, cut to ``longest`` tokens."""
    kinds = (np.uint64, np.uint64, np.int64, np.int32, np.int8, np.int8)
    parts: list[Sequence[NDArray[Any]]] = [[np.zeros(0, kind) for kind in kinds]]
    first = 0
    for one in spelled:
        parts += _splits(one, first, found.longest, longest)
        first += len(one.tokens)
    keys, counts, rows, begins, sizes = _summed([np.concatenate(column) for column in zip(*parts, strict=True)])
    best = _best(found.examples, keys, counts, rows, begins, sizes)
    keys, counts, rows, begins, sizes = (column[best] for column in (keys, counts, rows, begins, sizes))
    place = found.find(keys)
    known = place != NOWHERE  # n-grams whose first words were left out begin with no key
    place = place[known]

    def spread(values: NDArray[Any]) -> NDArray[Any]:
        column = np.zeros(len(found), values.dtype)
        column[place] = values[known]
        return column

    share = spread(counts) / np.maximum(found.counts, 1)
    return EndingStatistics(
        **vars(found),
        share=np.minimum(share, 1.0).astype(np.float32),
        held_by=spread(rows),
        begins=spread(begins),
        sizes=spread(sizes),
    )


def _splits(one: SpelledNgrams, first: int, longest_key: int, longest: int) -> Iterator[Sequence[NDArray[Any]]]:
    """Every n-gram cut in two at every place, column by column: key, ending, count, row, where the ending begins, its
    size. Two kinds are left out, because n-grams of fewer words have them: keys that have lost the first word, and
    endings that are cut before the last one."""
    width = one.tokens.shape[1]
    rows = np.arange(first, first + len(one.tokens), dtype=np.int32)
    running = _running(one)
    for depth in range(1, width):
        chosen = np.flatnonzero(
            (one.lengths > depth) & (one.repeated > depth - longest_key) & (one.starts < depth + longest)
        )
        if not len(chosen):
            continue
        here = running[depth][chosen]
        sizes = np.minimum(one.lengths[chosen] - depth, longest)
        keys = here if depth <= longest_key else here - running[depth - longest_key][chosen] * POWERS[longest_key]
        ends = running[min(depth + longest, width)][chosen] - here * np.array(POWERS)[sizes]
        depths = np.full(len(chosen), depth, np.int8)
        yield keys, ends, one.counts[chosen], rows[chosen], depths, sizes.astype(np.int8)


def _running(one: SpelledNgrams) -> list[Hashes]:
    """The hash of the first tokens of each n-gram, by how many; that of the whole n-gram behind its end."""
    found = [np.zeros(len(one.tokens), np.uint64)]
    for depth in range(one.tokens.shape[1]):
        longer = found[-1] * POWERS[1] + (one.tokens[:, depth].astype(np.uint64) + np.uint64(1))
        found.append(np.where(one.lengths > depth, longer, found[-1]))
    return found


def _summed(columns: Sequence[NDArray[Any]]) -> tuple[NDArray[Any], ...]:
    """Each ending of each key once, by the key."""
    order = np.lexsort((columns[1], columns[0]))
    keys, ends, counts, rows, begins, sizes = (column[order] for column in columns)
    fresh = starts(keys, ends)
    counts = np.add.reduceat(counts, fresh) if len(fresh) else counts
    return keys[fresh], counts, rows[fresh], begins[fresh], sizes[fresh]


def _best(examples: Tokens, keys: Hashes, *columns: NDArray[Any]) -> Indices:
    """The most frequent ending of each key; of equally frequent ones the longest, of those that with lowest tokens."""
    counts, rows, begins, sizes = columns
    new = starts(keys)
    if not len(new):
        return new
    value = counts * (LONGEST + 1) + sizes
    equal = np.flatnonzero(value == np.repeat(np.maximum.reduceat(value, new), np.diff(new, append=len(value))))
    first = starts(keys[equal])
    several = np.repeat(np.diff(first, append=len(equal)) > 1, np.diff(first, append=len(equal)))
    tied = equal[several]
    ends = _ends(examples, rows[tied], begins[tied], sizes[tied])
    tied = tied[np.lexsort((*ends.T[::-1], keys[tied]))]
    equal[several] = tied
    return equal[first]


def _ends(examples: Tokens, rows: NDArray[Any], begins: NDArray[Any], sizes: NDArray[Any]) -> Tokens:
    """The tokens of endings, `NOWHERE` behind the last."""
    tokens = np.full((len(rows), LONGEST), NOWHERE, np.int32)
    for step in range(LONGEST):
        there = np.flatnonzero(sizes > step)
        tokens[there, step] = examples[rows[there], begins[there] + np.int64(step)]
    return tokens
