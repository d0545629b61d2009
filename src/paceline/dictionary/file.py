"""The file of a dictionary: the same bytes from the same corpus and tokenizer. The reader checks everything.

A file is safetensors (`files.arrays`): the sections that `packing` makes of entries, described by a `DictionaryHeader`.
Every number that points to another place is compared with the size of that place. So the worst that a malicious file
can do is to propose useless drafts. A file cannot be searched; `index` makes a structure that can.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from paceline.dictionary import old
from paceline.dictionary.entries import Entries
from paceline.dictionary.header import DictionaryHeader
from paceline.dictionary.packing import TYPES, Sections, pack, unpack
from paceline.files.arrays import ArrayFormat
from paceline.files.reading import damaged

LARGEST = 1 << 30
"""Bytes of a file at most."""
FORMAT = ArrayFormat("dictionary", 4, DictionaryHeader, TYPES, "'paceline dict build' makes one", LARGEST)


class Opened(NamedTuple):
    """A dictionary's file, whose sections were not looked at yet."""

    header: DictionaryHeader
    digest: str
    """Files of one digest have the same entries: it is SHA-256 of all bytes that say what they are."""
    entries: Callable[[], Entries]
    """Checks the sections; `DamagedFile` where they cannot be."""


def write(
    path: Path, entries: Entries, *, longest_prefix: int, longest_completion: int, **described: Any
) -> DictionaryHeader:
    """Write a dictionary, all or nothing."""
    header = DictionaryHeader(
        entries=len(entries),
        completions=len(entries.texts),
        highest=entries.highest,
        longest_prefix=longest_prefix,
        longest_completion=longest_completion,
        **described,
    )
    FORMAT.write(path, header, pack(entries, longest_prefix, longest_completion))
    return header


def read(path: str | Path) -> tuple[DictionaryHeader, Entries]:
    """Header and entries of a file, checked."""
    opened = open_dictionary(path)
    return opened.header, opened.entries()


def open_dictionary(path: str | Path) -> Opened:
    """An undamaged file of this version or of an earlier one."""
    image = FORMAT.map(path)
    if image[: len(old.MAGIC)] == old.MAGIC:
        before, digest, packed = old.read_old(path, image)
        return Opened(before, digest, lambda: _entries(path, before, old.unpacked(path, before, packed)))
    file = FORMAT.read(path, image)
    sections = file.verified()
    digest = hashlib.sha256(image).hexdigest()
    return Opened(file.description, digest, lambda: _entries(path, file.description, sections))


def _entries(path: str | Path, header: DictionaryHeader, sections: Sections) -> Entries:
    with damaged(str(path), FORMAT.mend):
        return unpack(header, sections)
