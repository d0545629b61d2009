"""Lookup of the dictionary entries that a text ends with, the longest first.

A MARISA trie holds the keys backwards, so one walk down from the text's last token finds every key that the text ends
with. The trie's library trusts its input, and wrong bytes make it read out of bounds. So it never gets a file from
elsewhere: the trie is built on this machine, from the checked entries of a file. It is stored in the user's cache
folder under the digest of that file, and all processes map it into memory. A missing or damaged trie is built again.
Without a cache folder the trie is built for this process alone. Writing an index removes those that were not opened
for long, since every version of a dictionary has its own index.

A kept index, little-endian::

    header    64 bytes (`_HEADER`)
    answers   4 bytes for each of the trie's numbers: the completion (24 bits), levels of the first token and the rest
    starts    4 bytes a completion and 4 more: where its tokens begin
    tokens    as wide as in the keys: 2 bytes each where every id fits into them, otherwise 4
    trie      MARISA's own bytes
"""

from __future__ import annotations

import mmap
import os
import re
import struct
import zlib
from collections.abc import Iterable
from contextlib import suppress
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
from paceline.dictionary.keys import LONGEST, NOWHERE
from paceline.errors import MissingPackage
from paceline.files import cache_folder, write_whole
from paceline.files.reading import open_file
from paceline.vocabulary import Vocabulary

MAGIC = b"PACEDIDX"
_HEADER = struct.Struct("<8sI16sIIIIQ12x")
"""Magic, CRC-32, MARISA's version, bytes of a token in keys; numbers of entries, of completions, of their tokens and of
the trie's bytes."""
SIZE = _HEADER.size
_NAME = re.compile(r"[0-9a-f]{32}\.index")
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

    def __init__(self, path: str | Path, header: file.DictionaryHeader, image: Any) -> None:
        import marisa_trie

        self.path = str(path)
        self.header = header
        view = memoryview(image)
        _, _, _, width, entries, completions, tokens, trie = _HEADER.unpack(view[:SIZE])
        texts = SIZE + 4 * entries
        start = texts + 4 * (completions + 1)
        self._answers, self._starts = view[SIZE:texts].cast("I"), view[texts:start].cast("I")
        self._tokens = np.frombuffer(view, f"<u{width}", tokens, start)
        self._trie = marisa_trie.BinaryTrie()
        start = _aligned(start + width * tokens)
        self._trie.map(view[start : start + trie])
        self._packers = [struct.Struct(f">{length}{'H' if width == 2 else 'I'}").pack for length in range(LONGEST + 1)]
        self.width = width
        """Bytes of a token."""

    @classmethod
    def open(cls, path: str | Path) -> Dictionary:
        header, image = _header_and_index(path)
        return cls(path, header, image)

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
        """A text's last tokens as they stand in keys; dictionaries of equal ``width`` have the same."""
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


def _header_and_index(path: str | Path) -> tuple[file.DictionaryHeader, Any]:
    if find_spec("marisa_trie") is None:
        raise MissingPackage("dictionaries need marisa-trie, which paceline brings along: pip install -U paceline")
    header, body, digest = file.read_header(path)
    place = _place(digest)
    if place is not None and (image := _mapped(place)) is not None:
        with suppress(OSError):  # its time shows that it is in use; once a day is enough
            if abs(time() - place.stat().st_mtime) > DAY:
                os.utime(place)
        return header, image
    pieces = _indexed(file.unpacked(path, header, body))
    if place is not None:
        with suppress(OSError):
            place.parent.mkdir(parents=True, exist_ok=True)
            write_whole(place, pieces)
            _remove_unused(place.parent)
            if (image := _mapped(place)) is not None:
                return header, image
    return header, b"".join(pieces)


def _place(digest: bytes) -> Path | None:
    """The path of a file's index; None for a user without a home folder."""
    place = cache_folder()
    return None if place is None else place / "dictionaries" / f"{digest.hex()[:32]}.index"  # `_NAME`


def _remove_unused(kept: Path) -> None:
    """Remove old indexes. Processes that have one mapped go on with it."""
    for path in kept.iterdir():
        with suppress(OSError):  # another process was faster, or it may not be removed: then it stays
            found = path.lstat()
            ours = _NAME.fullmatch(path.name) and S_ISREG(found.st_mode)
            if ours and time() - found.st_mtime > UNUSED:
                path.unlink()


def _mapped(place: Path) -> Any:
    """A kept index, if it is there and undamaged."""
    try:
        with open_file(place) as opened:
            image = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError):
        return None
    if len(image) < SIZE or image[:8] != MAGIC:
        return None
    _, checksum, library, width, entries, completions, tokens, trie = _HEADER.unpack(image[:SIZE])
    body = SIZE + 4 * (entries + completions + 1) + width * tokens
    whole = len(image) == _aligned(body) + trie and library.rstrip(b"\0") == _version()
    return image if whole and zlib.crc32(memoryview(image)[12:]) == checksum else None


def _indexed(entries: Entries) -> Iterable[bytes]:
    """The bytes of an index."""
    import marisa_trie

    width = 2 if entries.highest < 2**16 else 4
    keys = _keys(entries, width)
    # frequent branches first, and one trie less within the trie: a fifth less time a walk, for 2 to 4 % more bytes
    trie = marisa_trie.BinaryTrie(keys, num_tries=2, order=marisa_trie.WEIGHT_ORDER)
    answers = np.zeros(len(keys), "<u4")
    numbers = np.fromiter((trie[key] for key in keys), np.int64, len(keys))
    levels = entries.first.astype(np.uint32) << 4 | entries.rest
    answers[numbers] = entries.completions.astype(np.uint32) | levels << 24
    lengths = (entries.texts != NOWHERE).sum(axis=1)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype("<u4")
    tokens = entries.texts[entries.texts != NOWHERE].astype(f"<u{width}")
    image = trie.tobytes()
    body = answers.tobytes() + starts.tobytes() + tokens.tobytes()
    body = body.ljust(_aligned(SIZE + len(body)) - SIZE, b"\0")
    rest = (_version(), width, len(keys), len(lengths), len(tokens), len(image))
    header = _HEADER.pack(MAGIC, 0, *rest)
    checksum = zlib.crc32(image, zlib.crc32(body, zlib.crc32(header[12:])))
    return [_HEADER.pack(MAGIC, checksum, *rest), body, image]


def _aligned(size: int) -> int:
    """The next multiple of 8: where a trie may begin."""
    return -(-size // 8) * 8


def _keys(entries: Entries, width: int) -> list[bytes]:
    """The keys of all entries backwards, each token in so many bytes, the highest byte first."""
    backwards = entries.prefixes[:, ::-1]
    sizes = ((backwards != NOWHERE).sum(axis=1) * width).tolist()
    packed = np.where(backwards >= 0, backwards, 0).astype(f">u{width}").tobytes()
    row = backwards.shape[1] * width
    return [packed[at * row : at * row + size] for at, size in enumerate(sizes)]


def _version() -> bytes:
    """The version of MARISA's library, which fixes its format."""
    return version("marisa-trie").encode()[:16]
