"""A dictionary that is open for looking up: which entries end a text, the longest first.

Keys are put into a MARISA trie backwards, so one walk down from the text's last token meets every key that the text
ends with. The trie's library believes the bytes that it is given, and wrong ones make it read beyond them; so no file
from elsewhere is ever given to it. The trie is built here, from the entries of a file that was read with every number
checked, and kept in the user's cache folder under the digest of that file, where all processes map it into memory. It
is made again whenever it is not there or not whole, and where nothing can be kept it is made for this process alone.

A kept index, little-endian::

    header    64 bytes (`_Kept`)
    answers   4 bytes for each of the trie's numbers: the completion (24 bits), levels of the first token and the rest
    starts    4 bytes a completion and 4 more: where its tokens begin
    tokens    as wide as in the keys: 2 bytes each where every id fits into them, otherwise 4
    trie      MARISA's own bytes
"""

from __future__ import annotations

import mmap
import struct
import zlib
from collections.abc import Iterable
from contextlib import suppress
from importlib.util import find_spec
from math import log
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from paceline.dictionary import file
from paceline.dictionary.statistics import LONGEST, NOWHERE
from paceline.dictionary.table import LEVELS, Table, probability
from paceline.profile.keeping import folder, write_whole
from paceline.vocabulary import Vocabulary

MAGIC = b"PACEDIDX"
_HEADER = struct.Struct("<8sI16sIIIIQ12x")
"""What it is, its CRC-32, MARISA's version, bytes of a token in keys, entries, completions, their tokens, bytes of the
trie."""
SIZE = _HEADER.size
LOGS = tuple(log(probability(level)) for level in range(LEVELS))


class Match(NamedTuple):
    """An entry that a text ends with."""

    length: int
    """Tokens of the text that it matched."""
    tokens: tuple[int, ...]
    """What it proposes."""
    first: float
    """The log-probability of the first of them, coarsely."""
    rest: float
    """That of each later one."""


