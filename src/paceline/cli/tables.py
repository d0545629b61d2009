"""Tables on standard output."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from paceline.files.visible import one_line

WIDEST = 10_000
"""Columns. Tables are as wide as their contents: a pipe has no width, and a terminal wraps."""


def table(head: Sequence[str], rows: Iterable[Sequence[object]], *, left: Sequence[int] = (0,)) -> str:
    """A table as text. The columns ``left`` are words and stand to the left, the others numbers and to the right. A
    cell is one line, or a list of lines."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, show_header=any(head))
    for place, title in enumerate(head):
        drawn.add_column(Text(title), justify="left" if place in left else "right", no_wrap=True)
    for row in rows:
        lines = (cell if isinstance(cell, list) else [cell] for cell in row)
        drawn.add_row(*(Text("\n".join(one_line(str(line)) for line in cell)) for cell in lines))
    console = Console(width=WIDEST, color_system=None, legacy_windows=False)
    with console.capture() as captured:
        console.print(drawn)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())
