"""Text out of bytes, and lines out of text, none of them longer than memory likes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from paceline.dictionary.corpus.meter import Meter

LONGEST = 1 << 16
"""Characters of a line. What is longer is cut at a space: a file of one line then needs no more memory than others."""
WRONG = "\ufffd"
WRONG_BYTES = WRONG.encode()
NOT_UTF8 = "{} places were no UTF-8 and were replaced"
JUNK = 0.25
"""The part of a text that may be wrong before it is no text."""


def decoded(name: str, blocks: Iterable[bytes], meter: Meter) -> Iterator[str]:
    """The text of blocks that are cut anywhere. What is not UTF-8 is replaced and counted, what is no text refused."""
    rest, first = b"", True
    for block in blocks:
        if first:
            refuse_junk(name, block)
            first = False
        data = rest + block
        border = whole_characters(data)
        rest = data[border:]
        yield text_of(name, data[:border], meter)
    if rest:
        yield text_of(name, rest, meter)


def refuse_junk(name: str, beginning: bytes) -> None:
    if b"\0" in beginning:
        raise ValueError(f"{name} is no text: it holds NUL bytes; give UTF-8 text, or convert it from UTF-16")
    whole = beginning[: whole_characters(beginning)]
    if whole.decode(errors="replace").count(WRONG) > JUNK * len(whole):
        raise ValueError(f"{name} is no UTF-8 text: too much of it can't be decoded; convert it first")


def whole_characters(data: bytes) -> int:
    """Where to cut so that no character is torn: before the last one that may go on."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte < 0x80:
            break
        if byte >= 0xC0:  # the first byte of a character of two to four
            return len(data) - back
    return len(data)


def text_of(name: str, raw: bytes, meter: Meter) -> str:
    text = raw.decode(errors="replace")
    if WRONG in text and (wrong := text.count(WRONG) - raw.count(WRONG_BYTES)):
        meter.odd(name, NOT_UTF8, wrong)
    return text


def lines_of(texts: Iterable[str]) -> Iterator[list[str]]:
    """The lines of texts that follow each other without a break, many at a time."""
    rest = ""
    for text in texts:
        lines = (rest + text).split("\n")
        *cut, rest = pieces(lines.pop())
        yield [*short(lines), *cut]
    yield [rest]


def short(lines: list[str]) -> list[str]:
    """The same lines, the giants among them in pieces."""
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
