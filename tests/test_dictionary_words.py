"""What a word is: the cut is stated case by case, then character by character, and RE2 must agree with both."""

import random
import unicodedata

import pytest

from dictionary_tables import ngrams, segments
from paceline_make.dictionary.database import quoted
from paceline_make.texts.words import APOSTROPHES, BREAKS, LONGEST_GAP, SPACELESS, in_re2, patterns

duckdb = pytest.importorskip("duckdb", reason="duckdb counts words by RE2: pip install 'paceline[dict]'")
pyarrow = pytest.importorskip("pyarrow", reason="duckdb is given lines by pyarrow: pip install 'paceline[dict]'")

CASES = [
    ("", []),
    (" .,!", []),
    ("персональний комп'ютер", [["персональний", " комп'ютер"]]),
    ("Він сказав, що", [["Він", " сказав", ", що"]]),
    ("«Так», — ні", [["Так"], ["ні"]]),
    ("так — ні", [["так", " — ні"]]),
    ("a    b", [["a"], ["b"]]),
    ("a   b", [["a", "   b"]]),
    ("a\tb", [["a"], ["b"]]),
    ("a\u2028b c", [["a"], ["b", " c"]]),
    ("  a.", [["a"]]),
    ("rock'n'roll 'tis dogs'", [["rock'n'roll", " 'tis", " dogs"]]),
    ("a''b", [["a", "''b"]]),
    ("обʼєднання об’єднання ʼʼ", [["обʼєднання", " об’єднання"]]),
    ("къырымтатар ъ", [["къырымтатар", " ъ"]]),
    ("snake_case 1st x2", [["snake", "_case", " 1st", " x2"]]),
    ("e\u0301te\u0301 नमस्ते", [["e\u0301te\u0301", " नमस्ते"]]),
    ("我们abc去", [["我", "们", "abc", "去"]]),
    ("カﾞがー。です", [["カ", "ﾞ", "が", "ー", "。で", "す"]]),
    ("ที่นี่ ກິນ", [["ที่", "นี่", " กิ".replace("กิ", "ກິ"), "ນ"]]),
    ("한국어 말", [["한국어", " 말"]]),
    ("🙂a🙂🙂🙂b🙂🙂🙂🙂c", [["a", "🙂🙂🙂b"], ["c"]]),
]


@pytest.mark.parametrize(("line", "expected"), CASES, ids=[ascii(line) for line, _ in CASES])
def test_a_line_is_cut_into_segments_and_units(line: str, expected: list[list[str]]) -> None:
    assert segments(line) == expected


def test_the_first_unit_of_an_ngram_is_bare() -> None:
    assert list(ngrams("a, b c\td", 3)) == ["a", "a\t, b", "a\t, b\t c", "b", "b\t c", "c", "d"]
    assert list(ngrams("a, b c\td", 1)) == ["a", "b", "c", "d"]


# --- against a reading of the definition that uses no expression --------------------------------------------


def kind(character: str) -> str:
    """Of a character: `mark`, `alone`, `letter`, `break` or `gap`."""

    def within(ranges: tuple[tuple[int, int], ...]) -> bool:
        return any(first <= ord(character) <= last for first, last in ranges)

    if within(BREAKS):
        return "break"
    if character in APOSTROPHES or (category := unicodedata.category(character)[0]) not in "LMN":
        return "gap"
    if category == "M":
        return "mark"
    return "alone" if within(SPACELESS) else "letter"


def slow_segments(line: str) -> list[list[str]]:
    kinds = [*map(kind, line), "end", "end"]
    found: list[list[str]] = []
    gap, place = "\t", 0
    while place < len(line):
        end = place + 1
        if kinds[place] == "alone":
            while kinds[end] == "mark":
                end += 1
        elif kinds[place] in ("letter", "mark"):
            run = ("letter", "mark")
            while kinds[end] in run or (end < len(line) and line[end] in APOSTROPHES and kinds[end + 1] in run):
                end += 1
        else:
            gap += line[place]
            place = end
            continue
        if len(gap) > LONGEST_GAP or any(kind(character) == "break" for character in gap):
            found.append([line[place:end]])
        else:
            found[-1].append(gap + line[place:end])
        gap, place = "", end
    return found


def hostile_lines(seed: int, number: int) -> list[str]:
    """Random strings that are rich in borders between kinds of characters."""
    dice = random.Random(seed)
    rich = "aяъ1_'’ʼ  \t,.-—我のกิ่ກ́𠀀က္ﾞ🙂\u200d\u00a0\x85"
    assigned = [c for c in map(chr, range(0x20, 0x33480)) if unicodedata.category(c) not in ("Cs", "Cn", "Co")]
    return [
        "".join(dice.choice(rich if dice.random() < 0.7 else assigned) for _ in range(dice.randrange(1, 40)))
        for _ in range(number)
    ]


def by_the_engine(lines: list[str]) -> list[list[list[str]]]:
    cut = patterns(in_re2)

    def extracted(texts: list[str], pattern: str) -> list[list[str]]:
        connection.register("texts", pyarrow.table({"text": texts}))
        return [
            row[0]
            for row in connection.execute(f"SELECT regexp_extract_all(text, {quoted(pattern)}) FROM texts").fetchall()
        ]

    with duckdb.connect(config={"threads": 1}) as connection:
        found = extracted(lines, cut.segment)
        units = iter(extracted([segment for line in found for segment in line], cut.unit))
    return [[next(units) for _ in line] for line in found]


def test_both_engines_agree_with_a_slow_reading() -> None:
    lines = hostile_lines(7, 4000)
    slow = [slow_segments(line) for line in lines]
    assert sum(len(units) > 2 for line in slow for units in line) > 1000, "the lines must be worth cutting"
    assert [segments(line) for line in lines] == slow
    assert by_the_engine(lines) == slow


@pytest.mark.slow
def test_every_character_is_of_one_kind_everywhere() -> None:
    """Between two letters a character joins, stands alone, parts or breaks; each is tried."""
    points = [*range(0x20, 0xD800), *range(0xE000, 0x20100), 0x323AF, 0x3134A, 0xE0100, 0xE01EF, 0x10FFFF]
    lines = [f"a{chr(point)}b" for point in points]
    slow = [slow_segments(line) for line in lines]
    assert [segments(line) for line in lines] == slow
    assert by_the_engine(lines) == slow
