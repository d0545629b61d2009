"""Folders that a command writes several files in: they are taken only where they are ours, and by one at a time."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from paceline.files.locks import is_at, locked
from paceline.files.writing import is_left, remove_left

TRIES = 100
"""How often a folder is made that others remove in between."""


def check_folder(path: Path, mark: str, kind: str, besides: Collection[str] = ()) -> bool:
    """Whether a folder is one of ours by its file ``mark``. One that is neither ours nor new nor empty is refused; the
    files ``besides`` do not count."""
    if (path / mark).exists():
        return True
    if path.exists() and not (path.is_dir() and all(name in besides or is_left(name) for name in os.listdir(path))):
        raise ValueError(f"{path} is there and is no {kind}; give another --out")
    return False


@contextmanager
def claimed(path: Path) -> Iterator[None]:
    """Nobody else writes in a folder meanwhile. A folder that was made for it and is still empty at the end is removed:
    who was refused leaves nothing behind. Only who made it removes it, so one that another process claimed before its
    maker could stays."""
    place, made = Path(os.path.realpath(path)), set[Path]()
    with ExitStack() as leaving:
        leaving.callback(_remove, made)
        try:
            lock = _claim(place, made, leaving)
        except BlockingIOError:
            raise ValueError(
                f"{path} is being written by another process; wait for it, or give another --out"
            ) from None
        if place in made:
            made.remove(place)  # once the lock is gone, what is here may be another's
            leaving.callback(_remove_held, place, lock)
        remove_left(place)
        yield


def _claim(place: Path, made: set[Path], leaving: ExitStack) -> int | None:
    """The lock of ``place``, which is held until ``leaving``. ``made`` gets the folders that this made."""
    for _ in range(TRIES):
        with suppress(FileNotFoundError):  # the process that made the folder removed it in between
            _make(place, made)
            return leaving.enter_context(locked(place))
    raise ValueError(f"{place} does not stay when it is made, as if another process removed it; give another --out")


def _make(place: Path, made: set[Path]) -> None:
    """Only mkdir knows who made a folder: of two that see none, one makes it."""
    for folder in reversed([folder for folder in (place, *place.parents) if not folder.exists()]):
        with suppress(FileExistsError):
            folder.mkdir()
            made.add(folder)


def _remove(made: set[Path]) -> None:
    """The innermost first. A folder that another process has claimed since stays, for it is that one's now."""
    for folder in sorted(made, reverse=True):
        with suppress(OSError), locked(folder) as lock:
            _remove_held(folder, lock)


def _remove_held(folder: Path, lock: int | None) -> None:
    """Remove an empty folder unless it is no more the one that was locked."""
    with suppress(OSError):
        if lock is None or is_at(lock, folder):
            folder.rmdir()
