"""Outputs that are refused: files that cannot be written, inputs of the same command, folders of other programs."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path

from paceline.errors import InputError
from paceline.files.writing import is_left, naming, workplace

READ = frozenset(
    {
        *(".json", ".jsonl", ".ndjson", ".txt", ".text", ".md", ".gz", ".zst", ".parquet", ".arrow"),
        *(".model", ".jinja", ".py", ".safetensors", ".bin", ".pt", ".pth", ".gguf"),
    }
)
"""Endings of files that are read where a folder is named: weights, tokenizers, texts."""


def check_output(path: Path | None, inputs: Iterable[Path] = ()) -> None:
    """Refuse, before the work begins, a file that cannot be written or is one of the inputs."""
    if path is None:
        return
    place = Path(os.path.realpath(path))
    with naming(path):
        if place.is_dir():
            raise InputError(f"cannot write {path}: it is a folder; name a file")
        if os.path.lexists(place) and not place.is_file():
            raise InputError(f"cannot write {path}: it is no ordinary file; name one, or a new one")
        if not place.parent.is_dir():
            raise InputError(f"cannot write {path}: there is no folder {path.parent}")
        if place.exists() and not os.access(place, os.W_OK):
            raise InputError(f"cannot write {path}: no permission")
        check_apart(path, inputs)
        with workplace(place.parent) as work:
            (work / place.name).touch()


def check_apart(output: Path, inputs: Iterable[Path]) -> None:
    """Refuse a file that is an input, by whatever name, and a folder that holds an input."""
    place = Path(os.path.realpath(output))
    for given in inputs:
        source = Path(os.path.realpath(given))
        if _is_read(place, source) or (place.is_dir() and place in source.parents):
            inside = "" if given == output else f" (as {given})"
            raise InputError(f"{output} is read by this command{inside} and would be replaced; name another output")


def _is_read(place: Path, source: Path) -> bool:
    """Whether a file is the source, or one that is read in that folder."""
    if not (place.exists() and source.exists()):
        return False
    if source.is_dir():
        return place.is_file() and source in place.parents and place.suffix.lower() in READ
    return place.samefile(source)


def check_folder(path: Path, mark: str, kind: str, besides: Collection[str] = ()) -> bool:
    """Whether a folder is an earlier output, which its file ``mark`` shows. A folder that is neither that nor new nor
    empty is refused; the files ``besides`` do not count."""
    if (path / mark).exists():
        return True
    if path.exists() and not (path.is_dir() and all(name in besides or is_left(name) for name in os.listdir(path))):
        raise InputError(f"{path} is there and is no {kind}; give another --out")
    return False
