"""Writing a folder of files: all of them or none. A file there that somebody else wrote is never replaced."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from paceline.files import workplace

LOOKED_AT = 4096
"""Bytes at a file's beginning in which its mark stands."""


def write_folder(folder: Path, files: Iterable[tuple[str, str]], *, mark: str, pages: str) -> list[str]:
    """Write files by name, and tell their names. They are made beside their places first; only when all are there, they
    take them. ``mark`` tells our files from others. Of the numbered files in the subfolder ``pages`` those that an
    earlier writing left and this one does not have are removed."""
    try:
        made_here = _make(folder)
    except OSError as error:
        raise ValueError(f"cannot write into {folder}: {error.strerror}") from None
    done = False
    try:
        with workplace(folder) as fresh:
            names = _write(fresh, files)
            for name in names:
                _refuse_foreign(folder / name, mark)
            (folder / pages).mkdir(exist_ok=True)
            for name in names:
                (fresh / name).replace(folder / name)
        for old in (folder / pages).glob("*.html"):
            if f"{pages}/{old.name}" not in names and old.stem.isdecimal() and _is_ours(old, mark):
                old.unlink()
        done = True
    except OSError as error:
        raise ValueError(f"cannot write into {folder}: {error.strerror}") from None
    finally:
        if not done and made_here:
            with suppress(OSError):
                folder.rmdir()
    return names


def _make(folder: Path) -> bool:
    """Make a folder; whether it was not there before."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"cannot write into {folder}: it is a file; name a folder")
    before = folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    return not before


def _write(fresh: Path, files: Iterable[tuple[str, str]]) -> list[str]:
    names = []
    for name, text in files:
        place = fresh / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf8", newline="\n")
        names.append(name)
    return names


def _refuse_foreign(place: Path, mark: str) -> None:
    if os.path.lexists(place) and not _is_ours(place, mark):
        raise ValueError(f"{place} is there and is no earlier report; move it away, or give another --out")


def _is_ours(place: Path, mark: str) -> bool:
    if place.is_symlink() or not place.is_file():
        return False
    with place.open("rb") as file:
        return mark.encode() in file.read(LOOKED_AT)
