"""Bytes of one file, plain or compressed, that stay what they were while they are read."""

from __future__ import annotations

import gzip
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from paceline.dictionary.corpus.meter import Meter

BLOCK = 1 << 20
COMPRESSED = (".gz", ".zst")


def inner_suffix(path: Path) -> str:
    """`.jsonl` of `news.jsonl.gz`."""
    name = path.name.lower()
    for suffix in COMPRESSED:
        name = name.removesuffix(suffix)
    return Path(name).suffix


def size_of(path: Path) -> int:
    """The bytes of a file that can be read, or one sentence why it can't."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise ValueError(f"{path} is neither a file nor a folder; give a text, a folder of texts or hf:NAME")
        with path.open("rb"):
            return found.st_size
    except OSError as error:
        raise ValueError(f"{path} can't be read ({error.strerror}); name a file or folder that can") from None


@contextmanager
def unchanged(path: Path) -> Iterator[BinaryIO]:
    """The open file. One that is written to meanwhile gives a text that never existed, and is refused."""
    size_of(path)
    with path.open("rb") as file:
        before = os.fstat(file.fileno())
        yield file
        open_now, named_now = os.fstat(file.fileno()), path.stat() if path.exists() else None
    same = [(before.st_ino, before.st_size, before.st_mtime_ns)] * 2
    if [(s.st_ino, s.st_size, s.st_mtime_ns) for s in (open_now, named_now) if s is not None] != same:
        raise ValueError(f"{path} changed while it was read; start again when nothing writes to it")


def blocks(path: Path, meter: Meter) -> Iterator[bytes]:
    """The content of a file, a megabyte at a time and decompressed."""
    with unchanged(path) as file:
        content = _decompressed(path, file)
        while block := _read(path, content):
            yield block
            meter.at(str(path), file.tell())
        if path.suffix.lower() not in COMPRESSED and file.tell() != os.fstat(file.fileno()).st_size:
            raise ValueError(f"{path} changed while it was read; start again when nothing writes to it")


def _decompressed(path: Path, file: BinaryIO) -> Any:
    if path.suffix.lower() == ".gz":
        return gzip.GzipFile(fileobj=file)
    if path.suffix.lower() == ".zst":
        import pyarrow as pa

        return pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd")
    return file


def _read(path: Path, content: Any) -> bytes:
    try:
        return bytes(content.read(BLOCK))
    except (OSError, EOFError, zlib.error) as error:
        said = str(error).rstrip(".")
        raise ValueError(f"{path} can't be decompressed ({said}); it is cut short or damaged, get it again") from None
