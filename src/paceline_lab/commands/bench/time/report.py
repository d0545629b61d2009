"""Timed lines as a table and as one record."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple
from typing import TYPE_CHECKING, Any

from paceline.cli.output import counted, interval, print_json, table

if TYPE_CHECKING:
    from paceline_lab.bench.times.steps import TimedLine

FORMS: Mapping[str, Callable[[Any], str]] = {
    "share": "{:.1%}".format,
    "temperature": "{:g}".format,
    "tokens_per_second": "{:.1f}".format,
    "tokens_per_forward": "{:.2f}".format,
    "nodes": "{:.1f}".format,
    "apart": "{:.1e}".format,
    "over_theirs": lambda estimate: interval(*astuple(estimate)),
}
"""How a figure is written."""
BASE = "rows"
"""Columns by number of rows also say how many times the first column they take."""


def until_interrupted(found: Iterable[TimedLine]) -> tuple[list[TimedLine], KeyboardInterrupt | None]:
    """The lines that are timed before a user interrupts, and the interrupt; one before the first line is raised."""
    lines: list[TimedLine] = []
    try:
        lines.extend(found)
    except KeyboardInterrupt as interrupt:
        if not lines:
            raise
        return lines, interrupt
    return lines, None


def times_table(lines: Sequence[TimedLine], across: str | None = None) -> str:
    """A row for each line; or a row for all lines that differ in the fact ``across`` only, whose values are columns."""
    if across is not None:
        return _crossed(lines, across)
    first = lines[0]
    names = [*first.facts, *(f"{part}, ms" for part in first.milliseconds), *first.figures]
    rows = (
        [_cell(*one) for one in line.facts.items()]
        + [f"{took:.3f}" for took in line.milliseconds.values()]
        + [_cell(*one) for one in line.figures.items()]
        for line in lines
    )
    words = [place for place, (name, value) in enumerate(first.facts.items()) if isinstance(value, str)]
    return table([name.replace("_", " ") for name in names], rows, left=words)


def _crossed(lines: Sequence[TimedLine], across: str) -> str:
    rows: dict[tuple[str, ...], dict[Any, float]] = {}
    names = [name for name in lines[0].facts if name != across]
    for line in lines:
        (took,) = line.milliseconds.values()
        rows.setdefault(tuple(_cell(name, line.facts[name]) for name in names), {})[line.facts[across]] = took
    columns = list(dict.fromkeys(line.facts[across] for line in lines))
    head = [*names, *(counted(one, "row") if across == BASE else str(one) for one in columns), ""]
    cells = ([*row, *_across(its, columns, across), "ms"] for row, its in rows.items())
    return table(head, cells, left=(0, len(head) - 1))


def _across(its: Mapping[Any, float], columns: Iterable[Any], across: str) -> Iterator[str]:
    first = next(iter(its.values()))
    for column in columns:
        ratio = f" ({its[column] / first:.2f}x)" if across == BASE and column in its else ""
        yield f"{its[column]:.2f}{ratio}" if column in its else ""


def _cell(name: str, value: Any) -> str:
    return FORMS[name](value) if name in FORMS else str(value)


def print_record(options: argparse.Namespace, lines: Iterable[TimedLine], **facts: Any) -> None:
    """With ``--json``: the machine, the facts, and every line."""
    from paceline_lab.bench.machine import sitting, threads

    if options.json:
        with threads(options.threads):
            found = {"subject": options.subject, **sitting(shlex.join(["paceline", *sys.argv[1:]])), **facts}
        print_json(found | {"lines": [line.as_dict() for line in lines]})
