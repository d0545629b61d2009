"""The file of a dictionary: the same bytes from the same corpus and tokenizer. The reader checks everything.

A file, little-endian::

    0   8  "PACEDICT"                 16  32  SHA-256 of all that follows the first 64 bytes
    8   4  version of the format      48   8  bytes of the sections, packed
    12  4  bytes of the description   56   4  zeros
                                      60   4  CRC-32 of the first 60 bytes

    the description: JSON, one line
    the sections, one behind the other, packed as one raw LZMA2 stream

    alphabet   4 bytes each: the token ids that occur, ascending; a token is written as its place among them, in 2 bytes
               where there are at most 65,536 of them and otherwise in 4
    shapes     1 byte an entry: how many tokens its key shares with the one before it (times 16), and how many it has
    keys       the other tokens of each key. Keys stand in ascending order, the first token deciding first; what
               follows, in the order of the keys read backwards
    levels     1 byte an entry: the level of the first token's probability (times 16), and of the later ones
    firsts     the first token that each entry proposes
    strays     4 bytes each: which entries go on in another way than the one that they lead to, ascending
    lengths    1 byte for each stray, and for each entry that leads to none: tokens behind the first
    tails      these tokens

`packing` makes the sections from entries. Their sizes follow from the numbers in the description and are bounded by the
size of the file; no more is ever unpacked. Every number that points to another place is compared with the size of that
place. So the worst that a malicious file can do is to propose useless drafts. A file cannot be searched; `index` makes
a structure that can.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from paceline.dictionary.entries import Entries
from paceline.dictionary.packing import Length, Sizes, pack, unpack
from paceline.dictionary.rules import EntryRule
from paceline.errors import DamagedFile, InputError, MissingPackage
from paceline.files import write_whole
from paceline.files.reading import open_file, parse
from paceline.files.shape import Bounds, shaped
from paceline.vocabulary import Vocabulary

MAGIC = b"PACEDICT"
VERSION = 3
WITHOUT_RULE = 2
"""The earlier version, which had one rule for entries and does not name it."""
SIZE = 64
_FIELDS = struct.Struct("<8sII32sQ4x")
_CHECKSUM = struct.Struct("<I")
DESCRIBED = 1 << 16
"""Bytes of a description at most."""
LARGEST = 1 << 30
"""Bytes of a file at most."""
DENSEST = 8
"""Times their packed size that sections may take beyond `FREE`; those of languages take two to three times that."""
FREE = 1 << 22
FEW = 1 << 17
"""This many entries may be packed to any size. Further entries take at least a byte each; those of languages take three
to five. Reading an entry takes some 300 bytes of memory, so a small file cannot demand much memory."""
_FILTERS = [{"id": 0x21, "dict_size": 1 << 23, "lc": 3, "lp": 0, "pb": 2, "mode": 2, "nice_len": 64, "mf": 0x14}]
"""LZMA2. The window is fixed, so a file cannot choose the memory of its reader; the rest only matters for writing."""


@dataclass(frozen=True, kw_only=True)
class DictionaryHeader(Sizes):
    """The description of a dictionary in its file."""

    tokenizer: str
    """The fingerprint of the vocabulary that its ids belong to."""
    language: str
    order: Length
    """Words of an n-gram at most."""
    min_probability: Annotated[float, Bounds(0, 1)]
    rule: EntryRule = EntryRule.TOKEN
    """What an entry proposes."""
    corpus: Mapping[str, Any] = field(default_factory=dict)
    """The corpus that it was built from: fingerprint, words, documents, bytes, n-grams."""
    licence: str = ""
    """The licence of the corpus, as its builder stated it."""
    tokenizer_name: str = ""
    """The tokenizer's name where the dictionary was built."""

    def check(self, path: str | Path, vocab_size: int, vocabulary: Vocabulary | None) -> None:
        """Refuse to draft for another tokenizer. Without a vocabulary only the ids can be checked."""
        if vocabulary is not None and vocabulary.fingerprint != self.tokenizer:
            named = f" ({self.tokenizer_name})" if self.tokenizer_name else ""
            raise InputError(f"{path} is a dictionary for another tokenizer{named} than the model's; build one for it")
        if self.highest >= vocab_size:
            raise InputError(
                f"{path} holds token {self.highest}, and the model's vocabulary has {vocab_size} tokens; "
                "build one for this model"
            )


def write(
    path: Path, entries: Entries, *, longest_prefix: int, longest_completion: int, **described: Any
) -> DictionaryHeader:
    """Write a dictionary, all or nothing."""
    sizes, sections = pack(entries, longest_prefix, longest_completion)
    header = DictionaryHeader(**asdict(sizes), **described)
    description = _description(header, VERSION)
    if len(description) > DESCRIBED:
        raise InputError(f"the description of {path} takes {len(description)} bytes; shorten its licence note")
    assert {name: len(part) for name, part in sections.items()} == header.sections, "sections have their stated sizes"
    packed = compressed(b"".join(sections.values()))
    if not _believable(header, len(packed)):
        raise InputError(f"the entries of {path} are more regular than those of any language; give other text")
    digest = hashlib.sha256(description + packed).digest()
    fields = _FIELDS.pack(MAGIC, VERSION, len(description), digest, len(packed))
    write_whole(path, [fields, _CHECKSUM.pack(zlib.crc32(fields)), description, packed])
    return header


