"""Tokens of n-grams as they stand in running text.

A word in the middle of a sentence has other tokens than the word by itself, and which ones is the tokenizer's secret:
byte-level tokenizers take the space before it in, SentencePiece ones turn it into a mark of their own and add another
mark where a text begins. So nothing is put before a word by rule: it is encoded behind other text, and the tokens of
that text are taken off again.

Most tokenizers cut text at spaces before they do anything else, so the tokens of an n-gram are those of its units, one
after the other, and a million n-grams are spelled from a hundred thousand units. Whether that is so is tried out for
each gap that stands between words; behind a gap where it is not, n-grams are encoded whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from paceline.dictionary.words import SPACELESS, TAB, compiled
from paceline.vocabulary import Vocabulary

BEFORE = {False: ("x", "a,", "1"), True: ("。", "x", "、")}
"""What stands before a word that is encoded, tried in this order; words of scripts without spaces have their own."""
TRIED = 32
"""N-grams that a gap is tried on."""
KNOWN_GAPS = 256
"""Of the most frequent gaps so many are tried; n-grams with others are encoded whole."""
LONGEST = 40
"""Tokens of an n-gram that are looked at."""
FIRST_SPACELESS = chr(min(first for first, _ in SPACELESS))

NEVER = LONGEST + 1
"""A place behind every token."""

Tokens = NDArray[np.int32]
Counted = NDArray[np.int64]
_Row = tuple[list[int], int, int]
_Rows = tuple[Tokens, NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


@dataclass(frozen=True)
class Spelled:
    """N-grams of one number of words: their tokens, a row each, -1 behind the last."""

    tokens: Tokens
    lengths: NDArray[np.int64]
    starts: NDArray[np.int64]
    """Where the tokens of the last word begin."""
    repeated: NDArray[np.int64]
    """From where on the tokens are those of the n-gram without its first word, and counted with that."""
    counts: Counted


def spelled(grams: pa.Table, vocabulary: Vocabulary) -> list[Spelled]:
    """Counted n-grams by their number of words, each as it stands in running text. Words that melt into whatever is
    before them are left out."""
    words = pc.add(pc.count_substring(grams["gram"], TAB), 1).to_numpy()
    counts = grams["count"].to_numpy()
    units = _Units(vocabulary)
    found = list[Spelled]()
    for order in range(1, int(words.max(initial=0)) + 1):
        chosen = np.flatnonzero(words == order)
        if len(chosen):
            found.append(_of_order(grams["gram"].take(chosen), counts[chosen], order, units))
    return found


def _of_order(grams: pa.ChunkedArray, counts: Counted, order: int, spoken: _Units) -> Spelled:
    texts = _array(grams)
    units = pc.split_pattern(texts, TAB).flatten().dictionary_encode()
    names: list[str] = units.dictionary.to_pylist()
    numbers = units.indices.to_numpy().reshape(-1, order)
    book = _Book(names, numbers, spoken)
    whole = book.unsafe(numbers, texts) if order > 1 else np.zeros(len(numbers), bool)
    composed = np.flatnonzero(~whole & book.known(numbers))
    spelt = book.spell(numbers[composed])
    aside = _encoded_whole(texts, np.flatnonzero(whole), spoken.vocabulary)
    return _joined(spelt, counts[composed], aside, counts[whole])


def _array(chunks: pa.ChunkedArray) -> pa.Array:
    return chunks.combine_chunks() if isinstance(chunks, pa.ChunkedArray) else chunks


@dataclass(frozen=True)
class _Ragged:
    """Rows of tokens, one behind the other."""

    flat: Tokens
    lengths: NDArray[np.int64]

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> _Ragged:
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        flat = np.fromiter((token for row in rows for token in row), np.int32, int(lengths.sum()))
        return cls(flat, lengths)

    @property
    def starts(self) -> NDArray[np.int64]:
        return np.cumsum(self.lengths) - self.lengths


class _Units:
    """The tokens of units, each encoded once for n-grams of all sizes."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._known: dict[bool, dict[str, list[int]]] = {True: {}, False: {}}
        self.crossed: set[str] = set()
        """Gaps that tokens were seen to cross, in n-grams of fewer words; those that share an n-gram with one of them
        are not to be blamed for it."""

    def tokens(self, units: Sequence[str], *, first: bool) -> list[list[int]]:
        known = self._known[first]
        fresh = [unit for unit in units if unit not in known]
        known.update(zip(fresh, behind(fresh, self.vocabulary, first=first), strict=True))
        return [known[unit] for unit in units]


