"""The cache folder, for files that can be made again."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from paceline.errors import InputError

CACHE = "PACELINE_CACHE"
"""The environment variable that names another folder."""


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


def _usual() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "paceline" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "paceline"
    given = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(given) if Path(given).is_absolute() else Path.home() / ".cache") / "paceline"
