"""The output of commands: text, tables, pictures, JSON, and a progress bar."""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from paceline.cli.streams import speaks_unicode
from paceline.files.visible import UNPRINTABLE, one_line, visible

if TYPE_CHECKING:
    from rich.text import Text

    from paceline.api.pictures.terminal import Painter
    from paceline.api.piece import Piece

TEXT_COLUMNS = 100
"""Columns of running text."""
WIDEST = 10_000
"""Columns of tables, which are as wide as their contents: a pipe has no width, and a terminal wraps."""
ESCAPED = {code: f"\\u{code:04x}" for code in UNPRINTABLE if code > 31}
"""Characters that JSON need not escape, but that control a terminal."""


_status = ""
"""The line on standard error until something else is printed."""


def status(doing: str) -> None:
    """Say at a terminal what is being done before there is anything to see; `wipe` takes it away."""
    global _status
    if sys.stderr.isatty():
        wipe()
        _status = one_line(doing)
        print(_status, end="", file=sys.stderr, flush=True)


_open_line = False
"""Whether the terminal's line, on standard output, has text that a note must not join."""


def wipe() -> None:
    """Take the status away; all that prints does so first."""
    global _status
    if _status:
        print(f"\r{' ' * len(_status)}\r", end="", file=sys.stderr, flush=True)
        _status = ""


def _printed(text: str) -> None:
    """Remember where the terminal's line is after a text on standard output."""
    global _open_line
    if text and sys.stdout.isatty():
        _open_line = not text.endswith("\n")


def _line_end() -> str:
    """The line end of a text before something else is printed on the same terminal."""
    global _open_line
    if not _open_line or not sys.stderr.isatty():
        return ""
    _open_line = False
    return "\n"


def say(*said: object, sep: str = " ", end: str = "\n", file: TextIO | None = None, flush: bool = False) -> None:
    """Print, without control characters that a terminal would obey: names and texts may come from anybody's file."""
    wipe()
    before = ""
    if file is sys.stderr:
        before = _line_end()
    else:
        _printed(end)
    print(before + sep.join(visible(str(one)) for one in said), end=end, file=file, flush=flush)


def note(text: str) -> None:
    """Say what a user should know beside the work, on standard error."""
    say(f"paceline: note: {one_line(text)}", file=sys.stderr)


def write(text: str) -> None:
    """Print a model's text: unchanged into a file or a pipe, without control characters on a terminal."""
    wipe()
    sys.stdout.write(visible(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()
    _printed(text)


@contextmanager
def writing() -> Iterator[Callable[[str], None]]:
    """Writes a model's text as it arrives; at a terminal, lines break between words."""
    if not sys.stdout.isatty():
        yield write
        return
    from paceline.cli.wrapping import Wrapping

    wrapping = Wrapping(columns())

    def put(runs: Iterable[tuple[str, str]]) -> None:
        write("".join(text for text, _ in runs))

    try:
        yield lambda text: put(wrapping.feed(visible(text)))
    finally:
        put(wrapping.end())


def columns() -> int:
    """How wide the terminal is."""
    return shutil.get_terminal_size((80, 24)).columns


def print_json(data: Mapping[str, Any]) -> None:
    """One line of JSON. Minus infinity, the log-probability of a token that cannot be, has no number there: null."""
    wipe()
    sys.stdout.write(json.dumps(_finite(data), ensure_ascii=not speaks_unicode(), allow_nan=False).translate(ESCAPED))
    sys.stdout.write("\n")


def _finite(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


# --- words and tables ---


def counted(count: int, noun: str) -> str:
    """A number with its noun in the singular or plural."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def interval(value: float, low: float, high: float) -> str:
    """A value with its bounds, where it has any."""
    return f"{value:.2f}" + ("" if math.isnan(low) else f" [{low:.2f}, {high:.2f}]")


def bullets(notes: Iterable[str], before: str = "") -> Iterator[str]:
    """The lines of a list of notes, each with ``before`` in front."""
    for note in notes:
        yield from textwrap.wrap(note, TEXT_COLUMNS, initial_indent=f"{before}- ", subsequent_indent=f"{before}  ")


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


# --- pictures ---


def wants_color(options: argparse.Namespace) -> bool:
    """Whether standard output should be coloured."""
    if options.color != "auto":
        return bool(options.color == "always")
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def show(text: Text, color: bool, *, end: str = "\n", width: int | None = None) -> None:
    """Print a picture, wrapped between words at a width or at the terminal's. Without colours it is plain text."""
    from paceline.cli.wrapping import wrapped

    drawn = text.copy()
    drawn.plain = visible(text.plain)
    width = width or (columns() if sys.stdout.isatty() else None)
    _show(drawn if width is None else wrapped(drawn, width), color, end)


def _show(text: Text, color: bool, end: str) -> None:
    """Print a text as it is."""
    from rich.console import Console

    wipe()
    # Anything but a terminal that says which colours it has gets all of them: on too few, sources look alike.
    names_colors = sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
    console = Console(
        file=sys.stdout,
        force_terminal=color,
        no_color=not color,
        color_system="truecolor" if color and not names_colors else "auto",
        highlight=False,
        legacy_windows=False,
    )
    console.print(text, end=end, soft_wrap=True)
    sys.stdout.flush()
    _printed(text.plain + end)


def draw(pieces: Iterable[Piece], color: bool, prompt: str = "") -> Painter:
    """Show a text's cells as they become certain. The painter then has the legend."""
    from rich.text import Text

    from paceline.api.pictures import cells
    from paceline.api.pictures.terminal import Painter
    from paceline.cli.wrapping import Wrapping

    painter = Painter(color)
    wrapping = Wrapping(columns()) if sys.stdout.isatty() else None

    def put(text: Text) -> None:
        said, style = visible(text.plain), str(text.style)
        _show(Text.assemble(*wrapping.feed(said, style)) if wrapping else Text(said, style), color, "")

    put(painter.prompt(prompt))
    for cell in cells(pieces):
        put(painter.cell(cell))
    put(painter.end())
    _show(Text.assemble(*wrapping.end() if wrapping else ()), color, "\n\n")
    return painter


@contextmanager
def progress(first: str) -> Iterator[Callable[[str, int, int], None]]:
    """A bar on standard error, moved by what is being done, how much is done and how much there is; silent where
    standard error is no terminal."""
    if not sys.stderr.isatty():
        yield lambda *_: None
        return
    wipe()
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    # seldom, for a bar is drawn beside what is being timed
    with Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=2) as bar:
        task = bar.add_task(escape(one_line(first)), total=None)

        def advance(doing: str, done: int, total: int) -> None:
            """Where there is nothing to count, an empty bar and not a full one."""
            bar.update(task, description=escape(one_line(doing)), completed=done, total=total or None)

        yield advance