class _Book:
    """The tokens of every unit of some n-grams, as the first word of one and as a later one."""

    def __init__(self, names: list[str], numbers: NDArray[Any], spoken: _Units) -> None:
        self._names, self._spoken = names, spoken
        first, later = np.unique(numbers[:, 0]), np.unique(numbers[:, 1:])
        self._first = _numbered(len(names), first, spoken.tokens([names[i] for i in first], first=True))
        self._later = _numbered(len(names), later, spoken.tokens([names[i] for i in later], first=False))
        self._leads = self._led(np.unique(numbers[:, 1:2]))

    def known(self, numbers: NDArray[Any]) -> NDArray[np.bool_]:
        """Which n-grams have tokens for all their units."""
        there: NDArray[np.bool_] = (self._later.lengths[numbers[:, 1:]] > 0).all(axis=1)
        there &= self._first.lengths[numbers[:, 0]] > 0
        return there

    def _led(self, chosen: NDArray[Any]) -> NDArray[np.int64]:
        """For second units: how many of their tokens are others than where the word is the first."""
        leads = np.zeros(len(self._names), np.int64)
        words = [_bare(self._names[i]) for i in chosen]
        firsts = self._spoken.tokens(words, first=True)
        laters = self._spoken.tokens([self._names[i] for i in chosen], first=False)
        leads[chosen] = [len(later) - _ending(later, first) for later, first in zip(laters, firsts, strict=True)]
        return leads

    def spell(self, numbers: NDArray[Any]) -> _Rows:
        """Rows of tokens, their lengths, where the last unit begins, and from where on they are another's."""
        columns = [(self._first if place == 0 else self._later, numbers[:, place]) for place in range(numbers.shape[1])]
        sizes = np.stack([book.lengths[column] for book, column in columns], axis=1)
        lengths = np.minimum(sizes.sum(axis=1), LONGEST)
        rows = np.full((len(numbers), int(lengths.max(initial=0))), -1, np.int32)
        place = np.zeros(len(numbers), np.int64)
        for (book, column), size in zip(columns, sizes.T, strict=True):
            starts = book.starts[column]
            for step in range(int(size.max(initial=0))):
                here = np.flatnonzero((step < size) & (place + step < rows.shape[1]))
                rows[here, place[here] + step] = book.flat[starts[here] + step]
            place = place + size
        begins = np.minimum(place - sizes[:, -1], LONGEST)
        if numbers.shape[1] == 1:
            return rows, lengths, begins, np.full(len(rows), NEVER)
        return rows, lengths, begins, sizes[:, 0] + self._leads[numbers[:, 1]]

    def unsafe(self, numbers: NDArray[Any], texts: pa.Array) -> NDArray[np.bool_]:
        """Which n-grams hold a gap behind which tokens depend on what stands before it."""
        kinds, kind_of = np.unique(np.array([_gap(name) for name in self._names]), return_inverse=True)
        held = kind_of[numbers[:, 1:]]
        crossed = np.isin(kinds, list(self._spoken.crossed))
        known = np.repeat(self.known(numbers) & ~crossed[held].any(axis=1), held.shape[1])
        order = np.argsort(held.ravel(), kind="stable")
        order = order[known[order]]
        ends = np.cumsum(np.bincount(held.ravel()[order], minlength=len(kinds)))
        uses = np.diff(ends, prepend=0)
        unsafe = np.ones(len(kinds), bool)
        for kind in np.argsort(-uses, kind="stable")[:KNOWN_GAPS]:
            if uses[kind]:
                among = order[ends[kind] - uses[kind] : ends[kind] : -(-uses[kind] // TRIED)] // held.shape[1]
                unsafe[kind] = not self._adds_up(numbers, texts, among)
                if unsafe[kind]:
                    self._spoken.crossed.add(str(kinds[kind]))
        found: NDArray[np.bool_] = unsafe[held].any(axis=1)
        return found

    def _adds_up(self, numbers: NDArray[Any], texts: pa.Array, sample: NDArray[np.int64]) -> bool:
        rows, lengths, _, _ = self.spell(numbers[sample])
        wholes = behind(_plain(texts.take(sample)), self._spoken.vocabulary, first=True)
        return all(
            row[:length].tolist() == whole[:LONGEST]
            for row, length, whole in zip(rows, lengths, wholes, strict=True)
            if whole
        )


def _numbered(size: int, numbers: NDArray[Any], rows: Sequence[Sequence[int]]) -> _Ragged:
    """Rows by their numbers; those that are not among them are empty."""
    told = _Ragged.of(rows)
    lengths = np.zeros(size, np.int64)
    lengths[numbers] = told.lengths
    return _Ragged(told.flat, lengths)


def _plain(texts: pa.Array) -> list[str]:
    return [text.replace(TAB, "") for text in texts.to_pylist()]


def is_unspaced(letter: str) -> bool:
    """Whether a character belongs to a script without spaces between words."""
    return letter >= FIRST_SPACELESS and any(first <= ord(letter) <= last for first, last in SPACELESS)


def _gap(unit: str) -> str:
    """What stands before the word of a unit, and behind it what tells a script without spaces apart: a character that
    no gap holds, and not NUL, for numpy drops that."""
    found = compiled().word.search(unit)
    if found is None:
        return unit
    return unit[: found.start()] + (TAB if is_unspaced(unit[found.start()]) else "")


def behind(texts: Sequence[str], vocabulary: Vocabulary, *, first: bool) -> list[list[int]]:
    """The tokens of each text as it stands behind others. A ``first`` word has a space before it, where its script has
    spaces. Empty where no text could be found that keeps to itself."""
    found: list[list[int]] = [[] for _ in texts]
    for unspaced, anchors in BEFORE.items():
        waiting = [number for number, text in enumerate(texts) if (text != "" and is_unspaced(text[0])) == unspaced]
        space = " " if first and not unspaced else ""
        for anchor in anchors:
            if not waiting:
                break
            (before,) = vocabulary.encode_all([anchor])
            told = vocabulary.encode_all([anchor + space + texts[number] for number in waiting])
            for number, tokens in zip(waiting, told, strict=True):
                if tokens[: len(before)] == before:
                    found[number] = tokens[len(before) :]
            waiting = [number for number in waiting if not found[number]]
    return found


def _encoded_whole(texts: pa.Array, chosen: NDArray[np.int64], vocabulary: Vocabulary) -> list[_Row]:
    """N-grams one by one: where the last word begins is where they part from what they are without it."""
    taken: list[str] = texts.take(chosen).to_pylist()
    wholes = behind([text.replace(TAB, "") for text in taken], vocabulary, first=True)
    heads = behind([text.rpartition(TAB)[0].replace(TAB, "") for text in taken], vocabulary, first=True)
    tails = behind([_bare(text.partition(TAB)[2].replace(TAB, "")) for text in taken], vocabulary, first=True)
    return [
        (whole[:LONGEST], _common(whole, head), len(whole) - _ending(whole, tail))
        for whole, head, tail in zip(wholes, heads, tails, strict=True)
    ]


def _bare(unit: str) -> str:
    """Without the gap before it."""
    found = compiled().word.search(unit)
    return unit if found is None else unit[found.start() :]


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    for place, (mine, theirs) in enumerate(zip(one, other, strict=False)):
        if mine != theirs:
            return place
    return min(len(one), len(other))


def _ending(one: list[int], other: list[int]) -> int:
    """How many tokens both end with."""
    return _common(one[::-1], other[::-1])


def _joined(spelt: _Rows, counts: Counted, aside: list[_Row], aside_counts: Counted) -> Spelled:
    """Both kinds of n-grams under each other."""
    rows, lengths, starts, repeated = spelt
    if not aside:
        return Spelled(rows, lengths, starts, repeated, counts)
    more = _Ragged.of([tokens for tokens, _, _ in aside])
    width = max(rows.shape[1], int(more.lengths.max(initial=0)))
    padded = np.full((len(rows) + len(aside), width), -1, np.int32)
    padded[: len(rows), : rows.shape[1]] = rows
    below = np.repeat(np.arange(len(aside)), more.lengths)
    padded[len(rows) + below, np.arange(len(more.flat)) - more.starts[below]] = more.flat
    return Spelled(
        padded,
        np.concatenate([lengths, more.lengths]),
        np.concatenate([starts, np.fromiter((start for _, start, _ in aside), np.int64, len(aside))]),
        np.concatenate([repeated, np.fromiter((place for _, _, place in aside), np.int64, len(aside))]),
        np.concatenate([counts, aside_counts]),
    )
