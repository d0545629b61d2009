"""Tokens of n-grams in running text.

A word inside a sentence has other tokens than the word alone. The difference depends on the tokenizer: byte-level
tokenizers join the space with the word, SentencePiece turns it into a mark and adds another mark at the beginning of a
text. So each word is encoded behind other text, and the tokens of that text are removed again.

Most tokenizers first cut a text at its spaces. The tokens of an n-gram are then those of its units, one after the
other, and the tokens of a hundred thousand units give those of a million n-grams. Every gap between words is tested for
this; n-grams with a gap that fails are encoded whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from paceline.dictionary.keys import Indices, Tokens
from paceline.vocabulary import Vocabulary
from paceline_make.texts.words import SPACELESS, TAB, word_pattern

BEFORE = {False: ("x", "a,", "1"), True: ("。", "x", "、")}
"""Texts to put before a word when it is encoded, tried in this order; scripts without spaces have their own."""
TRIED = 32
"""The number of n-grams that test a gap."""
KNOWN_GAPS = 256
"""The most frequent gaps, which are tested; n-grams with others are encoded whole."""
LONGEST = 40
"""Tokens of an n-gram that are looked at."""
FIRST_SPACELESS = chr(min(first for first, _ in SPACELESS))
NEVER = LONGEST + 1
"""A place behind every token."""


@dataclass(frozen=True)
class SpelledNgrams:
    """N-grams of one number of words: their tokens, a row each, -1 behind the last."""

    tokens: Tokens
    lengths: Indices
    starts: Indices
    """Where the tokens of the last word begin."""
    repeated: Indices
    """From where on the tokens are those of the n-gram without its first word, and counted with that."""
    counts: Indices


def spelled(grams: pa.Table, vocabulary: Vocabulary) -> list[SpelledNgrams]:
    """Counted n-grams by their number of words, each encoded as in running text. Words that always share a token with
    the text before them are left out."""
    words = pc.add(pc.count_substring(grams["gram"], TAB), 1).to_numpy()
    counts = grams["count"].to_numpy()
    encoder = _Encoder(vocabulary)
    found = list[SpelledNgrams]()
    for order in range(1, int(words.max(initial=0)) + 1):
        chosen = np.flatnonzero(words == order)
        if len(chosen):
            found.append(_of_order(grams["gram"].take(chosen), counts[chosen], order, encoder))
    return found


def _of_order(grams: pa.ChunkedArray, counts: Indices, order: int, encoder: _Encoder) -> SpelledNgrams:
    texts = grams.combine_chunks() if isinstance(grams, pa.ChunkedArray) else grams
    units = pc.split_pattern(texts, TAB).flatten().dictionary_encode()
    numbers = units.indices.to_numpy().reshape(-1, order)
    book = _Units(units.dictionary.to_pylist(), numbers, encoder)
    whole = book.unsafe(numbers, texts) if order > 1 else np.zeros(len(numbers), bool)
    composed = np.flatnonzero(~whole & book.known(numbers))
    found = book.spell(numbers[composed], counts[composed])
    if not whole.any():
        return found
    aside = _encoded_whole(texts.filter(pa.array(whole)).to_pylist(), counts[whole], encoder.vocabulary)
    width = max(part.tokens.shape[1] for part in (found, aside))
    tokens = [np.pad(p.tokens, ((0, 0), (0, width - p.tokens.shape[1])), constant_values=-1) for p in (found, aside)]
    rest = [(getattr(found, name), getattr(aside, name)) for name in ("lengths", "starts", "repeated", "counts")]
    return SpelledNgrams(np.concatenate(tokens), *map(np.concatenate, rest))


class _Encoder:
    """The tokens of units, each encoded once for n-grams of all sizes."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._known: dict[bool, dict[str, list[int]]] = {True: {}, False: {}}
        self.crossed: set[str] = set()
        """Gaps that tokens were seen to cross, in n-grams of fewer words; other gaps of the same n-gram are not to be
        blamed for it."""

    def tokens(self, units: Sequence[str], *, first: bool) -> list[list[int]]:
        known = self._known[first]
        fresh = [unit for unit in units if unit not in known]
        known.update(zip(fresh, behind(fresh, self.vocabulary, first=first), strict=True))
        return [known[unit] for unit in units]


