"""Lock files. The system releases a lock when its process ends, however it ends; the file may stay until the next
process takes or removes it."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

__all__ = ["LOCK", "LOCKS", "Timeout", "exclusive", "locked"]

LOCK = ".paceline.lock"
"""The lock of a folder, in it."""
LOCKS = re.compile(r"\.paceline(-[0-9a-f]{8})?\.lock")
"""The names of all locks."""
POLL = 0.01
"""Seconds between two attempts."""


@contextmanager
def locked(file: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold a lock file and remove it at the end. `Timeout` where another process holds it, unless this shall ``wait``.
    It is removed while it is held; a process that opened it before notices that and makes a new one."""
    with FileLock(file, poll_interval=POLL).acquire(blocking=wait):
        held = file.stat()
        try:
            yield
        finally:
            with suppress(OSError):  # Windows removes no open file
                if os.path.samestat(held, file.stat()):  # or its folder was replaced, and this is another's
                    file.unlink()


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Read, change and replace a file while other threads and processes that ask for the same wait. The lock is a file
    beside it, because the file itself is replaced."""
    place = Path(os.path.realpath(path))
    place.parent.stat()  # a lock in a folder that is not there would make the folder
    with locked(place.with_name(f".paceline-{zlib.crc32(os.fsencode(place.name)):08x}.lock"), wait=True):
        yield
