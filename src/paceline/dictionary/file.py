"""A dictionary's file: the same bytes from the same corpus and tokenizer, and nothing in it is believed.

A file, little-endian::

    0   8  "PACEDICT"                 16  32  SHA-256 of all that follows the first 64 bytes
    8   4  version of the format      48  12  zeros
    12  4  bytes of the description   60   4  CRC-32 of the first 60 bytes

    the description: JSON, one line
    alphabet     4 bytes each: the token ids that occur, ascending; a token is told by its place among them, in 2 bytes
                 where there are at most 65,536 of them and otherwise in 4
    shapes       1 byte an entry: how many tokens its key shares with the one before it (times 16), and how many it has
    keys         the other tokens of each key. Keys are told backwards, the last token first, in ascending order
    completions  3 bytes an entry, as three planes: which completion
    levels       1 byte an entry: the level of the first token's probability (times 16), and of the later ones
    lengths      1 byte a completion
    tokens       the tokens of all completions

Sizes of sections follow from the numbers in the description, and those are compared with the size of the file before
anything is read; every number that leads to another place is compared with the place's size. So a file that was made to
do harm is at worst a dictionary of useless drafts. It is no searchable structure, though; `index` makes one.
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

import numpy as np
from numpy.typing import NDArray

from paceline.dictionary.statistics import LONGEST, NOWHERE
from paceline.dictionary.table import Table
from paceline.profile.keeping import write_whole
from paceline.vocabulary import Vocabulary

MAGIC = b"PACEDICT"
VERSION = 1
SIZE = 64
_FIELDS = struct.Struct("<8sII32s12x")
_CHECKSUM = struct.Struct("<I")
DESCRIBED = 1 << 16
"""Bytes of a description at most."""
MOST = 1 << 24
"""Entries, completions and different tokens at most."""
DEEP = 3
"""Lists and objects within each other at most, in what is told of the corpus."""
IDS = 2**31


@dataclass(frozen=True, kw_only=True)
class Header:
    """What a dictionary says of itself."""

    tokenizer: str
    """The fingerprint of the vocabulary that its ids belong to."""
    language: str
    entries: int
    completions: int
    highest: int
    """The highest token id."""
    order: int
    """Words of an n-gram at most."""
    min_probability: float
    longest_prefix: int
    longest_completion: int
    alphabet: int
    """Different tokens."""
    key_tokens: int
    completion_tokens: int
    corpus: Mapping[str, Any] = field(default_factory=dict)
    """What it was built from: fingerprint, words, documents, bytes, n-grams."""
    licence: str = ""
    """Under which the corpus may be used, as whoever built it says."""
    tokenizer_name: str = ""
    """What the tokenizer was called there."""

    @property
    def width(self) -> int:
        """Bytes of a token's place in the alphabet."""
        return 2 if self.alphabet <= 2**16 else 4

    @property
    def sections(self) -> dict[str, int]:
        """Their sizes in bytes, in the order of the file."""
        return {
            "alphabet": 4 * self.alphabet,
            "shapes": self.entries,
            "keys": self.width * self.key_tokens,
            "completions": 3 * self.entries,
            "levels": self.entries,
            "lengths": self.completions,
            "tokens": self.width * self.completion_tokens,
        }

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


def write(path: Path, table: Table, **described: Any) -> Header:
    """Write a dictionary, all of it or nothing."""
    packed = _packed(table)
    header = Header(
        entries=len(table),
        completions=len(table.texts),
        highest=table.highest,
        alphabet=len(packed["alphabet"]) // 4,
        key_tokens=int((table.prefixes != NOWHERE).sum() - (np.frombuffer(packed["shapes"], np.uint8) >> 4).sum()),
        completion_tokens=int((table.texts != NOWHERE).sum()),
        **described,
    )
    description = _description(header)
    if len(description) > DESCRIBED:
        raise ValueError(f"what is said of {path} takes {len(description)} bytes; shorten its licence note")
    assert {name: len(part) for name, part in packed.items()} == header.sections, "sections are as long as they say"
    body = [description, *packed.values()]
    digest = hashlib.sha256(b"".join(body)).digest()
    fields = _FIELDS.pack(MAGIC, VERSION, len(description), digest)
    try:
        write_whole(path, [fields, _CHECKSUM.pack(zlib.crc32(fields)), *body])
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}") from None
    return header