class Dictionary:
    """A dictionary's file, open. Nothing in it changes, so one serves every text, thread and process."""

    def __init__(self, path: str | Path, header: file.Header, image: Any) -> None:
        import marisa_trie

        self.path = str(path)
        self.header = header
        view = memoryview(image)
        _, _, _, width, entries, completions, tokens, trie = _HEADER.unpack(view[:SIZE])
        parts, start = [], SIZE
        for count, bytes_each in ((entries, 4), (completions + 1, 4), (tokens, width)):
            parts.append(view[start : start + count * bytes_each].cast("I" if bytes_each == 4 else "H"))
            start += count * bytes_each
        self._answers, self._starts, self._tokens = parts
        self._trie = marisa_trie.BinaryTrie()
        start = -(-start // 8) * 8
        self._trie.map(view[start : start + trie])
        self._packers = [struct.Struct(f">{length}{'H' if width == 2 else 'I'}").pack for length in range(LONGEST + 1)]
        self._width = width

    @classmethod
    def open(cls, path: str | Path) -> Dictionary:
        """Open a dictionary; one sentence says why it cannot be."""
        header, image = _kept(path)
        return cls(path, header, image)

    def __len__(self) -> int:
        return self.header.entries

    def check(self, vocab_size: int, vocabulary: Vocabulary | None) -> None:
        """Refuse to draft for another tokenizer."""
        self.header.check(self.path, vocab_size, vocabulary)

    def match(self, ending: list[int]) -> Match | None:
        """The longest ending of a text that is an entry. Ids must be those of the tokenizer."""
        found = self._prefixes(ending)
        return self._told(found[-1]) if found else None

    def matches(self, ending: list[int]) -> list[Match]:
        """All of them, the longest first."""
        return [self._told(key) for key in reversed(self._prefixes(ending))]

    def _prefixes(self, ending: list[int]) -> list[bytes]:
        backwards = ending[: -LONGEST - 1 : -1]
        try:
            found: list[bytes] = self._trie.prefixes(self._packers[len(backwards)](*backwards))
        except struct.error:  # an id that does not fit into the width of this dictionary's ids: nothing ends in it
            return self._prefixes(_fitting(ending, 8 * self._width))
        return found

    def _told(self, key: bytes) -> Match:
        answer = self._answers[self._trie[key]]
        which = answer & 0xFFFFFF
        tokens = tuple(self._tokens[self._starts[which] : self._starts[which + 1]])
        return Match(len(key) // self._width, tokens, LOGS[answer >> 28], LOGS[answer >> 24 & 15])


def _fitting(ending: list[int], bits: int) -> list[int]:
    """What stands behind the last id that is too high."""
    for place in range(len(ending) - 1, -1, -1):
        if ending[place] >> bits:
            return ending[place + 1 :]
    return ending


def _kept(path: str | Path) -> tuple[file.Header, Any]:
    """A file's header, and its index: the kept one, or a new one."""
    if find_spec("marisa_trie") is None:
        raise ValueError("dictionaries need marisa-trie, which paceline brings along: pip install -U paceline")
    header, body, digest = file.read_header(path)
    place = _place(digest)
    if place is not None and (image := _mapped(place)) is not None:
        return header, image
    pieces = _indexed(file.unpacked(path, header, body))
    if place is not None:
        with suppress(OSError):
            place.parent.mkdir(parents=True, exist_ok=True)
            write_whole(place, pieces)
            if (image := _mapped(place)) is not None:
                return header, image
    return header, b"".join(pieces)


def _place(digest: bytes) -> Path | None:
    """Where the index of a file is kept; nowhere for a user who has no home."""
    try:
        return folder() / "dictionaries" / f"{digest.hex()[:32]}.index"
    except RuntimeError:
        return None


def _mapped(place: Path) -> Any:
    """A kept index, if it is there and as it was written."""
    try:
        with place.open("rb") as opened:
            image = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError):
        return None
    if len(image) < SIZE or image[:8] != MAGIC:
        return None
    _, checksum, version, width, entries, completions, tokens, trie = _HEADER.unpack(image[:SIZE])
    body = SIZE + 4 * (entries + completions + 1) + width * tokens
    whole = len(image) == -(-body // 8) * 8 + trie and version.rstrip(b"\0") == _version()
    return image if whole and zlib.crc32(memoryview(image)[12:]) == checksum else None


def _indexed(table: Table) -> Iterable[bytes]:
    """The bytes of an index."""
    import marisa_trie

    width = 2 if table.highest < 2**16 else 4
    keys = _keys(table, width)
    trie = marisa_trie.BinaryTrie(keys)
    answers = np.zeros(len(keys), "<u4")
    numbers = np.fromiter((trie[key] for key in keys), np.int64, len(keys))
    levels = table.first.astype(np.uint32) << 4 | table.rest
    answers[numbers] = table.completions.astype(np.uint32) | levels << 24
    lengths = (table.texts != NOWHERE).sum(axis=1)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype("<u4")
    tokens = table.texts[table.texts != NOWHERE].astype(f"<u{width}")
    image = trie.tobytes()
    body = answers.tobytes() + starts.tobytes() + tokens.tobytes()
    body += b"\0" * (-(SIZE + len(body)) % 8)
    rest = (_version(), width, len(keys), len(lengths), len(tokens), len(image))
    header = _HEADER.pack(MAGIC, 0, *rest)
    checksum = zlib.crc32(image, zlib.crc32(body, zlib.crc32(header[12:])))
    return [_HEADER.pack(MAGIC, checksum, *rest), body, image]


def _keys(table: Table, width: int) -> list[bytes]:
    """The keys of all entries backwards, each token in so many bytes, the highest byte first."""
    backwards = table.prefixes[:, ::-1]
    sizes = ((backwards != NOWHERE).sum(axis=1) * width).tolist()
    packed = np.where(backwards >= 0, backwards, 0).astype(f">u{width}").tobytes()
    row = backwards.shape[1] * width
    return [packed[at * row : at * row + size] for at, size in enumerate(sizes)]


def _version() -> bytes:
    from importlib.metadata import version

    return version("marisa-trie").encode()[:16]
