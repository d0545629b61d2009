"""Writing files for users: what cannot be written is told before the work, and what is written is written whole."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def check_writable(path: Path | None) -> None:
    """Tell what cannot be written before the work whose result it would be: by beginning to write it."""
    if path is None:
        return
    place = _place(path)
    with _told(path), _partial(place) as partial:
        if place.is_dir():
            raise ValueError(f"cannot write {path}: it is a folder; name a file")
        if os.path.lexists(place) and not place.is_file():
            raise ValueError(f"cannot write {path}: it is no ordinary file; name one, or a new one")
        if not place.parent.is_dir():
            raise ValueError(f"cannot write {path}: there is no folder {path.parent}")
        if place.exists() and not os.access(place, os.W_OK):
            raise ValueError(f"cannot write {path}: no permission")
        partial.touch(exist_ok=False)


def write_page(path: Path, title: str, sections: Iterable[str]) -> None:
    """Write a page of pictures."""
    from paceline.measure.pictures.page import page

    write_whole(path, page(title, sections))


def write_whole(path: Path, text: str) -> None:
    """Write a file, all of it or nothing. A link stays one, and a file keeps its permissions."""
    place = _place(path)
    with _told(path), _partial(place) as partial:
        kept = stat.S_IMODE(place.stat().st_mode) if place.exists() else None
        partial.touch(mode=0o666 if kept is None else kept)
        partial.write_text(text, encoding="utf8", newline="\n")
        if kept is not None:
            partial.chmod(kept)
        partial.replace(place)


def _place(path: Path) -> Path:
    """Where a path leads to."""
    return Path(os.path.realpath(path))


@contextmanager
def _partial(place: Path) -> Iterator[Path]:
    """A name beside a file for what will replace it; nothing is left of it."""
    partial = place.with_name(f".{place.name}.{os.getpid()}.partial")
    try:
        yield partial
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}") from None
