"""The report as GitHub Markdown: the same sections, tables and sentences, and small bars in place of pictures."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from paceline.api.pictures.tokens import HALVES
from paceline.bench.report.blocks import (
    Beside,
    Block,
    Cell,
    Code,
    Columns,
    Part,
    Quote,
    Row,
    Section,
    Table,
    Text,
    Tiles,
    Tokens,
    Warnings,
)
from paceline.files.visible import CONTROLS, TURNING

BAR = 8
EIGHTHS = " ▏▎▍▌▋▊▉█"
TURNS = TURNING | dict.fromkeys([0x200E, 0x200F, 0x061C], 0xFFFD)
"""Characters that turn the direction of what follows: nothing in Markdown ends their reach."""
SIGNS = CONTROLS | HALVES | TURNS | {0x2028: " ", 0x2029: " "}
MARKUP = re.compile(r"([\`*_\[\]#|~$@])")


def report_markdown(parts: Sequence[Part], mark: str) -> str:
    """The whole text. ``mark`` begins it, and is not seen."""
    return "\n".join([f"<!-- {mark} -->", "", *(line for part in parts for line in _part(part))]).rstrip() + "\n"


def plain(text: str) -> str:
    """Text that is no markup, on one line."""
    flat = " ".join(text.split()).translate(SIGNS)
    return MARKUP.sub(r"\\\1", flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))


def _part(part: Part) -> Iterator[str]:
    yield from (f"# {plain(part.headline)}", "", f"*{plain(part.kicker)}*", "")
    if part.more:
        yield from (plain(part.more), "")
    for section in part.sections:
        yield from _section(section)


def _section(section: Section) -> Iterator[str]:
    if section.title:
        yield from (f"## {plain(section.title)}", "")
    for block in section.blocks:
        yield from _block(block)


def _block(block: Block) -> Iterator[str]:
    match block:
        case Text(words):
            yield from (plain(words), "")
        case Table():
            yield from _table(block)
        case Tiles(figures):
            rows = [Row(name, [Cell(value, under)]) for name, value, under in figures]
            yield from _table(Table("", ["figure", "value"], rows))
        case Warnings(sentences):
            yield from (*(f"> - {plain(one)}" for one in sentences or ["No warnings."]), "")
        case Code(words):
            fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", words)), default=0))
            yield from (f"{fence}sh", *words.translate(SIGNS | {10: "\n"}).splitlines(), fence, "")
        case Quote(words):
            yield from (*(f"> {plain(line)}" for line in words.splitlines()), "")
        case Tokens():
            yield from (f"**{plain(block.name)}**: {plain(block.figures)}", "")
        case Beside(_, right):
            yield from (line for inner in right for line in _block(inner))
        case Columns(tables):
            yield from (line for table in tables for line in _table(table))
        case _:
            return


def _table(table: Table) -> Iterator[str]:
    if table.caption:
        yield from (f"**{plain(table.caption)}**", "")
    bars = [cell.bar for row in table.rows for cell in row.cells if isinstance(cell, Cell) and cell.bar is not None]
    longest = max(bars, default=0.0)
    columns = max(len(table.head), 1)
    head = [plain(name) or " " for name in table.head]
    align = ["---", *("---" if table.words else "---:" for _ in range(columns - 1))]
    yield f"| {' | '.join(head)} |"
    yield f"| {' | '.join(align)} |"
    for row in table.rows:
        cells = [_cell(cell, longest) or " " for cell in row.cells]
        yield f"| {' | '.join([plain(row.name), *cells])} |"
    yield ""


def _cell(cell: Cell | str, longest: float) -> str:
    if isinstance(cell, str):
        return plain(cell)
    words = plain(cell.said)
    words = f"**{words}** ★" if cell.best and words else f"[{words}]({cell.link})" if cell.link else words
    if cell.small:
        words += "".join(f"<br>{plain(line)}" for line in cell.small.split("\n"))
    bar = _bar(cell.bar / longest) if cell.bar and longest else ""
    return f"{bar} {words}".strip()


def _bar(share: float) -> str:
    eighths = max(1, round(share * BAR * 8))
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()