def _packed(table: Table) -> dict[str, bytes]:
    backwards = table.prefixes[:, ::-1]
    alphabet = np.union1d(table.prefixes[table.prefixes >= 0], table.texts[table.texts >= 0])
    kind = "<u2" if len(alphabet) <= 2**16 else "<u4"
    lengths = (backwards != NOWHERE).sum(axis=1)
    shared = np.zeros(len(table), np.int64)
    if len(table) > 1:
        same = np.cumprod((backwards[1:] == backwards[:-1]) & (backwards[1:] != NOWHERE), axis=1)
        shared[1:] = same.sum(axis=1)
    fresh = (np.arange(backwards.shape[1]) >= shared[:, None]) & (backwards != NOWHERE)
    which = table.completions.astype("<u4").view(np.uint8).reshape(-1, 4)
    return {
        "alphabet": alphabet.astype("<u4").tobytes(),
        "shapes": (shared << 4 | lengths).astype(np.uint8).tobytes(),
        "keys": np.searchsorted(alphabet, backwards[fresh]).astype(kind).tobytes(),
        "completions": which[:, :3].T.tobytes(),
        "levels": (table.first << 4 | table.rest).astype(np.uint8).tobytes(),
        "lengths": (table.texts != NOWHERE).sum(axis=1).astype(np.uint8).tobytes(),
        "tokens": np.searchsorted(alphabet, table.texts[table.texts != NOWHERE]).astype(kind).tobytes(),
    }


def read(path: str | Path) -> tuple[Header, Table]:
    """Header and entries of a file that is whole and makes sense."""
    header, body, _ = read_header(path)
    return header, unpacked(path, header, body)


def read_header(path: str | Path) -> tuple[Header, bytes, bytes]:
    """Header and sections of a file that is whole, and the digest of both."""
    with _opened(path) as file:
        length, digest = _begun(path, file.read(SIZE))
        description = file.read(length)
        header = _header(path, description)
        expected = SIZE + length + sum(header.sections.values())
        if (found := os.fstat(file.fileno()).st_size) != expected:
            raise ValueError(f"{path} is damaged: it has {found} bytes and should have {expected}; build it again")
        body = file.read()
    if hashlib.sha256(description + body).digest() != digest:
        raise ValueError(f"{path} is damaged: it does not agree with its digest; build it again or fetch it again")
    return header, body, digest


def _opened(path: str | Path) -> Any:
    try:
        return Path(path).open("rb")
    except OSError as error:
        raise ValueError(
            f"cannot read the dictionary {path}: {error.strerror}; 'paceline dict build' makes one"
        ) from None


def _begun(path: str | Path, beginning: bytes) -> tuple[int, bytes]:
    """How long the description is, and the digest."""
    if beginning[: len(MAGIC)] != MAGIC:
        raise ValueError(f"{path} is no dictionary of paceline; 'paceline dict build' makes one")
    if len(beginning) < SIZE:
        raise ValueError(f"{path} is damaged: it ends after {len(beginning)} bytes; build it again or fetch it again")
    _, version, size, digest = _FIELDS.unpack(beginning[: _FIELDS.size])
    if version != VERSION:
        raise ValueError(f"{path} is a dictionary of version {version}, and this paceline reads version {VERSION}")
    (checksum,) = _CHECKSUM.unpack(beginning[_FIELDS.size :])
    if zlib.crc32(beginning[: _FIELDS.size]) != checksum or size > DESCRIBED:
        raise ValueError(f"{path} is damaged: its beginning does not agree with its checksum; build it again")
    return size, digest


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
        *((name, 0, MOST) for name in ("entries", "completions", "alphabet")),
        *((name, 0, MOST * LONGEST) for name in ("key_tokens", "completion_tokens")),
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


