"""The header of files of token ids: datastores and memories.

Every file starts with the same 128 bytes, little-endian. The last four of them are a checksum of the others::

    0   8  kind of file                  32  16  fingerprint of the tokenizer
    8   4  version of the format         48  32  SHA-256 of all that follows the header
    12  4  bytes per token: 2 or 4       80  44  zeros
    16  8  tokens, borders included      124  4  CRC-32
    24  4  highest token id
    28  4  texts

Tokens follow, each one higher than its id, so that 0 is the border between two texts.
"""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

from paceline.errors import DamagedFile, InputError
from paceline.vocabulary import Vocabulary

SIZE = 128
VERSION = 1
_FIELDS = struct.Struct("<8sIIQII16s32s44x")
_CHECKSUM = struct.Struct("<I")
WIDEST = 2**31 - 2
"""The highest token id: two of them fit into one number of 64 bits, by which places are sorted."""


@dataclass(frozen=True)
class Header:
    """The header of a file of tokens."""

    kind: bytes
    width: int
    tokens: int
    highest: int
    texts: int
    fingerprint: str
    digest: bytes

    @classmethod
    def of(
        cls, kind: bytes, body: Iterable[bytes], *, tokens: int, highest: int, texts: int, fingerprint: str
    ) -> Header:
        digest = sha256()
        for piece in body:
            digest.update(piece)
        return cls(kind, width_of(highest), tokens, highest, texts, fingerprint, digest.digest())

    def packed(self) -> bytes:
        numbers = self.width, self.tokens, self.highest, self.texts
        fields = _FIELDS.pack(self.kind, VERSION, *numbers, self.fingerprint.encode("ascii"), self.digest)
        return fields + _CHECKSUM.pack(zlib.crc32(fields))

    @property
    def code(self) -> Literal["H", "I"]:
        """The type of the tokens, as `memoryview.cast` and `struct` name it."""
        return "H" if self.width == 2 else "I"

    def check(self, path: str, vocab_size: int, vocabulary: Vocabulary | None) -> None:
        """Refuse a file of another tokenizer. Without a tokenizer only the highest id can be checked."""
        if vocabulary is not None and vocabulary.fingerprint != self.fingerprint:
            raise InputError(f"{path} holds tokens of another tokenizer than the model's; build it for this one")
        if self.highest >= vocab_size:
            raise InputError(
                f"{path} holds token {self.highest}, and the model's vocabulary has {vocab_size} tokens; "
                "build it for this model"
            )


def width_of(highest: int) -> int:
    """How many bytes hold every id up to the highest, and the border."""
    if highest > WIDEST:
        raise InputError(f"token {highest} is too high an id for a file of tokens; the highest is {WIDEST}")
    return 2 if highest + 1 < 2**16 else 4


def read_header(path: str, beginning: bytes, kind: bytes, noun: str) -> Header:
    """The header at the beginning of a file; ValueError where it is none."""
    if len(beginning) < SIZE or beginning[:8] != kind:
        raise InputError(f"{path} is no {noun} of paceline")
    fields, (checksum,) = beginning[: _FIELDS.size], _CHECKSUM.unpack_from(beginning, _FIELDS.size)
    _, version, width, tokens, highest, texts, fingerprint, digest = _FIELDS.unpack(fields)
    if version != VERSION:
        raise InputError(f"{path} is a {noun} of version {version}, and this paceline reads version {VERSION}")
    if zlib.crc32(beginning[: SIZE - _CHECKSUM.size]) != checksum or highest > WIDEST or width != width_of(highest):
        raise DamagedFile(f"{path} is damaged: its header does not agree with its checksum; make it again")
    if sys.byteorder != "little":
        raise InputError(f"{path} is little-endian, and this machine is not")
    return Header(kind, width, tokens, highest, texts, fingerprint.rstrip(b"\0").decode("ascii", "replace"), digest)
