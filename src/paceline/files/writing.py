"""Writing: all of a file or nothing, whatever ends the process.

What is not finished stands in a folder beside its place, which has a name of ours and is locked as long as its process
lives. So the next writer sees what a killed process left, and removes it.
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

from paceline.files.locks import GUARD, locked

HOST = f"{zlib.crc32(platform.node().encode(errors='replace')):08x}"
OURS = re.compile(rf"\.paceline-(?P<host>[0-9a-f]{{8}})-[0-9a-f]{{12}}\.partial|{GUARD}")
UNUSED = 7 * 24 * 3600.0
"""Seconds after which a folder is left, too, whose lock says nothing: some drives know none, or none of other hosts."""


class Unwritable(OSError, ValueError):
    """Something cannot be written; its text is a sentence that names it and says why."""

    place: str | Path = ""

    def __str__(self) -> str:
        return f"cannot write {self.place}: {self.strerror}"


@contextmanager
def named(path: str | Path) -> Iterator[None]:
    """Errors of writing name what was being written, which a full disk does not do; those of other files stay."""
    try:
        yield
    except Unwritable:
        raise
    except OSError as error:
        if error.filename is not None and not _belongs(Path(str(error.filename)), Path(path)):
            raise
        named_error = Unwritable(error.errno, error.strerror or str(error))
        named_error.place = path
        raise named_error from None


@contextmanager
def workplace(parent: Path | None = None) -> Iterator[Path]:
    """A new folder in ``parent``, or among the system's temporary ones. It goes in the end, and after a kill when the
    next one is made there."""
    parent = Path(tempfile.gettempdir()) if parent is None else parent
    remove_left(parent)
    with ExitStack() as leaving:
        while True:
            made = parent / f".paceline-{HOST}-{secrets.token_hex(6)}.partial"
            leaving.callback(shutil.rmtree, made, ignore_errors=True)
            made.mkdir(mode=0o700)
            with suppress(FileNotFoundError, BlockingIOError):  # somebody took it for one that was left
                leaving.enter_context(locked(made))
                break
        yield made


@contextmanager
def partial(path: str | Path, *, sync: bool = False) -> Iterator[Path]:
    """An empty file to fill, which takes the place of ``path`` when all went well. A link stays one, and a file keeps
    its permissions. With ``sync`` it outlives a power cut."""
    place = Path(os.path.realpath(path))
    with named(path), workplace(place.parent) as work:
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


def remove_left(folder: Path) -> None:
    """Remove what dead processes left in a folder, and nothing else."""
    with suppress(OSError):
        for name in os.listdir(folder):
            if (found := OURS.fullmatch(name)) is not None:
                _remove(folder / name, nobodys=found["host"] in (HOST, None))


def is_left(name: str) -> bool:
    """Whether a file or folder of this name is one that somebody began to write."""
    return OURS.fullmatch(name) is not None


def _remove(path: Path, nobodys: bool) -> None:
    """A free lock on one of this host says that no process writes it."""
    with suppress(OSError):
        found = path.lstat()
        old = time.time() - found.st_mtime > UNUSED
        if nobodys or old:
            with locked(path) as lock:
                if lock is None and not old:
                    return
                if stat.S_ISDIR(found.st_mode):
                    shutil.rmtree(path, ignore_errors=True)
                elif stat.S_ISREG(found.st_mode) and not found.st_size:
                    path.unlink()


def _belongs(other: Path, path: Path) -> bool:
    """Whether an error at the other path is one of writing this one: in it, in its folder, or in what is unfinished."""
    place = Path(os.path.realpath(path))
    return other in (path, place, *place.parents) or any(map(is_left, other.parts))
