"""What is learnt of a corpus while it is read: its size, its fingerprint and what was odd about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from hashlib import sha256

from paceline.dictionary.words import compiled

Advance = Callable[[str, int, int], None]
"""Told the name of a source, how many bytes of all files were read, and how many there are (0 where nobody knows)."""
DIGITS = 16
END = b"\xff"
"""Ends a document in the fingerprint: no UTF-8 has this byte."""


class Meter:
    """Goes along with one reading."""

    def __init__(self, whole: int, advance: Advance | None) -> None:
        self.bytes = 0
        self.documents = 0
        self.has_word = False
        self._digest = sha256()
        self._oddities: Counter[tuple[str, str]] = Counter()
        self._whole, self._advance = whole, advance
        self._before = self._here = 0

    def content(self, raw: bytes) -> None:
        """Bytes of text, in their order."""
        self._digest.update(raw)
        self.bytes += len(raw)

    def document(self) -> None:
        """The content since the last document is one."""
        self._digest.update(END)
        self.documents += 1

    def text(self, lines: Iterable[str]) -> None:
        """Only the first word is looked for: it is there in the first lines or the corpus is not one."""
        if not self.has_word:
            word = compiled().word
            self.has_word = any(word.search(line) for line in lines)

    def odd(self, name: str, what: str, times: int = 1) -> None:
        """Something that was mended; what it was, with `{}` for how often."""
        self._oddities[name, what] += times

    def at(self, name: str, place: int) -> None:
        """How far the file that is being read has come."""
        self._here = place
        if self._advance is not None:
            self._advance(name, self._before + place, self._whole)

    def next_file(self) -> None:
        self._before += self._here
        self._here = 0

    @property
    def fingerprint(self) -> str:
        return self._digest.hexdigest()[:DIGITS]

    @property
    def notes(self) -> list[str]:
        return [f"{name}: {what.format(times)}" for (name, what), times in self._oddities.items()]
