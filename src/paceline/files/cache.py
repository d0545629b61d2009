"""The cache folder, for files that can be made again."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar, cast

from paceline.errors import InputError
from paceline.files.locks import exclusive
from paceline.files.reading import DESCRIPTION, parse, read_file
from paceline.files.shape import shaped
from paceline.files.writing import write_whole

Record = TypeVar("Record")

CACHE = "PACELINE_CACHE"
"""The environment variable that names another folder."""
DIGITS = 16
"""Of a file's name, a digest of its key."""


def cache_folder() -> Path | None:
    """$PACELINE_CACHE, or the system's usual place for caches; None for a user without a home folder."""
    if given := os.environ.get(CACHE):
        try:
            return Path(given).expanduser()
        except RuntimeError:
            raise InputError(f"${CACHE} is {given}, and there is no such user here; name another folder") from None
    try:
        return _usual()
    except RuntimeError:  # neither $HOME nor an entry in the list of users
        return None


def cached_path(folder: str, key: str) -> Path | None:
    """The file of a key; None where no cache folder is known."""
    try:
        place = cache_folder()
    except InputError:
        return None
    digest = hashlib.sha256(key.encode()).hexdigest()[:DIGITS]
    return None if place is None else place / folder / f"{digest}.json"


def cached(
    folder: str, key: str, kind: type[Record], make: Callable[[], Record], usable: Callable[[Record], bool]
) -> Record:
    """The record of a key, a dataclass, from the cache folder; made and written where there is no usable one.

    Processes that ask for the same wait while it is made, so that all get the first one's. A folder that cannot be
    written costs only time.
    """
    path = cached_path(folder, key)
    if path is None:
        return make()
    if (known := _read(path, kind, usable)) is not None:
        return known
    with ExitStack() as held:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            held.enter_context(exclusive(path))
        if (known := _read(path, kind, usable)) is not None:
            return known
        made = make()
        if usable(made):
            _write(path, made)
        return made


def kept_record(folder: str, key: str, kind: type[Record]) -> Record | None:
    """The record that `keep_record` kept under a key, if there is one that can be read."""
    path = cached_path(folder, key)
    return None if path is None else _read(path, kind, lambda record: True)


def keep_record(folder: str, key: str, record: Any) -> None:
    """Keep a dataclass under a key, in place of an earlier one. A folder that cannot be written keeps nothing."""
    if (path := cached_path(folder, key)) is not None:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, record)


def _write(path: Path, record: Any) -> None:
    with suppress(OSError):
        write_whole(path, json.dumps(asdict(cast("Any", record))))


def _read(path: Path, kind: type[Record], usable: Callable[[Record], bool]) -> Record | None:
    """A record; None where there is none, or one that is damaged or not usable."""
    try:
        found = shaped(kind, parse(read_file(path, DESCRIPTION)))
    except (OSError, ValueError):
        return None
    return found if usable(found) else None


def _usual() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "paceline" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "paceline"
    given = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(given) if Path(given).is_absolute() else Path.home() / ".cache") / "paceline"
