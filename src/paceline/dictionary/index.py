"""Lookup of the dictionary entries that a text ends with, the longest first.

A MARISA trie holds the keys backwards, so one walk down from the text's last token finds every key that the text ends
with. The trie's library trusts its input, and wrong bytes make it read out of bounds. So it never gets a file from
elsewhere: the trie is built on this machine, from the checked entries of a file. It is stored in the user's cache
folder under the digest of that file, and all processes map it into memory. A missing or damaged trie is built again.
Without a cache folder the trie is built for this process alone. Writing an index removes those that were not opened
for long, since every version of a dictionary has its own index.

An index, kept or not, has these arrays::

    answers   for each of the trie's numbers: the completion (24 bits), levels of the first token and the rest
    starts    where the tokens of each completion begin, and where those of the last one end
    tokens    as wide as in the keys: 2 bytes each where every id fits into them, otherwise 4
    trie      MARISA's own file
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from math import log
from pathlib import Path
from stat import S_ISREG
from time import time
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.dictionary import file
from paceline.dictionary.entries import LEVELS, Entries, probability
from paceline.dictionary.header import DictionaryHeader
from paceline.dictionary.keys import LONGEST, NOWHERE
from paceline.errors import MissingPackage
from paceline.files import cache_folder
from paceline.files.arrays import ArrayFormat
from paceline.vocabulary import Vocabulary


@dataclass(frozen=True)
class TrieVersion:
    """The description of a kept index."""

    marisa: str
    """The version of MARISA's library, which fixes its format."""


KEPT = ArrayFormat(
    "index",
    2,
    TrieVersion,
    {"answers": "U32", "starts": "U32", "tokens": "U16 U32", "trie": "U64"},
    "it is built again",
)
_NAME = re.compile(r"[0-9a-f]{32}\.index")
Index = Mapping[str, NDArray[Any]]
DAY = 24 * 60 * 60
UNUSED = 90 * DAY
"""Seconds after which an index that was not opened is removed."""
LOGS = tuple(log(probability(level)) for level in range(LEVELS))


class Match(NamedTuple):
    """An entry that a text ends with."""

    length: int
    """Tokens of the text that it matched."""
    tokens: tuple[int, ...]
    """The tokens that it proposes."""
    first: float
    """The log-probability of the first of them, rounded to a level."""
    rest: float
    """The log-probability of each later one."""


class Dictionary:
    """An open dictionary. It never changes, so all texts, threads and processes can share it."""

    def __init__(self, path: str | Path, header: DictionaryHeader, index: Index) -> None:
        import marisa_trie

        self.path = str(path)
        self.header = header
        self._answers, self._starts, self._tokens = index["answers"].data, index["starts"].data, index["tokens"]
        self._bytes = index["trie"].data.cast("B")  # the trie reads them and does not keep them
        self._trie = marisa_trie.BinaryTrie()
        self._trie.map(self._bytes)
        self.width = self._tokens.itemsize
        """Bytes of a token."""
        self._packers = [
            struct.Struct(f">{length}{'H' if self.width == 2 else 'I'}").pack for length in range(LONGEST + 1)
        ]

    @classmethod
    def open(cls, path: str | Path) -> Dictionary:
        if find_spec("marisa_trie") is None:
            raise MissingPackage("dictionaries need marisa-trie, which paceline brings along: pip install -U paceline")
        opened = file.open_dictionary(path)
        place = _place(opened.digest)
        index = None if place is None else _kept(place)
        if index is None:
            index = _indexed(opened.entries())
            if place is not None:
                index = _keep(place, index) or index
        return cls(path, opened.header, index)

    def __len__(self) -> int:
        return self.header.entries

    def check(self, vocab_size: int, vocabulary: Vocabulary | None) -> None:
        """Refuse to draft for another tokenizer."""
        self.header.check(self.path, vocab_size, vocabulary)

    def matches(self, ending: list[int]) -> list[Match]:
        """All entries that a text ends with, the longest first."""
        return [self._match(*self._entry(key)) for key in reversed(self._trie.prefixes(self.packed(ending)))]

    def longest(self, ending: bytes) -> tuple[int, int] | None:
        """The longest entry that a `packed` text ends with: how many tokens matched, and a number for the answer. Equal
        numbers of one dictionary stand for the same tokens with the same probabilities."""
        found = self._trie.prefixes(ending)
        return self._entry(found[-1]) if found else None

    def first(self, answer: int) -> int:
        """The first token of an answer."""
        token: int = self._tokens.item(self._starts[answer & 0xFFFFFF])
        return token

    def proposed(self, answer: int) -> NDArray[Any]:
        """All tokens of an answer, read-only."""
        which = answer & 0xFFFFFF
        return self._tokens[self._starts[which] : self._starts[which + 1]]

    def packed(self, ending: list[int]) -> bytes:
        """A text's last tokens in the form of keys; dictionaries of equal ``width`` have the same."""
        backwards = ending[: -LONGEST - 1 : -1]
        try:
            return self._packers[len(backwards)](*backwards)
        except struct.error:  # an id too high for this dictionary: no key holds it
            last = ending[-LONGEST:]
            high = max(place for place, token in enumerate(last) if token >> 8 * self.width)
            return self.packed(last[high + 1 :])

    def _entry(self, key: bytes) -> tuple[int, int]:
        return len(key) // self.width, self._answers[self._trie[key]]

    def _match(self, length: int, answer: int) -> Match:
        return Match(length, tuple(self.proposed(answer).tolist()), *sureness(answer >> 24))


