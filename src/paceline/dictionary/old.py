"""Files of dictionaries of versions 2 and 3. They are read and no longer written.

A file, little-endian::

    0   8  "PACEDICT"                 16  32  SHA-256 of all that follows the first 64 bytes
    8   4  version                    48   8  bytes of the sections, packed
    12  4  bytes of the description   56   4  zeros
                                      60   4  CRC-32 of the first 60 bytes

    the description: JSON, which names no rule in version 2
    the sections, one behind the other, packed as one raw LZMA2 stream

The sections are those of `packing`, but the first four bits of a *shape* are what `shared` is, the others `lengths`.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from paceline.dictionary.header import MOST, DictionaryHeader, Number
from paceline.dictionary.keys import LONGEST
from paceline.dictionary.packing import Sections
from paceline.errors import DamagedFile, InputError, MissingPackage
from paceline.files.reading import damaged, parse
from paceline.files.shape import Bounds, shaped

MAGIC = b"PACEDICT"
VERSIONS = (2, 3)
FIELDS = struct.Struct("<8sII32sQ4xI")
DENSEST = 8
"""Times their packed size that sections may take beyond `FREE`; those of languages take two to three times that."""
FREE = 4 << 20
FILTERS = [{"id": 0x21, "dict_size": 1 << 23, "lc": 3, "lp": 0, "pb": 2, "mode": 2, "nice_len": 64, "mf": 0x14}]
"""LZMA2. The window is fixed, so a file cannot choose the memory of its reader."""
MEND = "build it again or fetch it again"
TokenNumber = Annotated[int, Bounds(0, MOST * LONGEST)]


@dataclass(frozen=True, kw_only=True)
class OldHeader(DictionaryHeader):
    """The description, with the numbers that the sizes of the sections follow from."""

    alphabet: Number
    key_tokens: TokenNumber
    ends: Number
    strays: Number
    tail_tokens: TokenNumber

    @property
    def types(self) -> dict[str, tuple[str, int]]:
        """Types and lengths of the sections, in the order of the file."""
        place = "<u2" if self.alphabet <= 2**16 else "<u4"
        return {
            "alphabet": ("<u4", self.alphabet),
            "shapes": ("u1", self.entries),
            "keys": (place, self.key_tokens),
            "levels": ("u1", self.entries),
            "firsts": (place, self.entries),
            "strays": ("<u4", self.strays),
            "ends": ("u1", self.ends),
            "tails": (place, self.tail_tokens),
        }


def read_old(path: str | Path, image: memoryview) -> tuple[OldHeader, str, memoryview]:
    """Header and digest of a file, and its packed sections."""
    if len(image) < FIELDS.size:
        raise DamagedFile(f"{path} is damaged: it ends after {len(image)} bytes; {MEND}")
    _, version, length, digest, size, checksum = FIELDS.unpack(image[: FIELDS.size])
    if version not in VERSIONS:
        raise InputError(
            f"{path} is a dictionary of version {version}, which this paceline cannot read; build it again"
        )
    described, packed = image[FIELDS.size :][:length], image[FIELDS.size :][length:]
    if len(packed) != size or zlib.crc32(image[: FIELDS.size - 4]) != checksum or _digest(image) != digest:
        raise DamagedFile(f"{path} is damaged: it does not agree with its digest; {MEND}")
    with damaged(str(path), MEND):
        return shaped(OldHeader, parse(bytes(described))), digest.hex(), packed


def unpacked(path: str | Path, header: OldHeader, packed: memoryview) -> Sections:
    """The sections of a file, and never more bytes than the header says."""
    lzma, types = _lzma(), header.types
    sizes = {name: np.dtype(kind).itemsize * count for name, (kind, count) in types.items()}
    with damaged(str(path), MEND):
        if (size := sum(sizes.values())) > max(FREE, DENSEST * len(packed)):
            raise ValueError("it says that it holds more than so few bytes can")
        reader = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=FILTERS)
        try:
            whole = reader.decompress(packed, size + 1)
        except lzma.LZMAError:
            raise ValueError("its sections cannot be unpacked") from None
        if len(whole) != size or not reader.eof or reader.unused_data:
            raise ValueError("its sections have other sizes than it says")
    found, start = {}, 0
    for name, (kind, count) in types.items():
        found[name] = np.frombuffer(whole[start : start + sizes[name]], kind, count)
        start += sizes[name]
    shapes = found.pop("shapes")
    return found | {"shared": shapes >> 4, "lengths": shapes & 15}


def _digest(image: memoryview) -> bytes:
    return hashlib.sha256(image[FIELDS.size :]).digest()


def _lzma() -> Any:
    try:
        import lzma
    except ImportError:
        raise MissingPackage(
            "this Python was built without lzma, which dictionaries of earlier versions are packed with; build the "
            "dictionary again, or install liblzma's development files and build Python again"
        ) from None
    return lzma
