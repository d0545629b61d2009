"""A GGUF file before llama.cpp reads it: refused in a sentence where it is none, or does not fit into memory.

llama.cpp ends the process on some damage, so its header is looked at here first.
"""

from __future__ import annotations

import hashlib
import re
import struct
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import DamagedFile, InputError, first_line
from paceline.files.reading import open_file
from paceline.targets.memory import SMALLER, host_memory, must_fit

SUFFIX = ".gguf"
MAGIC = b"GGUF"
VERSIONS = (2, 3)
HEADER = struct.Struct("<4sIQQ")
"""The magic, the version, how many tensors and how many entries of metadata."""
MOST = 1 << 20
"""Tensors or entries of metadata; damage makes larger numbers."""
SPLIT = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")
HEADROOM = 1.05
"""The memory that a model takes, as a factor on its file."""
SAMPLES, SAMPLE = 512, 4096
"""How many pieces of a file its fingerprint reads, and their bytes."""
ORIGINAL = (
    "give another GGUF file, or the folder or the name of the original model, with --quantize int8 for 8-bit integers"
)


@dataclass(frozen=True)
class GgufFile:
    """The parts of one model, in their order; most models have one."""

    parts: tuple[Path, ...]

    @property
    def first(self) -> Path:
        return self.parts[0]

    @property
    def bytes(self) -> int:
        return sum(part.stat().st_size for part in self.parts)

    def must_fit(self) -> None:
        """Refuse a model that is larger than the free memory: its pages would be read from the disk for every token."""
        must_fit(self.first, self.bytes * HEADROOM, host_memory(), SMALLER)

    def fingerprint(self) -> str:
        """A digest of an even sample of the bytes."""
        digest = hashlib.sha256()
        for part in self.parts:
            size = part.stat().st_size
            digest.update(size.to_bytes(8, "little"))
            with open_file(part) as file:
                for piece in range(SAMPLES):
                    file.seek(piece * max(size - SAMPLE, 0) // (SAMPLES - 1))
                    digest.update(file.read(SAMPLE))
        return digest.hexdigest()[:16]


def named_file(model: object) -> Path | None:
    """The GGUF file that a user names; None where a model is something else. A folder stands for the one in it."""
    if not isinstance(model, str | Path) or model == "":
        return None
    try:
        path = Path(model).expanduser()
    except RuntimeError:
        return None
    if path.is_dir():
        return None if (path / "config.json").exists() else _only_one(path)
    if path.suffix.lower() != SUFFIX:
        return None
    if not path.exists():
        raise InputError(f"no model at {str(model)!r}: there is no such GGUF file")
    return path


def _only_one(folder: Path) -> Path | None:
    found = [path for path in sorted(folder.glob(f"*{SUFFIX}")) if _number(path) == 1]
    if len(found) > 1:
        names = ", ".join(path.name for path in found[:3])
        raise InputError(f"{folder} holds {len(found)} GGUF files ({names}); name one of them")
    return found[0] if found else None


def _number(path: Path) -> int:
    """Which part of a model a file is."""
    split = SPLIT.fullmatch(path.name)
    return int(split[2]) if split else 1


def opened(path: Path) -> GgufFile:
    """The parts of a file's model, each with a sound header."""
    split = SPLIT.fullmatch(path.name)
    parts = [path]
    if split is not None:
        count = int(split[3])
        parts = [path.with_name(f"{split[1]}-{part:05}-of-{count:05}{SUFFIX}") for part in range(1, count + 1)]
    for part in parts:
        _check(part)
    return GgufFile(tuple(parts))


def _check(part: Path) -> None:
    try:
        with open_file(part) as file:
            begun = file.read(HEADER.size)
    except OSError as error:
        raise InputError(f"the GGUF file {part} cannot be read: {first_line(error)}") from None
    if len(begun) < HEADER.size:
        raise damaged(part, f"it ends after {len(begun)} bytes")
    magic, version, tensors, entries = HEADER.unpack(begun)
    if magic != MAGIC:
        raise InputError(f"{part} is no GGUF file: it begins with {magic!r}; {ORIGINAL}")
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS
        what = "its bytes are in the order of another processor" if swapped else f"its version is {version}"
        raise InputError(f"the GGUF file {part} cannot be read here: {what}; {ORIGINAL}")
    if tensors > MOST or entries > MOST:
        raise damaged(part, f"it claims {tensors} tensors and {entries} entries of metadata")


def damaged(part: Path, why: str) -> DamagedFile:
    """The error of a file that is not as its program wrote it."""
    return DamagedFile(f"the GGUF file {part} is damaged: {why}; download or write it again, or {ORIGINAL}")
