"""Files as text: bytes are decompressed and decoded, and the text is cut into lines of limited length."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

from paceline.errors import DamagedFile, InputError
from paceline.files.reading import whole_characters
from paceline_make.texts.words import word_pattern

Advance = Callable[[str, int, int], None]
"""Called with the name of a source, the bytes of all files that were read, and their sum (0 where it is unknown)."""
BLOCK = 1 << 20
"""Bytes of one read."""
LONGEST = 1 << 16
"""Characters of a line. A longer one is cut at a space, so a file of one line needs no more memory than others."""
COMPRESSED = {".gz": "gzip", ".zst": "zstd"}
DIGITS = 16
END = b"\xff"
"""Ends a document in the fingerprint: no UTF-8 has this byte."""
WRONG = "\ufffd"
WRONG_BYTES = WRONG.encode()
NOT_UTF8 = "{} places were no UTF-8 and were replaced"
JUNK = 0.25
"""The largest share of wrong characters in a text."""


class CorpusLog:
    """Size, fingerprint and oddities of a corpus, noted while reading; also reports progress."""

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

    def text(self, parts: Iterable[str]) -> None:
        """Look for a first word; a corpus has one near its beginning."""
        self.has_word = self.has_word or any(word_pattern().search(part) for part in parts)

    def odd(self, name: str, what: str, times: int = 1) -> None:
        """Something that was repaired: a sentence with `{}` for the number of times."""
        self._oddities[name, what] += times

    def at(self, name: str, place: int) -> None:
        """The bytes of the current file that were read."""
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


# ---- bytes ------------------------------------------------------------------------------------------------


def size_of(path: Path) -> int:
    """The bytes of a file that can be read."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise InputError(f"{path} is neither a file nor a folder; give a text, a folder of texts or hf:NAME")
        with path.open("rb"):
            return found.st_size
    except OSError as error:
        raise InputError(f"{path} can't be read ({error.strerror}); name a file or folder that can") from None


@contextmanager
def unchanged(path: Path) -> Iterator[BinaryIO]:
    """The open file. A file that changes while it is read is refused, because such a text never existed."""
    size_of(path)
    with path.open("rb") as file:
        before = os.fstat(file.fileno())
        yield file
        now = [os.fstat(file.fileno()), *([path.stat()] if path.exists() else [])]
    same = [(before.st_ino, before.st_size, before.st_mtime_ns)] * 2
    if [(s.st_ino, s.st_size, s.st_mtime_ns) for s in now] != same:
        raise InputError(f"{path} changed while it was read; start again when nothing writes to it")


def blocks(path: Path, log: CorpusLog) -> Iterator[bytes]:
    """The decompressed content of a file, a megabyte at a time."""
    with unchanged(path) as file:
        packing = packing_of(path)
        content: Any = _unpacked(file, packing) if packing else file
        while block := _read(path, content):
            yield block
            log.at(str(path), file.tell())


def packing_of(path: Path) -> str | None:
    """How a file is compressed, by the end of its name."""
    return COMPRESSED.get(path.suffix.lower())


def _unpacked(file: BinaryIO, packing: str) -> Any:
    import pyarrow as pa

    return pa.CompressedInputStream(pa.PythonFile(file, mode="r"), packing)


def _read(path: Path, content: Any) -> bytes:
    try:
        return bytes(content.read(BLOCK))
    except OSError as error:
        said = str(error).rstrip(".")
        raise DamagedFile(f"{path} can't be decompressed ({said}); it is cut short or damaged, get it again") from None


# ---- text -------------------------------------------------------------------------------------------------


def decoded(name: str, found: Iterable[bytes], log: CorpusLog) -> Iterator[str]:
    """The text of blocks that are cut anywhere. Bytes that are not UTF-8 are replaced and counted; a file that is no
    text is refused."""
    rest, first = b"", True
    for block in found:
        if first:
            _refuse_junk(name, block)
            first = False
        data = rest + block
        border = whole_characters(data)
        rest = data[border:]
        text = text_of(name, data[:border], log)
        log.text([text])
        yield text
    if rest:
        yield text_of(name, rest, log)


def _refuse_junk(name: str, beginning: bytes) -> None:
    if b"\0" in beginning:
        raise InputError(f"{name} is no text: it holds NUL bytes; give UTF-8 text, or convert it from UTF-16")
    whole = beginning[: whole_characters(beginning)]
    if whole.decode(errors="replace").count(WRONG) > JUNK * len(whole):
        raise InputError(f"{name} is no UTF-8 text: too much of it can't be decoded; convert it first")


def text_of(name: str, raw: bytes, log: CorpusLog) -> str:
    text = raw.decode(errors="replace")
    if WRONG in text and (wrong := text.count(WRONG) - raw.count(WRONG_BYTES)):
        log.odd(name, NOT_UTF8, wrong)
    return text


# ---- lines ------------------------------------------------------------------------------------------------


def lines_of(texts: Iterable[str]) -> Iterator[list[str]]:
    """The lines of texts that follow each other without a break, many at a time."""
    rest = ""
    for text in texts:
        lines = (rest + text).split("\n")
        *cut, rest = pieces(lines.pop())
        yield [*short(lines), *cut]
    yield [rest]


def short(lines: list[str]) -> list[str]:
    """The same lines, those that are too long in pieces."""
    if max(map(len, lines), default=0) <= LONGEST:
        return lines
    return [piece for line in lines for piece in pieces(line)]


def pieces(line: str) -> list[str]:
    """A line cut after the last space before each limit, or at the limit where there is none."""
    found, start = [], 0
    while len(line) - start > LONGEST:
        head = line[start : start + LONGEST]
        last = head.rsplit(None, 1)
        end = LONGEST if head[-1].isspace() or len(last) < 2 else LONGEST - len(last[1])
        found.append(head[:end])
        start += end
    return [*found, line[start:]]