def read(path: str | Path) -> tuple[DictionaryHeader, Entries]:
    """Header and entries of a file, checked."""
    header, packed, _ = read_header(path)
    return header, unpacked(path, header, packed)


def read_header(path: str | Path) -> tuple[DictionaryHeader, bytes, bytes]:
    """Header and packed sections of an undamaged file, and the digest of both."""
    try:
        opened = open_file(path, LARGEST)
    except OSError as error:
        raise InputError(
            f"cannot read the dictionary {path}: {error.strerror}; 'paceline dict build' makes one"
        ) from None
    with opened as file:
        version, length, digest, size = _begun(path, file.read(SIZE))
        description = file.read(length)
        header = _header(path, version, description)
        expected = SIZE + length + size
        if (found := os.fstat(file.fileno()).st_size) != expected:
            raise DamagedFile(f"{path} is damaged: it has {found} bytes and should have {expected}; build it again")
        packed = file.read()
    if hashlib.sha256(description + packed).digest() != digest:
        raise DamagedFile(f"{path} is damaged: it does not agree with its digest; build it again or fetch it again")
    return header, packed, digest


def unpacked(path: str | Path, header: DictionaryHeader, packed: bytes) -> Entries:
    """The entries in a file's sections, checked."""
    _lzma()  # a missing library is no damage
    try:
        whole = decompressed(header, packed)
        sections, start = dict[str, bytes](), 0
        for name, size in header.sections.items():
            sections[name] = whole[start : start + size]
            start += size
        return unpack(header, sections)
    except ValueError as error:
        raise DamagedFile(f"{path} is damaged: {error}; build it again or fetch it again") from None


def compressed(sections: bytes) -> bytes:
    lzma = _lzma()
    packed: bytes = lzma.compress(sections, format=lzma.FORMAT_RAW, filters=_FILTERS)
    return packed


def decompressed(header: DictionaryHeader, packed: bytes) -> bytes:
    """The sections, and never more bytes than the header says."""
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


def readable() -> bool:
    """Whether dictionaries can be read here: a Python that was built by hand may lack lzma."""
    try:
        import lzma  # noqa: F401
    except ImportError:
        return False
    return True


def _lzma() -> Any:
    if not readable():
        raise MissingPackage(
            "this Python was built without lzma, which dictionaries are packed with; install liblzma's development "
            "files and build it again, or take another Python"
        )
    import lzma

    return lzma


def _believable(header: DictionaryHeader, packed: int) -> bool:
    """Whether so many bytes can hold what the header says."""
    dense = sum(header.sections.values()) > max(FREE, DENSEST * packed)
    return not dense and header.entries <= max(FEW, packed)


def _begun(path: str | Path, beginning: bytes) -> tuple[int, int, bytes, int]:
    """The version, the length of the description, the digest, and the length of the packed sections."""
    if beginning[: len(MAGIC)] != MAGIC:
        raise InputError(f"{path} is no dictionary of paceline; 'paceline dict build' makes one")
    if len(beginning) < SIZE:
        raise DamagedFile(f"{path} is damaged: it ends after {len(beginning)} bytes; build it again or fetch it again")
    _, version, length, digest, size = _FIELDS.unpack(beginning[: _FIELDS.size])
    if version not in (WITHOUT_RULE, VERSION):
        raise InputError(
            f"{path} is a dictionary of version {version}, and this paceline reads {WITHOUT_RULE} and {VERSION}; "
            "build it again"
        )
    (checksum,) = _CHECKSUM.unpack(beginning[_FIELDS.size :])
    if zlib.crc32(beginning[: _FIELDS.size]) != checksum or length > DESCRIBED:
        raise DamagedFile(f"{path} is damaged: its beginning does not agree with its checksum; build it again")
    return version, length, digest, size


def _description(header: DictionaryHeader, version: int) -> bytes:
    described = asdict(header)
    if version == WITHOUT_RULE:
        del described["rule"]
    return json.dumps(described, sort_keys=True, ensure_ascii=False, allow_nan=False).encode()


def _header(path: str | Path, version: int, description: bytes) -> DictionaryHeader:
    try:
        header = shaped(DictionaryHeader, parse(description))
        if _description(header, version) != description or bool in map(type, vars(header).values()):
            raise ValueError("it is not as paceline writes it")
    except ValueError as error:
        raise DamagedFile(f"{path} is damaged: its description cannot be read ({str(error)[:80]})") from None
    return header