class _Column:
    """Rows of tokens, one behind the other, found by their numbers; the row of any other number is empty."""

    def __init__(self, size: int, numbers: NDArray[Any], rows: Sequence[Sequence[int]]) -> None:
        self.lengths = np.zeros(size, np.int64)
        self.lengths[numbers] = [len(row) for row in rows]
        self.flat = np.fromiter(chain.from_iterable(rows), np.int32, int(self.lengths.sum()))
        self.starts = np.cumsum(self.lengths) - self.lengths


class _Units:
    """The tokens of every unit of some n-grams, as their first word and as a later one."""

    def __init__(self, names: list[str], numbers: NDArray[Any], encoder: _Encoder) -> None:
        self._names, self._encoder = names, encoder
        self._first, self._later = (
            _Column(len(names), chosen, encoder.tokens([names[i] for i in chosen], first=first))
            for chosen, first in ((np.unique(numbers[:, 0]), True), (np.unique(numbers[:, 1:]), False))
        )
        second = np.unique(numbers[:, 1:2])
        bare = encoder.tokens([_bare(names[i]) for i in second], first=True)
        full = encoder.tokens([names[i] for i in second], first=False)
        self._leads = np.zeros(len(names), np.int64)
        """For second units: how many of their tokens are others than where the word is the first."""
        self._leads[second] = [len(later) - _common_end(later, first) for later, first in zip(full, bare, strict=True)]

    def known(self, numbers: NDArray[Any]) -> NDArray[np.bool_]:
        """Which n-grams have tokens for all their units."""
        there: NDArray[np.bool_] = (self._later.lengths[numbers[:, 1:]] > 0).all(axis=1)
        there &= self._first.lengths[numbers[:, 0]] > 0
        return there

    def spell(self, numbers: NDArray[Any], counts: Indices) -> SpelledNgrams:
        columns = [(self._first if place == 0 else self._later, numbers[:, place]) for place in range(numbers.shape[1])]
        sizes = np.stack([column.lengths[units] for column, units in columns], axis=1)
        lengths = np.minimum(sizes.sum(axis=1), LONGEST)
        rows = np.full((len(numbers), int(lengths.max(initial=0))), -1, np.int32)
        place = np.zeros(len(numbers), np.int64)
        for (column, units), size in zip(columns, sizes.T, strict=True):
            starts = column.starts[units]
            for step in range(int(size.max(initial=0))):
                here = np.flatnonzero((step < size) & (place + step < rows.shape[1]))
                rows[here, place[here] + step] = column.flat[starts[here] + step]
            place = place + size
        repeated = np.full(len(rows), NEVER)
        if numbers.shape[1] > 1:
            repeated = sizes[:, 0] + self._leads[numbers[:, 1]]
        return SpelledNgrams(rows, lengths, np.minimum(place - sizes[:, -1], LONGEST), repeated, counts)

    def unsafe(self, numbers: NDArray[Any], texts: pa.Array) -> NDArray[np.bool_]:
        """Which n-grams hold a gap behind which tokens depend on the text before it."""
        kinds, kind_of = np.unique(np.array([_gap(name) for name in self._names]), return_inverse=True)
        held = kind_of[numbers[:, 1:]]
        crossed = np.isin(kinds, list(self._encoder.crossed))
        known = np.repeat(self.known(numbers) & ~crossed[held].any(axis=1), held.shape[1])
        order = np.argsort(held.ravel(), kind="stable")
        order = order[known[order]]
        ends = np.cumsum(np.bincount(held.ravel()[order], minlength=len(kinds)))
        uses = np.diff(ends, prepend=0)
        unsafe = np.ones(len(kinds), bool)
        for kind in np.argsort(-uses, kind="stable")[:KNOWN_GAPS]:
            if uses[kind]:
                among = order[ends[kind] - uses[kind] : ends[kind] : -(-uses[kind] // TRIED)] // held.shape[1]
                unsafe[kind] = not self._adds_up(numbers[among], texts.take(among).to_pylist())
                if unsafe[kind]:
                    self._encoder.crossed.add(str(kinds[kind]))
        found: NDArray[np.bool_] = unsafe[held].any(axis=1)
        return found

    def _adds_up(self, numbers: NDArray[Any], texts: list[str]) -> bool:
        """Whether these n-grams, encoded whole, have the tokens of their units."""
        found = self.spell(numbers, np.zeros(len(numbers), np.int64))
        wholes = behind([text.replace(TAB, "") for text in texts], self._encoder.vocabulary, first=True)
        pairs = zip(found.tokens, found.lengths, wholes, strict=True)
        return all(row[:length].tolist() == whole[:LONGEST] for row, length, whole in pairs if whole)


def behind(texts: Sequence[str], vocabulary: Vocabulary, *, first: bool) -> list[list[int]]:
    """The tokens of each text as it stands behind others. A ``first`` word has a space before it, where its script has
    spaces. Empty for a text that shares a token with every text before it."""
    found: list[list[int]] = [[] for _ in texts]
    for unspaced, anchors in BEFORE.items():
        waiting = [number for number, text in enumerate(texts) if (text != "" and _is_unspaced(text[0])) == unspaced]
        space = " " if first and not unspaced else ""
        for anchor in anchors:
            if not waiting:
                break
            (before,) = vocabulary.encode_all([anchor])
            both = vocabulary.encode_all([anchor + space + texts[number] for number in waiting])
            for number, tokens in zip(waiting, both, strict=True):
                if tokens[: len(before)] == before:
                    found[number] = tokens[len(before) :]
            waiting = [number for number in waiting if not found[number]]
    return found


def _encoded_whole(texts: list[str], counts: Indices, vocabulary: Vocabulary) -> SpelledNgrams:
    """N-grams one by one. The last word begins where they part from what they are without it."""
    wholes = behind([text.replace(TAB, "") for text in texts], vocabulary, first=True)
    heads = behind([text.rpartition(TAB)[0].replace(TAB, "") for text in texts], vocabulary, first=True)
    tails = behind([_bare(text.partition(TAB)[2].replace(TAB, "")) for text in texts], vocabulary, first=True)
    rows = [whole[:LONGEST] for whole in wholes]
    return SpelledNgrams(
        tokens=np.array([*zip_longest(*rows, fillvalue=-1)], np.int32).reshape(-1, len(rows)).T,
        lengths=np.array([len(row) for row in rows]),
        starts=np.array([_common(whole, head) for whole, head in zip(wholes, heads, strict=True)]),
        repeated=np.array([len(whole) - _common_end(whole, tail) for whole, tail in zip(wholes, tails, strict=True)]),
        counts=counts,
    )


def _is_unspaced(letter: str) -> bool:
    """Whether a character belongs to a script without spaces between words."""
    return letter >= FIRST_SPACELESS and any(first <= ord(letter) <= last for first, last in SPACELESS)


def _gap(unit: str) -> str:
    """The gap before the word of a unit, and behind it a mark for scripts without spaces: a character that no gap
    holds, and not NUL, for numpy drops that."""
    found = word_pattern().search(unit)
    if found is None:
        return unit
    return unit[: found.start()] + (TAB if _is_unspaced(unit[found.start()]) else "")


def _bare(unit: str) -> str:
    """A unit without the gap before it."""
    found = word_pattern().search(unit)
    return unit if found is None else unit[found.start() :]


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    for place, (mine, theirs) in enumerate(zip(one, other, strict=False)):
        if mine != theirs:
            return place
    return min(len(one), len(other))


def _common_end(one: list[int], other: list[int]) -> int:
    return _common(one[::-1], other[::-1])
