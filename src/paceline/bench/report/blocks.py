"""What a report is made of. Sections say what there is; `page` and `markdown` say how it looks, so that both tell the
same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.api.pictures import TokenPicture


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    said: str


@dataclass(frozen=True)
class Cell:
    """What stands in a table. ``small`` stands beneath, ``heat`` colours it around 1, ``bar`` is a share of the longest
    bar of the table for readers without pictures."""

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
    cells: Sequence[Cell | str]
    number: int | None = None


@dataclass(frozen=True)
class Table:
    """Rows under a head whose first word is what their names are."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Row]
    folded: bool = False
    """Whether it is long, and only for those who ask for it."""
    words: bool = False
    """Whether its cells are text rather than numbers."""


@dataclass(frozen=True)
class Chart:
    """An SVG with what stands under it; ``number`` is of the entry that all of it belongs to."""

    svg: str
    caption: str = ""
    number: int | None = None
    name: str = ""


@dataclass(frozen=True)
class Charts:
    """Pictures beside one another. Their tables tell the same to readers without pictures."""

    charts: Sequence[Chart]
    entries: Sequence[tuple[int, str]] = ()
    """The legend: entries by number and name."""
    parts: Sequence[tuple[str, str]] = ()
    """The legend: classes of parts and what they are."""


@dataclass(frozen=True)
class Heat:
    """The legend of coloured cells."""


@dataclass(frozen=True)
class Tiles:
    """The few figures that matter: name, value, and what must be known of it."""

    figures: Sequence[tuple[str, str, str]]


@dataclass(frozen=True)
class Warnings:
    """What must be known first."""

    said: Sequence[str]


@dataclass(frozen=True)
class Code:
    """Something to be pasted into a shell."""

    said: str


@dataclass(frozen=True)
class Quote:
    """Somebody else's words: a prompt."""

    said: str


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
    """The text of an entry that does not tell where its tokens come from."""


@dataclass(frozen=True)
class Beside:
    """Where there is room, a picture and what belongs to it stand beside one another."""

    left: Charts
    right: Sequence[Text | Table]


@dataclass(frozen=True)
class Columns:
    """Small tables that may stand in columns."""

    tables: Sequence[Table]


Block = Text | Table | Charts | Heat | Tiles | Warnings | Code | Quote | Tokens | Beside | Columns


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
    """What stands above the headline."""
    headline: str
    more: str
    """What stands below it."""
    sections: Sequence[Section]
