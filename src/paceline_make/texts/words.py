"""The definition of a word, and of the n-grams of words in a line of text.

A **word** is a run of letters, marks and digits, with single apostrophes inside (``комп'ютер``, ``l'eau``). Scripts
that put no spaces between words have no such runs: there a word is one character with its marks (``我``, ``ก็``).

A **gap** is the text between two words: at most 3 characters, none of them a control character or a line break. A
longer gap, or one with a break, ends a **segment** of the line. No n-gram crosses segments.

A segment is a list of **units**: its first word bare, and each later word with the gap before it. An n-gram is written
as its units with a tab between them; its first unit is bare as well, wherever in the segment it stands::

    Він сказав, що.     ["Він", " сказав", ", що"]     "Він"  "Він\\t сказав"  "сказав\\t, що"

DuckDB cuts with RE2 expressions, the tests check it with Python's. Both come from the same tables here.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import chain, groupby
from typing import NamedTuple

TAB = "\t"
"""Between the units of an n-gram: no gap holds one."""
LONGEST_GAP = 3
APOSTROPHES = "'’‘`´ʼ′"
BREAKS = ((0x00, 0x1F), (0x7F, 0x9F), (0x2028, 0x2029))
"""Controls and the separators of lines and paragraphs, which no gap holds."""
SPACELESS = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x3005, 0x3007),  # Han: the marks of repetition and of zero
    (0x3021, 0x3029),
    (0x3038, 0x30FF),  # Han numerals, Hiragana, Katakana
    (0x31F0, 0x31FF),
    (0x3400, 0x4DBF),  # Han
    (0x4E00, 0x9FFF),
    (0xA9E0, 0xA9FF),  # Myanmar, extended
    (0xAA60, 0xAA7F),
    (0xF900, 0xFAFF),  # Han, for compatibility
    (0xFF66, 0xFF9F),  # Katakana, half as wide
    (0x1AFF0, 0x1B16F),  # Kana, extended
    (0x20000, 0x33FFF),  # Han, extended
)
"""Letters and digits in these ranges are words by themselves."""
ASSIGNED = (range(0x34000), range(0xE0100, 0xE01F0))
"""Every letter, mark and digit is somewhere here: beyond are symbols, private characters and empty planes."""


class Patterns(NamedTuple):
    """Regular expressions for a segment of a line, for a unit within a segment, and for the word of a unit."""

    segment: str
    unit: str
    word: str


@cache
def patterns(escaped: Callable[[int], str]) -> Patterns:
    """The expressions for a dialect that writes a code point as ``escaped`` does."""
    runs, marks, alone = _tables()
    breaks = _members(BREAKS)
    letter, mark, lone, gap = (
        "".join(f"{escaped(first)}-{escaped(last)}" for first, last in _ranges(points))
        for points in (runs, marks, alone, runs | alone | breaks)
    )
    word = f"(?:[{lone}][{mark}]*|[{letter}]+(?:[{APOSTROPHES}][{letter}]+)*)"
    before = f"[^{gap}]{{0,{LONGEST_GAP}}}"
    return Patterns(segment=f"{word}(?:{before}{word})*", unit=f"{before}{word}", word=word)


def in_re2(point: int) -> str:
    return f"\\x{{{point:x}}}"


def in_python(point: int) -> str:
    return f"\\U{point:08x}"


@cache
def word_pattern() -> re.Pattern[str]:
    return re.compile(patterns(in_python).word)


@cache
def _tables() -> tuple[set[int], set[int], set[int]]:
    """The characters that words are runs of, the marks among them, and those that are words by themselves."""
    kinds = {point: kind for point in chain(*ASSIGNED) if (kind := unicodedata.category(chr(point))[0]) in "LMN"}
    marks = {point for point, kind in kinds.items() if kind == "M"}
    alone = (kinds.keys() & _members(SPACELESS)) - marks
    return kinds.keys() - alone - set(map(ord, APOSTROPHES)), marks, alone


def _members(ranges: Iterable[tuple[int, int]]) -> set[int]:
    return {point for first, last in ranges for point in range(first, last + 1)}


def _ranges(points: set[int]) -> Iterator[tuple[int, int]]:
    """The fewest ranges that hold just these points."""
    for _, run in groupby(enumerate(sorted(points)), key=lambda pair: pair[1] - pair[0]):
        members = [point for _, point in run]
        yield members[0], members[-1]
