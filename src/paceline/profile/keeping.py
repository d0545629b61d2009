"""Where what can be made again is kept, and how a file is written: all of it or nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from threading import get_ident
from typing import Any

PLACE = "PACELINE_CACHE"
"""The environment variable that names another folder."""


def folder() -> Path | None:
    """$PACELINE_CACHE, or else where this system keeps what can be made again; None for a user who has no home."""
    if given := os.environ.get(PLACE):
        try:
            return Path(given).expanduser()
        except RuntimeError:
            raise ValueError(f"${PLACE} is {given}, and there is no such user here; name another folder") from None
    try:
        return _usual()
    except RuntimeError:  # neither $HOME nor an entry in the list of users
        return None


def _usual() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "paceline" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "paceline"
    given = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(given) if Path(given).is_absolute() else Path.home() / ".cache") / "paceline"


def write_whole(path: Path, pieces: Iterable[Any]) -> None:
    """Write bytes, piece by piece, beside a file and then in its place. An OSError tells what went wrong; nothing is
    left of what was begun."""
    place = Path(os.path.realpath(path))
    writer = f"{os.getpid()}.{get_ident()}"  # two threads with one file would write into what is mapped already
    partial = place.with_name(f".{place.name}.{writer}.partial")
    try:
        with partial.open("wb") as file:
            for piece in pieces:
                file.write(piece)
        partial.replace(place)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