def unpacked(path: str | Path, header: Header, body: bytes) -> Table:
    """The entries in a file's sections, if they make sense."""
    parts, start = dict[str, bytes](), 0
    for name, size in header.sections.items():
        parts[name] = body[start : start + size]
        start += size
    for complaint in _complaints(header, parts):
        raise ValueError(f"{path} is damaged: {complaint}; build it again or fetch it again")
    alphabet = np.frombuffer(parts["alphabet"], "<u4").astype(np.int32)
    kind = f"<u{header.width}"
    shapes = np.frombuffer(parts["shapes"], np.uint8)
    shared, lengths = (shapes >> 4).astype(np.int64), (shapes & 15).astype(np.int64)
    backwards = _unshared(shared, lengths, np.frombuffer(parts["keys"], kind).astype(np.int64))
    if not _ascending(backwards):
        raise ValueError(f"{path} is damaged: its entries are out of order; build it again or fetch it again")
    planes = np.frombuffer(parts["completions"], np.uint8).reshape(3, -1).astype(np.int32)
    levels = np.frombuffer(parts["levels"], np.uint8)
    sizes = np.frombuffer(parts["lengths"], np.uint8).astype(np.int64)
    texts = np.full((header.completions, LONGEST), NOWHERE, np.int32)
    texts[np.arange(LONGEST) < sizes[:, None]] = alphabet[np.frombuffer(parts["tokens"], kind)]
    prefixes = np.where(backwards >= 0, alphabet[np.maximum(backwards, 0)] if len(alphabet) else backwards, NOWHERE)
    return Table(
        prefixes=prefixes[:, ::-1].astype(np.int32),
        completions=planes[0] | planes[1] << 8 | planes[2] << 16,
        first=(levels >> 4).astype(np.uint8),
        rest=(levels & 15).astype(np.uint8),
        texts=texts,
    )


def _complaints(header: Header, parts: Mapping[str, bytes]) -> Iterator[str]:
    """What does not hold of sections whose sizes are right."""
    alphabet = np.frombuffer(parts["alphabet"], "<u4").astype(np.int64)
    if len(alphabet) and ((np.diff(alphabet) <= 0).any() or alphabet[-1] > header.highest):
        yield "its tokens are out of order"
    kind = f"<u{header.width}"
    for name in ("keys", "tokens"):
        if len(parts[name]) and np.frombuffer(parts[name], kind).max() >= len(alphabet):
            yield f"its {name} hold a token that it has not"
    shapes = np.frombuffer(parts["shapes"], np.uint8)
    shared, lengths = (shapes >> 4).astype(np.int64), (shapes & 15).astype(np.int64)
    before = np.concatenate([[0], lengths[:-1]]) if len(lengths) else lengths
    if (lengths > header.longest_prefix).any() or (shared >= lengths).any() or (shared > before).any():
        yield "its keys have impossible shapes"
    if int((lengths - shared).sum()) != header.key_tokens:
        yield "its keys have another number of tokens than it says"
    planes = np.frombuffer(parts["completions"], np.uint8).reshape(3, -1).astype(np.int64)
    if header.entries and int((planes[0] + (planes[1] << 8) + (planes[2] << 16)).max()) >= header.completions:
        yield "an entry proposes a completion that it has not"
    sizes = np.frombuffer(parts["lengths"], np.uint8).astype(np.int64)
    if len(sizes) and (sizes.min() < 1 or sizes.max() > header.longest_completion):
        yield "a completion has an impossible length"
    if int(sizes.sum()) != header.completion_tokens:
        yield "its completions have another number of tokens than it says"


def _unshared(shared: NDArray[np.int64], lengths: NDArray[np.int64], fresh: NDArray[np.int64]) -> NDArray[np.int64]:
    """Keys from what each has not in common with the one before: column by column, what is shared is what was told
    last."""
    keys = np.full((len(lengths), LONGEST), NOWHERE, np.int64)
    starts = np.cumsum(lengths - shared) - (lengths - shared)
    rows = np.arange(len(lengths))
    for column in range(LONGEST):
        told = np.flatnonzero((shared <= column) & (column < lengths))
        keys[told, column] = fresh[starts[told] + column - shared[told]]
        last = np.maximum.accumulate(np.where(shared <= column, rows, 0))
        held = np.flatnonzero((shared > column) & (column < lengths))
        keys[held, column] = keys[last[held], column]
    return keys


def _ascending(keys: NDArray[np.int64]) -> bool:
    """Whether each key is after the one before it, token by token, and shares with it no more than was said."""
    place = (keys[1:] != keys[:-1]).argmax(axis=1)  # 0 where they are equal, and equal is not after
    rows = np.arange(len(place))
    return bool((keys[1:][rows, place] > keys[:-1][rows, place]).all())
