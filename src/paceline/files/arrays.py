"""Arrays of whole numbers in safetensors files, with a description and a checksum. Reading maps them into memory.

The metadata of a file is one text: JSON with the kind and version of the file, a CRC-32 of description and arrays, and
the description, which is a dataclass. It is one text because the library writes several in no fixed order, and the same
content must give the same bytes. The library's own reader copies arrays; mapped ones cost nothing to open, and
processes share them.

The header of a file is checked. The values of its arrays are whatever its writer liked, even if the checksum is right.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from paceline.errors import DamagedFile, InputError
from paceline.files.reading import damaged, open_file, parse
from paceline.files.shape import shaped
from paceline.files.writing import write_whole

Numbers = NDArray[Any]
Description = TypeVar("Description")

KEY = "paceline"
LENGTH = 8
"""Bytes of the number with which a file begins: the length of its header."""
HEADER = 1 << 20
"""Bytes of that header at most."""
DESCRIBED = 1 << 16
"""Bytes of a description at most."""
TYPES = {"U8": "<u1", "U16": "<u2", "U32": "<u4", "U64": "<u8"}


UNFIT = (ValueError, KeyError, TypeError, AttributeError)
"""What JSON raises that has other values than expected."""


@dataclass(frozen=True, eq=False)
class ArrayFile(Generic[Description]):
    """An open file."""

    path: str
    description: Description
    arrays: Mapping[str, Numbers]
    """Read-only."""
    crc32: Any
    """The checksum that it states."""
    digest: str
    """SHA-256 of the metadata. It tells apart what was written here; another file could be made to have the same."""
    mend: str

    def verified(self) -> Mapping[str, Numbers]:
        """The arrays, read through; `DamagedFile` where they are not what was written."""
        if checksum(_plain(self.description), self.arrays) != self.crc32:
            raise DamagedFile(f"{self.path} is damaged: it does not agree with its checksum; {self.mend}")
        return self.arrays


@dataclass(frozen=True)
class ArrayFormat(Generic[Description]):
    """A kind of file."""

    noun: str
    version: int
    description: type[Description]
    arrays: Mapping[str, str]
    """Names of the arrays -> types that each may have."""
    mend: str
    """Advice for a file that is none of them, or damaged."""
    most: int | None = None
    """Bytes of a file at most."""

    def write(self, path: str | Path, description: Description, arrays: Mapping[str, Numbers]) -> None:
        """Write a file, all of it or nothing."""
        plain = _plain(description)
        metadata = _text(
            {"kind": self.noun, "version": self.version, "crc32": checksum(plain, arrays), "description": plain}
        )
        if (size := len(metadata.encode())) > DESCRIBED:
            raise InputError(f"the description of {path} takes {size} bytes, and {DESCRIBED} are the most; shorten it")
        write_whole(path, _pieces(metadata, arrays))

    def open(self, path: str | Path) -> ArrayFile[Description]:
        """A file, whose arrays were not looked at yet (`verified`)."""
        return self.read(path, self.map(path))

    def map(self, path: str | Path) -> memoryview:
        """The bytes of a file."""
        try:
            with open_file(path, self.most) as file:
                if not file.seek(0, 2):
                    return memoryview(b"")
                return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except OSError as error:
            raise InputError(f"cannot read the {self.noun} {path}: {error.strerror}; {self.mend}") from None

    def read(self, path: str | Path, image: memoryview) -> ArrayFile[Description]:
        """The file of these bytes."""
        try:
            places, metadata, data = _taken_apart(image)
            header = parse(metadata)
            version, crc32, described = header["version"], header["crc32"], header["description"]
            if header["kind"] != self.noun:
                raise ValueError("it is a file of another kind")
        except UNFIT:
            raise InputError(f"{path} is no {self.noun} of paceline, or a damaged one; {self.mend}") from None
        if version != self.version:
            said = f"version {version!r:.9}, and this paceline reads version {self.version}"
            raise InputError(f"{path} is a {self.noun} of {said}; {self.mend}")
        with damaged(str(path), self.mend):
            digest = hashlib.sha256(metadata.encode()).hexdigest()
            described = shaped(self.description, described)
            return ArrayFile(str(path), described, self._arrays(places, data), crc32, digest, self.mend)

    def _arrays(self, places: Mapping[str, Any], data: memoryview) -> dict[str, Numbers]:
        """The arrays of a file; ValueError where they are not as they should be."""
        found, end = {}, 0
        try:
            for name, place in sorted(places.items(), key=lambda one: one[1]["data_offsets"]):
                start, stop = place["data_offsets"]
                found[name] = np.frombuffer(data[start:stop], TYPES[place["dtype"]])
                known = place["dtype"] in self.arrays[name].split()
                whole = found[name].flags.aligned and place["shape"] == [len(found[name])]
                if not (known and whole and start == end):
                    raise ValueError
                end = stop
        except UNFIT:
            raise ValueError("its arrays are not as it says") from None
        if found.keys() != self.arrays.keys():
            raise ValueError("it lacks an array")
        if end != len(data):
            raise ValueError(f"its arrays have {len(data)} bytes and should have {end}")
        return found


def checksum(description: Any, arrays: Mapping[str, Numbers]) -> int:
    """The CRC-32 of a description and of arrays in the order of their names."""
    found = zlib.crc32(_text(description).encode())
    for _, array in sorted(arrays.items()):
        found = zlib.crc32(np.ascontiguousarray(array).data, found)
    return found


def _pieces(metadata: str, arrays: Mapping[str, Numbers]) -> list[Any]:
    """The file that the library's `save` would join from copies of the arrays. Those of wide numbers stand first, and
    the header has a multiple of their bytes, so all are aligned."""
    places: dict[str, Any] = {"__metadata__": {KEY: metadata}}
    pieces, end = list[Any](), 0
    for name, array in sorted(arrays.items(), key=lambda one: (-one[1].itemsize, one[0])):
        kind, start, end = f"U{8 * array.itemsize}", end, end + array.nbytes
        places[name] = {"dtype": kind, "shape": [len(array)], "data_offsets": [start, end]}
        pieces.append(np.ascontiguousarray(array, TYPES[kind]).data)
    header = json.dumps(places, separators=(",", ":"), ensure_ascii=False).encode()
    header += b" " * (-len(header) % LENGTH)
    return [len(header).to_bytes(LENGTH, "little"), header, *pieces]


def _taken_apart(image: memoryview) -> tuple[dict[str, Any], str, memoryview]:
    """The places of arrays, our text in the metadata, and the bytes of all arrays; an error in any other file."""
    length = int.from_bytes(image[:LENGTH], "little")
    if length > min(HEADER, len(image) - LENGTH):
        raise ValueError("it has no header")
    start = LENGTH + length
    places = parse(bytes(image[LENGTH:start]))
    return places, places.pop("__metadata__")[KEY], image[start:]


def _plain(description: Any) -> dict[str, Any]:
    return asdict(description)


def _text(description: Any) -> str:
    return json.dumps(description, sort_keys=True, ensure_ascii=False, allow_nan=False)
