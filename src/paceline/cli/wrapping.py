"""Lines that break between words while a text arrives, where the terminal would break them anywhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter

from rich.cells import cell_len
from rich.text import Text

JOINER = "\u200d"
TAB = 8


class Wrapping:
    """Takes a text piece by piece, each in one style, and gives back what can stand on lines of ``width`` columns. A
    word is held until its end has come. A word longer than a line is cut, and between wide characters any line may
    end. Spaces that a line would end with are left out, and nothing else is."""

    def __init__(self, width: int) -> None:
        self._width = max(width, 2)
        self._column = 0
        self._word: list[tuple[str, str, int]] = []
        """Characters of the last word, each with its style and its columns."""
        self._gap: list[tuple[str, str, int]] = []
        """The spaces before it."""

    def feed(self, text: str, style: str = "") -> list[tuple[str, str]]:
        """The text that can be printed now, with its styles."""
        return _joined(self._fed(text, style))

    def end(self) -> list[tuple[str, str]]:
        """The last word, and spaces behind it."""
        return _joined([*self._flushed(), *self._spaces()])

    def _fed(self, text: str, style: str) -> Iterator[tuple[str, str]]:
        for char in text:
            if char == "\n":
                yield from self._flushed()
                yield from self._spaces()
                yield char, ""
                self._column = 0
            elif char.isspace() and char != "\xa0":
                yield from self._flushed()
                place = self._column + sum(columns for _, _, columns in self._gap)
                self._gap.append((char, style, TAB - place % TAB if char == "\t" else cell_len(char)))
            else:
                columns = cell_len(char)
                if self._may_break(columns):
                    yield from self._flushed()
                self._word.append((char, style, columns))

    def _may_break(self, columns: int) -> bool:
        """Whether a line may end before the next character of a word: beside a wide one that nothing joins to it."""
        if not self._word or not columns or self._word[-1][0] == JOINER:
            return False
        return columns > 1 or max(each for _, _, each in self._word[-2:]) > 1

    def _flushed(self) -> Iterator[tuple[str, str]]:
        if not self._word:
            return
        whole = sum(columns for _, _, columns in (*self._gap, *self._word))
        if self._column and self._column + whole > self._width:
            yield "\n", ""
            self._column, self._gap = 0, []
        yield from self._spaces()
        for char, style, columns in self._word:
            if self._column + columns > self._width:
                yield "\n", ""
                self._column = 0
            yield char, style
            self._column += columns
        self._word = []

    def _spaces(self) -> Iterator[tuple[str, str]]:
        for char, style, columns in self._gap:
            if self._column + columns <= self._width:
                yield char, style
                self._column += columns
        self._gap = []


def wrapped(text: Text, width: int) -> Text:
    """A finished text in lines. Where styles lie over each other, the last one shows."""
    styles = [str(text.style)] * len(text)
    for span in text.spans:
        styles[span.start : span.end] = [str(span.style)] * (min(span.end, len(text)) - span.start)
    wrapping, runs = Wrapping(width), list[tuple[str, str]]()
    for style, same in groupby(zip(text.plain, styles, strict=True), itemgetter(1)):
        runs += wrapping.feed("".join(char for char, _ in same), style)
    return Text.assemble(*runs, *wrapping.end())


def _joined(runs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Neighbours of one style as one."""
    return [("".join(char for char, _ in same), style) for style, same in groupby(runs, itemgetter(1))]
