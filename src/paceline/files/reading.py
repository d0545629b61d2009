"""Reading untrusted files: only ordinary files, and never more than a given number of bytes.

A device may have no end and a pipe may have no writer, so neither is opened. A file that is too large for its kind is
refused before it takes memory.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from codecs import utf_8_decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from paceline.errors import DamagedFile

LARGEST_TEXT_BYTES = 4 << 30
"""Bytes of a text, or of what a program collects."""
DESCRIPTION = 64 << 20
"""Bytes of a file that describes something."""
PIECE = 1 << 20
WAIT = 10.0
"""Seconds within which a program has to open a pipe to write into it. It may take as long as it likes to write."""

KINDS = (
    (stat.S_ISREG, ""),
    (stat.S_ISFIFO, "it is a pipe"),
    (stat.S_ISSOCK, "it is a socket"),
    (lambda mode: True, "it is a device"),
)


def open_file(path: str | Path, most: int | None = None) -> BinaryIO:
    """Open an ordinary file of at most ``most`` bytes to read it; OSError where it is missing or of another kind."""
    found = os.stat(path)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if odd := next(said for is_kind, said in KINDS if is_kind(found.st_mode)):
        raise OSError(errno.EINVAL, f"{odd}, and an ordinary file is needed", str(path))
    if most is not None and found.st_size > most:
        raise _too_large(path, f"it has {found.st_size} bytes", most)
    return Path(path).open("rb")


def read_file(path: str | Path, most: int = LARGEST_TEXT_BYTES) -> bytes:
    """All bytes of an ordinary file."""
    with open_file(path, most) as file:
        return bounded(file, path, most)


def read_pipe(path: Path, most: int) -> bytes:
    """All bytes of an ordinary file, or of a pipe that a program writes into, as ``<(program)`` is."""
    if not stat.S_ISFIFO(path.stat().st_mode):
        return read_file(path, most)
    pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a blocking open would wait for a writer without end
    with os.fdopen(pipe, "rb") as file:
        begun = _first_piece(pipe, path)
        os.set_blocking(pipe, True)
        return begun + bounded(file, path, most - len(begun))


def _first_piece(pipe: int, path: Path) -> bytes:
    """The first bytes of a pipe; empty where a program has opened it and not yet written."""
    ends = time.monotonic() + WAIT
    while time.monotonic() < ends:
        try:
            if begun := os.read(pipe, PIECE):
                return begun
        except BlockingIOError:
            return b""
        time.sleep(0.01)
    raise OSError(errno.EINVAL, f"no program wrote into this pipe within {WAIT:g} s", str(path))


def bounded(file: BinaryIO, name: object, most: int) -> bytes:
    """The rest of an open file; OSError if it has more than ``most`` bytes."""
    found = bytearray()
    while piece := file.read(PIECE):  # one read of all would take the memory of the largest file for the smallest
        found += piece
        if len(found) > most:
            raise _too_large(name, "it goes on", most)
    return bytes(found)


def _too_large(name: object, said: str, most: int) -> OSError:
    return OSError(errno.EFBIG, f"{said}, and at most {most} bytes of such a file are read", str(name))


def whole_characters(data: bytes) -> int:
    """How many bytes of UTF-8 stand before a character that their end has cut, if any."""
    tail = data[-3:]
    return len(data) - len(tail) + utf_8_decode(tail, "replace", False)[1]


def parse(text: bytes | str) -> Any:
    """One JSON value; otherwise a ValueError that says in a few words why it is none, without naming the file."""
    try:
        return json.loads(text.decode() if isinstance(text, bytes) else text)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON: {error.msg} at character {error.pos + 1}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 text (offset {error.start})") from None
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except ValueError:  # Python's own limit
        raise ValueError("it has a number of thousands of digits") from None


@contextmanager
def damaged(what: str, mend: str) -> Iterator[None]:
    """Turn a ValueError of parsing into a `DamagedFile` that says where the value stands and what to do."""
    try:
        yield
    except ValueError as error:
        raise DamagedFile(f"{what} is damaged: {error}; {mend}") from None
