"""Locks on files and folders. The system keeps them, so they go with their process however it ends.

Where it has none (Windows, some network drives) nothing is locked, and `locked` gives None.
"""

from __future__ import annotations

import errno
import os
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

GUARD = r"\.paceline-[0-9a-f]{8}\.lock"
"""The names of files that only serve to be locked."""


@contextmanager
def locked(path: Path, *, wait: bool = False, create: bool = False) -> Iterator[int | None]:
    """A file or folder, opened and locked. It is a BlockingIOError where another has the lock, unless this shall
    ``wait``, and a FileNotFoundError where it was removed before it was locked, also if there is another one by now."""
    if fcntl is None:
        yield None
        return
    lock = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | (os.O_CREAT if create else 0), 0o666)
    held = False
    try:
        held = _flock(lock, wait)
        if not is_at(lock, path):
            raise FileNotFoundError(errno.ENOENT, "removed meanwhile", str(path))
        yield lock if held else None
    finally:
        if held:
            fcntl.flock(lock, fcntl.LOCK_UN)  # closing alone leaves it locked while a forked child lives
        os.close(lock)


def is_at(lock: int, path: Path) -> bool:
    """Whether what was opened is still what stands at the path."""
    return os.path.samestat(os.fstat(lock), path.stat())


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Others who ask for the same wait meanwhile, in this process and in others: for what is read, changed and written
    again. The file itself is replaced by that, so what is locked is one beside it, which goes in the end."""
    place = Path(os.path.realpath(path))
    guard = place.with_name(f".paceline-{zlib.crc32(os.fsencode(place.name)):08x}.lock")
    with ExitStack() as leaving:
        while True:
            place.parent.stat()
            with suppress(FileNotFoundError):  # the process that held it has removed it
                leaving.enter_context(locked(guard, wait=True, create=True))
                break
        leaving.callback(guard.unlink, missing_ok=True)
        yield


def _flock(lock: int, wait: bool) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        raise
    except OSError:  # this drive knows no locks
        return False
    return True
