"""A dictionary's file: the same bytes from the same corpus and tokenizer, and nothing in it is believed.

A file, little-endian::

    0   8  "PACEDICT"                 16  32  SHA-256 of all that follows the first 64 bytes
    8   4  version of the format      48   8  bytes of the sections, packed
    12  4  bytes of the description   56   4  zeros
                                      60   4  CRC-32 of the first 60 bytes

    the description: JSON, one line
    the sections, one behind the other, packed as one raw LZMA2 stream

    alphabet   4 bytes each: the token ids that occur, ascending; a token is told by its place among them, in 2 bytes
               where there are at most 65,536 of them and otherwise in 4
    shapes     1 byte an entry: how many tokens its key shares with the one before it (times 16), and how many it has
    keys       the other tokens of each key. Keys are told in ascending order, the first token deciding first; what
               follows, in the order of the keys read backwards
    levels     1 byte an entry: the level of the first token's probability (times 16), and of the later ones
    firsts     the first token that each entry proposes
    strays     4 bytes each: which entries go on in another way than the one that they lead to, ascending
    lengths    1 byte for each stray, and for each entry that leads to none: tokens behind the first
    tails      these tokens

How sections are made of entries is said in `packing`. Their sizes follow from the numbers in the description; no more
than those is ever unpacked, and those are bounded by the size of the file. Every number that leads to another place is
compared with the place's size. So a file that was made to do harm is at worst a dictionary of useless drafts. It is no
searchable structure, though; `index` makes one.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from paceline.dictionary.packing import Sizes, pack, unpack
from paceline.dictionary.statistics import LONGEST
from paceline.dictionary.table import Table
from paceline.files import write_whole
from paceline.files.reading import open_file
from paceline.vocabulary import Vocabulary

MAGIC = b"PACEDICT"
VERSION = 2
SIZE = 64
_FIELDS = struct.Struct("<8sII32sQ4x")
_CHECKSUM = struct.Struct("<I")
DESCRIBED = 1 << 16
"""Bytes of a description at most."""
MOST = 1 << 24
"""Entries, completions and different tokens at most."""
LARGEST = 1 << 30
"""Bytes of a file at most."""
DENSEST = 8
"""Times their packed size that sections may take beyond `FREE`; those of languages take two to three times that."""
FREE = 1 << 22
FEW = 1 << 17
"""Entries that may be packed as small as they like. More of them take a byte each at least; those of
languages take three to five. To read an entry takes some 300 bytes of memory, so a small file takes no large one."""
_FILTERS = [{"id": 0x21, "dict_size": 1 << 23, "lc": 3, "lp": 0, "pb": 2, "mode": 2, "nice_len": 64, "mf": 0x14}]
"""LZMA2. The window is fixed, so no file says how much memory its reader needs; all else only matters for writing."""
DEEP = 3
"""Lists and objects within each other at most, in what is told of the corpus."""
IDS = 2**31


@dataclass(frozen=True, kw_only=True)
class Header(Sizes):
    """What a dictionary says of itself."""

    tokenizer: str
    """The fingerprint of the vocabulary that its ids belong to."""
    language: str
    order: int
    """Words of an n-gram at most."""
    min_probability: float
    corpus: Mapping[str, Any] = field(default_factory=dict)
    """What it was built from: fingerprint, words, documents, bytes, n-grams."""
    licence: str = ""
    """Under which the corpus may be used, as whoever built it says."""
    tokenizer_name: str = ""
    """What the tokenizer was called there."""

    def check(self, path: str | Path, vocab_size: int, vocabulary: Vocabulary | None) -> None:
        """Refuse to draft for another tokenizer. Without one only the ids can be judged."""
        if vocabulary is not None and vocabulary.fingerprint != self.tokenizer:
            named = f" ({self.tokenizer_name})" if self.tokenizer_name else ""
            raise ValueError(f"{path} is a dictionary for another tokenizer{named} than the model's; build one for it")
        if self.highest >= vocab_size:
            raise ValueError(
                f"{path} holds token {self.highest}, and the model's vocabulary has {vocab_size} tokens; "
                "build one for this model"
            )


def write(path: Path, table: Table, *, longest_prefix: int, longest_completion: int, **described: Any) -> Header:
    """Write a dictionary, all of it or nothing."""
    sizes, sections = pack(table, longest_prefix, longest_completion)
    header = Header(**asdict(sizes), **described)
    description = _description(header)
    if len(description) > DESCRIBED:
        raise ValueError(f"what is said of {path} takes {len(description)} bytes; shorten its licence note")
    assert {name: len(part) for name, part in sections.items()} == header.sections, "sections are as long as they say"
    packed = squeezed(b"".join(sections.values()))
    if not _believable(header, len(packed)):
        raise ValueError(f"the entries of {path} are more regular than those of any language; give other text")
    digest = hashlib.sha256(description + packed).digest()
    fields = _FIELDS.pack(MAGIC, VERSION, len(description), digest, len(packed))
    write_whole(path, [fields, _CHECKSUM.pack(zlib.crc32(fields)), description, packed])
    return header


def squeezed(sections: bytes) -> bytes:
    """Sections, packed."""
    lzma = _lzma()
    packed: bytes = lzma.compress(sections, format=lzma.FORMAT_RAW, filters=_FILTERS)
    return packed


def readable() -> bool:
    """Whether any dictionary can be read here: a Python that was built by hand may lack what they are packed with."""
    try:
        import lzma  # noqa: F401
    except ImportError:
        return False
    return True


def _lzma() -> Any:
    """The standard library's module."""
    if not readable():
        raise ValueError(
            "this Python was built without lzma, which dictionaries are packed with; install liblzma's development "
            "files and build it again, or take another Python"
        )
    import lzma

    return lzma


