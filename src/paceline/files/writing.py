"""Atomic file writes, and folders that one process at a time writes into.

An unfinished file is in a temporary folder beside its destination. That folder has a name of Paceline's and is locked
as long as its process lives, so the next writer recognises the remains of a killed process, and removes them.
"""

from __future__ import annotations

import os
import platform
import re
import secrets
import shutil
import stat
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from paceline.errors import InputError, UnwritableFile
from paceline.files.locks import LOCK, LOCKS, Timeout, locked

HOST = f"{zlib.crc32(platform.node().encode(errors='replace')):08x}"
UNFINISHED = re.compile(r"\.paceline-(?P<host>[0-9a-f]{8})-[0-9a-f]{12}\.partial")
UNUSED = 7 * 24 * 3600.0
"""Seconds after which an unfinished folder of another host is removed; its locks may be unknown here."""
UNLOCKED = 60.0
"""Seconds after which an unfinished folder of this host without a lock is removed."""
TRIES = 100
"""Attempts to make a folder that other processes remove meanwhile."""


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Make write errors name this path, also those of a full disk; errors of other files stay as they are."""
    try:
        yield
    except UnwritableFile:
        raise
    except OSError as error:
        if error.filename is not None and not _belongs(Path(str(error.filename)), Path(path)):
            raise
        raise UnwritableFile(error.errno, error.strerror or str(error), str(path)) from None


@contextmanager
def workplace(parent: Path | None = None) -> Iterator[Path]:
    """A new folder in ``parent``, or in the system's temporary folder. It is removed at the end, and after a kill by
    the next process that makes one there."""
    parent = Path(tempfile.gettempdir()) if parent is None else parent
    remove_left(parent)
    with ExitStack() as leaving:
        made = parent / f".paceline-{HOST}-{secrets.token_hex(6)}.partial"
        leaving.callback(shutil.rmtree, made, ignore_errors=True)
        made.mkdir(mode=0o700)
        leaving.enter_context(locked(made / LOCK, wait=True))  # another process may be looking whether it is left
        yield made


@contextmanager
def partial(path: str | Path, *, sync: bool = False) -> Iterator[Path]:
    """An empty file to fill, which replaces ``path`` when no error occurred. A link stays a link, and a file keeps its
    permissions. With ``sync`` it survives a power cut."""
    place = Path(os.path.realpath(path))
    with naming(path), workplace(place.parent) as work:
        fresh = work / place.name
        fresh.touch()
        mode = stat.S_IMODE((place if place.exists() else fresh).stat().st_mode)
        yield fresh
        fresh.chmod(mode)
        if sync:
            with fresh.open("rb") as file:
                os.fsync(file.fileno())
        fresh.replace(place)


def write_whole(path: str | Path, content: str | Iterable[Any], *, sync: bool = False) -> None:
    """Write a text or pieces of bytes, as `partial` does."""
    pieces: Iterable[Any] = [content.encode()] if isinstance(content, str) else content
    with partial(path, sync=sync) as fresh, fresh.open("wb") as file:
        file.writelines(pieces)


@contextmanager
def claimed(path: Path) -> Iterator[None]:
    """Only this process writes into a folder meanwhile. Folders that this made and that are empty at the end are
    removed, so a refused command leaves nothing behind; a folder that another process has claimed is not empty."""
    place = Path(os.path.realpath(path))
    if place.is_file():
        raise InputError(f"cannot write into {path}: it is a file; name a folder")
    with ExitStack() as leaving:
        for folder in reversed([folder for folder in (place, *place.parents) if not folder.exists()]):
            leaving.callback(_remove_empty, folder)
        with naming(path):
            try:
                _claim(place, leaving)
            except Timeout:
                raise InputError(
                    f"{path} is being written by another process; wait for it, or give another --out"
                ) from None
        remove_left(place)
        yield


def _claim(place: Path, leaving: ExitStack) -> None:
    """Make a folder and lock it until ``leaving``."""
    for _ in range(TRIES):
        with suppress(FileNotFoundError, FileExistsError):  # the process that made the folder removed it in between
            place.mkdir(parents=True, exist_ok=True)
            leaving.enter_context(locked(place / LOCK))
            return
    raise InputError(f"{place} does not stay when it is made, as if another process removed it; give another --out")


def remove_left(folder: Path) -> None:
    """Remove what dead processes left in a folder, and nothing else."""
    with suppress(OSError):
        for name in os.listdir(folder):
            if is_left(name):
                with suppress(OSError):  # locked by a living process, or removed by another one
                    _remove(folder / name)


def is_left(name: str) -> bool:
    """Whether a file or folder of this name is a lock or unfinished."""
    return (UNFINISHED.fullmatch(name) or LOCKS.fullmatch(name)) is not None


def _remove(path: Path) -> None:
    """Remove a lock or an unfinished folder if no process of this host holds its lock."""
    found = path.lstat()
    if stat.S_ISREG(found.st_mode):
        if LOCKS.fullmatch(path.name) and not found.st_size:
            with locked(path):
                pass
    elif stat.S_ISDIR(found.st_mode):
        age, here = time.time() - found.st_mtime, path.name.startswith(f".paceline-{HOST}-")
        if age > UNUSED or (here and ((path / LOCK).exists() or age > UNLOCKED)):
            with locked(path / LOCK):
                shutil.rmtree(path, ignore_errors=True)


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


def _belongs(other: Path, path: Path) -> bool:
    """Whether an error at the other path belongs to writing this one: it is this path, its folder, or unfinished."""
    place = Path(os.path.realpath(path))
    return other in (path, place, *place.parents) or any(map(is_left, other.parts))
