"""The blocks of a report. Sections yield blocks; the templates `page.html` and `report.md` show them, so that both have
the same content."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from paceline.api.pictures import TokenPicture

Of = TypeVar("Of")


@dataclass(frozen=True)
class Text:
    """A paragraph, a ``quote`` of a prompt, ``code`` for a shell, or the ``legend`` of coloured cells."""

    said: str
    kind: str = "p"


@dataclass(frozen=True)
class Warnings:
    """The first things to know."""

    said: Sequence[str]
    kind: str = "warnings"


@dataclass(frozen=True)
class TableCell:
    """A cell of a table. ``small`` stands beneath, ``heat`` colours it around 1, ``bar`` is a share of the longest bar
    of the table for readers without pictures."""

    said: str
    small: str = ""
    best: bool = False
    heat: float | None = None
    bar: float | None = None
    link: str = ""


@dataclass(frozen=True)
class Row:
    """A row by its name, and the number of the entry that it belongs to."""

    name: str
    cells: Sequence[TableCell | str]
    number: int | None = None


@dataclass(frozen=True)
class Table:
    """Rows under a head whose first word is what their names are. ``kind`` is numbers, words, heat (numbers coloured
    around 1) or tiles (the few figures that matter)."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Row]
    kind: str = "numbers"
    folded: bool = False
    """Whether it is long and opens on request."""


def by_method(
    caption: str,
    head: Sequence[str],
    entries: Sequence[tuple[int, str, Of]],
    cells: Callable[[str, Of], Sequence[TableCell | str]],
) -> Table:
    """A table with a row for each entry: number, name, and what its cells are made of."""
    return Table(caption, ["method", *head], [Row(name, cells(name, of), number) for number, name, of in entries])


@dataclass(frozen=True)
class Chart:
    """An SVG with its caption and legend. Tables say the same to readers without pictures."""

    svg: str
    caption: str = ""
    entries: Sequence[tuple[int, str]] = ()
    """The legend: entries by number and name."""
    parts: Mapping[str, str] | None = None
    """The legend: parts of bars, and what they are."""
    owner: tuple[int, str] | None = None
    """The entry that all of it belongs to."""
    kind: str = "chart"


@dataclass(frozen=True)
class Tokens:
    """A text in its colours; ``link`` leads to all of it."""

    picture: TokenPicture
    number: int
    name: str
    figures: str
    link: str
    numbers: Mapping[str, int]
    """Sources by the number of their colour, the same on all pages of a report."""
    plain: str = ""
    """The text of an entry that does not report its sources."""
    kind: str = "tokens"


@dataclass(frozen=True)
class Group:
    """Blocks ``beside`` one another where there is room, a chart first; small tables in ``columns``; or ``many`` small
    charts."""

    blocks: Sequence[Block]
    kind: str = "beside"


Block = Text | Warnings | Table | Chart | Tokens | Group


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it."""

    key: str
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Part:
    """All sections of one run, or of a comparison, under one headline."""

    key: str
    kicker: str
    """The line above the headline."""
    headline: str
    more: str
    """The lines below it."""
    sections: Sequence[Section]