def _believable(header: Header, packed: int) -> bool:
    """Whether so many bytes can hold what is said of them."""
    dense = sum(header.sections.values()) > max(FREE, DENSEST * packed)
    return not dense and header.entries <= max(FEW, packed)


def read(path: str | Path) -> tuple[Header, Table]:
    """Header and entries of a file that is whole and makes sense."""
    header, packed, _ = read_header(path)
    return header, unpacked(path, header, packed)


def read_header(path: str | Path) -> tuple[Header, bytes, bytes]:
    """Header and packed sections of a file that is whole, and the digest of both."""
    with _opened(path) as file:
        length, digest, size = _begun(path, file.read(SIZE))
        description = file.read(length)
        header = _header(path, description)
        expected = SIZE + length + size
        if (found := os.fstat(file.fileno()).st_size) != expected:
            raise ValueError(f"{path} is damaged: it has {found} bytes and should have {expected}; build it again")
        packed = file.read()
    if hashlib.sha256(description + packed).digest() != digest:
        raise ValueError(f"{path} is damaged: it does not agree with its digest; build it again or fetch it again")
    return header, packed, digest


def unpacked(path: str | Path, header: Header, packed: bytes) -> Table:
    """The entries in a file's sections, if they make sense."""
    _lzma()  # that it is missing is no damage
    try:
        whole = unsqueezed(header, packed)
        parts, start = dict[str, bytes](), 0
        for name, size in header.sections.items():
            parts[name] = whole[start : start + size]
            start += size
        return unpack(header, parts)
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}; build it again or fetch it again") from None


def unsqueezed(header: Header, packed: bytes) -> bytes:
    """The sections, and never more than they should be."""
    if not _believable(header, len(packed)):
        raise ValueError("it says that it holds more than so few bytes can")
    lzma, size = _lzma(), sum(header.sections.values())
    reader = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=_FILTERS)
    try:
        whole: bytes = reader.decompress(packed, size + 1)
    except lzma.LZMAError:
        raise ValueError("its sections cannot be unpacked") from None
    if len(whole) != size or not reader.eof or reader.unused_data:
        raise ValueError("its sections have other sizes than it says")
    return whole


def _opened(path: str | Path) -> Any:
    try:
        return open_file(path, LARGEST)
    except OSError as error:
        raise ValueError(
            f"cannot read the dictionary {path}: {error.strerror}; 'paceline dict build' makes one"
        ) from None


def _begun(path: str | Path, beginning: bytes) -> tuple[int, bytes, int]:
    """How long the description is, the digest, and how long the packed sections are."""
    if beginning[: len(MAGIC)] != MAGIC:
        raise ValueError(f"{path} is no dictionary of paceline; 'paceline dict build' makes one")
    if len(beginning) < SIZE:
        raise ValueError(f"{path} is damaged: it ends after {len(beginning)} bytes; build it again or fetch it again")
    _, version, length, digest, size = _FIELDS.unpack(beginning[: _FIELDS.size])
    if version != VERSION:
        raise ValueError(
            f"{path} is a dictionary of version {version}, and this paceline reads version {VERSION}; build it again"
        )
    (checksum,) = _CHECKSUM.unpack(beginning[_FIELDS.size :])
    if zlib.crc32(beginning[: _FIELDS.size]) != checksum or length > DESCRIBED:
        raise ValueError(f"{path} is damaged: its beginning does not agree with its checksum; build it again")
    return length, digest, size


def _description(header: Header) -> bytes:
    return json.dumps(asdict(header), sort_keys=True, ensure_ascii=False, allow_nan=False).encode()


def _header(path: str | Path, description: bytes) -> Header:
    try:
        header = Header(**json.loads(description))
        for complaint in _nonsense(header):
            raise ValueError(complaint)
        if _description(header) != description:
            raise ValueError("it is not as paceline writes it")
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: its description cannot be read ({str(error)[:80]})") from None
    return header


def _nonsense(header: Header) -> Iterator[str]:
    """What a description cannot say."""
    for name, least, most in (
        *((name, 0, MOST) for name in ("entries", "completions", "alphabet", "ends", "strays")),
        *((name, 0, MOST * LONGEST) for name in ("key_tokens", "tail_tokens")),
        *((name, 1, LONGEST) for name in ("longest_prefix", "longest_completion", "order")),
        ("highest", 0, IDS - 1),
    ):
        if type(value := getattr(header, name)) is not int or not least <= value <= most:
            yield f"{name} is {value!r}"
    for name in ("tokenizer", "language", "licence", "tokenizer_name"):
        if type(getattr(header, name)) is not str:
            yield f"{name} is no text"
    if type(header.min_probability) not in (int, float) or not 0 <= header.min_probability <= 1:
        yield f"min_probability is {header.min_probability!r}"
    if type(header.corpus) is not dict or not _shallow(header.corpus, DEEP):
        yield "corpus is no plain object"


def _shallow(value: Any, depth: int) -> bool:
    """Whether no more than so many lists and objects are within each other."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return inner is None or (depth > 0 and all(_shallow(one, depth - 1) for one in inner))
