"""Reading files that somebody else may have made: ordinary files of a size that is known before they are read.

A device may have no end and a pipe may have no writer, so neither is opened; a file that is larger than anything of its
kind is refused before it takes memory.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

MOST = 4 << 30
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
    """Open an ordinary file, of at most so many bytes, to read it. An OSError where it is none, as where it is not
    there."""
    found = os.stat(path)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if odd := next(said for is_kind, said in KINDS if is_kind(found.st_mode)):
        raise OSError(errno.EINVAL, f"{odd}, and an ordinary file is needed", str(path))
    if most is not None and found.st_size > most:
        raise _too_large(path, f"it has {found.st_size} bytes", most)
    return Path(path).open("rb")


def read_file(path: str | Path, most: int = MOST) -> bytes:
    """All bytes of an ordinary file."""
    with open_file(path, most) as file:
        return bounded(file, path, most)


def read_pipe(path: Path, most: int) -> bytes:
    """All bytes of an ordinary file, or of a pipe that some program writes into, as ``<(program)`` is."""
    if not stat.S_ISFIFO(path.stat().st_mode):
        return read_file(path, most)
    pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # otherwise it would wait for a writer here, and for ever
    with os.fdopen(pipe, "rb") as file:
        begun = _first_piece(pipe, path)
        os.set_blocking(pipe, True)
        return begun + bounded(file, path, most - len(begun))


def _first_piece(pipe: int, path: Path) -> bytes:
    """The first bytes of a pipe, or none yet where a program has opened it to write."""
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
    """The rest of an open file, unless that is more than so many bytes."""
    found = bytearray()
    while piece := file.read(PIECE):  # one read of all would take the memory of the largest file for the smallest
        found += piece
        if len(found) > most:
            raise _too_large(name, "it goes on", most)
    return bytes(found)


def _too_large(name: object, said: str, most: int) -> OSError:
    return OSError(errno.EFBIG, f"{said}, and at most {most} bytes of such a file are read", str(name))


def parse(text: bytes | str) -> Any:
    """One JSON value. ValueError, in a few words, where it is none."""
    try:
        return json.loads(text.decode() if isinstance(text, bytes) else text)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON: {error.msg} at character {error.pos + 1}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 text (offset {error.start})") from None
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except ValueError:  # of Python's own limit
        raise ValueError("it has a number of thousands of digits") from None


@contextmanager
def damaged(what: str, mend: str) -> Iterator[None]:
    """Say of a ValueError where the value stands and what to do about it. To be put around parsing alone."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{what} is damaged: {error}; {mend}") from None