def sureness(levels: int) -> tuple[float, float]:
    """The log-probabilities of a first token and of each later one, from an answer's highest byte."""
    return LOGS[levels >> 4], LOGS[levels & 15]


def _place(digest: str) -> Path | None:
    """The path of a file's index; None for a user without a home folder."""
    place = cache_folder()
    return None if place is None else place / "dictionaries" / f"{digest[:32]}.index"  # `_NAME`


def _kept(place: Path) -> Index | None:
    """A kept index, if it is there and undamaged."""
    try:
        kept = KEPT.open(place)
        arrays = kept.verified()
    except ValueError:
        return None
    if kept.description.marisa != _version():
        return None
    with suppress(OSError):  # its time shows that it is in use; once a day is enough
        if abs(time() - place.stat().st_mtime) > DAY:
            os.utime(place)
    return arrays


def _keep(place: Path, index: Index) -> Index | None:
    """The same index from its file, which processes share; None where it cannot be kept."""
    with suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        KEPT.write(place, TrieVersion(_version()), index)
        _remove_unused(place.parent)
    return _kept(place)


def _remove_unused(kept: Path) -> None:
    """Remove old indexes. Processes that have one mapped go on with it."""
    for path in kept.iterdir():
        with suppress(OSError):  # another process was faster, or it may not be removed: then it stays
            found = path.lstat()
            ours = _NAME.fullmatch(path.name) and S_ISREG(found.st_mode)
            if ours and time() - found.st_mtime > UNUSED:
                path.unlink()


def _indexed(entries: Entries) -> Index:
    import marisa_trie

    width = 2 if entries.highest < 2**16 else 4
    keys = _keys(entries, width)
    # frequent branches first, and one trie less within the trie: a fifth less time a walk, for 2 to 4 % more bytes
    trie = marisa_trie.BinaryTrie(keys, num_tries=2, order=marisa_trie.WEIGHT_ORDER)
    answers = np.zeros(len(keys), np.uint32)
    numbers = np.fromiter((trie[key] for key in keys), np.int64, len(keys))
    levels = entries.first.astype(np.uint32) << 4 | entries.rest
    answers[numbers] = entries.completions.astype(np.uint32) | levels << 24
    lengths = (entries.texts != NOWHERE).sum(axis=1)
    return {
        "answers": answers,
        "starts": np.concatenate([[0], np.cumsum(lengths)]).astype(np.uint32),
        "tokens": entries.texts[entries.texts != NOWHERE].astype(f"<u{width}"),
        "trie": np.frombuffer(trie.tobytes(), np.uint64),
    }


def _keys(entries: Entries, width: int) -> list[bytes]:
    """The keys of all entries backwards, each token in ``width`` bytes, the highest byte first."""
    backwards = entries.prefixes[:, ::-1]
    sizes = ((backwards != NOWHERE).sum(axis=1) * width).tolist()
    packed = np.where(backwards >= 0, backwards, 0).astype(f">u{width}").tobytes()
    row = backwards.shape[1] * width
    return [packed[at * row : at * row + size] for at, size in enumerate(sizes)]


@cache
def _version() -> str:
    return version("marisa-trie")
