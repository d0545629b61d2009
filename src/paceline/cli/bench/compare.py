"""``paceline bench compare``: the methods of a run side by side, or runs against the first of them."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.cli.common import Subparsers, add_json, aligned, print_json
from paceline.cli.streams import say

if TYPE_CHECKING:
    from paceline.bench.compare import Between, Finding, Within
    from paceline.bench.oracle import Oracle
    from paceline.bench.statistics import Estimate
    from paceline.bench.summary import Figures

WIDTH = 110
BEST = "*"
ALL = "all"
AT_ONCE = 5
"""Columns of a table."""


def add(commands: Subparsers) -> None:
    parser = commands.add_parser(
        "compare",
        help="methods of a run side by side, or runs against each other",
        description=(
            "One run: the speed-ups of its methods by task, with 95% intervals. Several runs: how the speed-ups of "
            "each stand to those of the first, prompt by prompt. Only what the intervals bear out is called faster or "
            "slower, all of it together: where nothing differs, at most one comparison in twenty calls anything."
        ),
        allow_abbrev=False,
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run directories; the first is the base")
    parser.add_argument(
        "--base", metavar="ENTRY", help="the entry that speed-ups are over (default: the run's first, plain)"
    )
    parser.add_argument(
        "--oracle",
        action="store_true",
        help="how near each entry came to what the best draft would have given on this device",
    )
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from paceline.bench.compare import Within, across
    from paceline.bench.run.directory import read

    runs = [read(path) for path in options.runs]
    for one in runs:
        if not one.records:
            raise ValueError(f"{one.path} holds no finished text; go on with its 'paceline bench run' first")
    if len(runs) == 1:
        within = Within(runs[0], options.base)
        say("\n".join(_within(within)))
        found = within.as_dict()
    else:
        betweens = across(runs, options.base)
        say("\n\n".join("\n".join(_between(between)) for between in betweens))
        found = {"base_run": runs[0].name, "runs": [between.as_dict() for between in betweens]}
    if options.oracle:
        from paceline.bench.oracle import Oracle

        oracles = [Oracle(one, options.base) for one in runs]
        for one, oracle in zip(runs, oracles, strict=True):
            say("", f"limits of {one.name}", *_limits(oracle), sep="\n")
        found["oracle"] = {one.name: oracle.as_dict() for one, oracle in zip(runs, oracles, strict=True)}
    if options.json:
        print_json(found)
    return 0


def _limits(oracle: Oracle) -> Iterator[str]:
    """Shares of both limits, cell by cell, and what they are."""
    base = oracle.summary.base
    rows = [("", "", f"x {base}", "of hindsight", "limit", "of knowing", "limit", "")]
    cell: str | None = None
    for share in oracle.shares():
        here = ALL if share.task is None else f"{share.task}/{share.language}"
        shares = [f"{one.value:.0%}" + _percents(one) for one in (share.hindsight, share.knowing)]
        limits = [f"{one:.2f}" for one in (share.hindsight_speed_up, share.knowing_speed_up)]
        first = here if here != cell else ""
        told = (first, share.entry, f"{share.speed_up:.2f}", shares[0], limits[0], shares[1], limits[1], "")
        rows.append(told)
        cell = here
    widths = max(len(row[1]) for row in rows)
    yield from (line.rstrip() for line in aligned([(row[0], f"{row[1]:{widths}}", *row[2:]) for row in rows]))
    yield from _wrapped(
        [
            "all of rounds alone, over " + base + "; reading the prompt counts in none of it",
            "of hindsight: of the speed that the same rounds would have had with only those nodes that were accepted, "
            "and drafts that take no time; what is lacking went into refused rows and into drafting",
            "of knowing: of the speed of a draft that knows the text and sends as much of it at a time as is fastest "
            f"here, up to the {oracle.curve.most} rows that rounds of this run had",
        ]
    )


def _percents(found: Estimate) -> str:
    return f" [{found.low:.0%}, {found.high:.0%}]" if found.bounded else ""


def _within(found: Within) -> Iterator[str]:
    from paceline.bench.warnings import warnings

    summary = found.summary
    for columns in _blocks(summary.tasks):
        yield from (line.rstrip() for line in aligned(list(_rows(found, columns))))
        yield ""
    notes = [f"{BEST} the fastest of its column, and what is not told apart from it"]
    notes += [_told(one) for one in found.findings if one.task is None and summary.base not in (one.entry, one.other)]
    yield from _wrapped([*notes, *warnings(summary)])


def _rows(found: Within, columns: Sequence[str | None]) -> Iterator[tuple[str, ...]]:
    """A block of the table; the last one also has what is not by task."""
    summary = found.summary
    best, last = {task: found.best(task) for task in columns}, None in columns or len(summary.tasks) == 1
    head = ("tokens/s", "tokens/round", "text") if last else ("",)
    yield (f"x {summary.base}", *(task or ALL for task in columns), *head)
    for entry in summary.entries:
        cells = [summary.figures(entry, task) for task in columns]
        overall = summary.figures(entry)
        if overall is None:
            continue
        speed_ups = [None if cell is None else cell.speed_up for cell in cells]
        marks = [BEST if entry in best[task] else " " for task in columns]
        rate, per_round = _number(overall.tokens_per_second, ".1f"), _number(overall.tokens_per_round, ".2f")
        rest = (rate, per_round, _texts(overall)) if last else ("",)
        yield (entry, *(_value(one) + mark for one, mark in zip(speed_ups, marks, strict=True)), *rest)
        if entry != summary.base:
            yield ("", *map(_bounds, speed_ups), *("" for _ in rest))


def _blocks(tasks: Sequence[str]) -> Iterator[list[str | None]]:
    """Columns that fit beside one another: tasks, and in the end all of them together, where there are several."""
    columns: list[str | None] = [*tasks, *([None] if len(tasks) != 1 else [])]
    for start in range(0, len(columns), AT_ONCE):
        yield columns[start : start + AT_ONCE]


def _between(found: Between) -> Iterator[str]:
    old, new = found.base.run.name, found.run.run.name
    prompts = f"{found.prompts} {'prompt' if found.prompts == 1 else 'prompts'} in common"
    yield f"{new} against {old}: {prompts}"
    if found.findings:
        yield ""
        yield f"speed-up over {found.run.base}, as a share of that in {old}"
        yield from _shares(found, found.findings, calls=True)
    if found.raw:
        yield ""
        yield f"tokens/s, as a share of those in {old}: machine or code, runs made apart cannot tell"
        yield from _shares(found, found.raw, calls=False)
    yield ""
    yield from _wrapped(found.notes)


def _shares(found: Between, findings: Sequence[Finding], calls: bool) -> Iterator[str]:
    cells = {(one.entry, one.task): one for one in findings}
    for columns in _blocks(found.tasks):
        rows = [("", *(task or ALL for task in columns), "")]
        for entry in dict.fromkeys(one.entry for one in findings):
            row = [cells.get((entry, task)) for task in columns]
            ratios = [None if one is None else one.ratio for one in row]
            rows += [(entry, *map(_value, ratios), ""), ("", *map(_bounds, ratios), "")]
            if calls:
                rows.append(("", *("" if one is None else str(one.call) for one in row), ""))
        yield from (line.rstrip() for line in aligned(rows))


def _told(one: Finding) -> str:
    prompts = f"{one.prompts} {'prompt' if one.prompts == 1 else 'prompts'}"
    return f"{one.entry} is {_value(one.ratio)} x {one.other} {_bounds(one.ratio)} over {prompts}: {one.call}"


def _texts(figures: Figures) -> str:
    return ", ".join(f"{count} {verdict}" for verdict, count in figures.verdicts.items())


def _wrapped(notes: Sequence[str]) -> Iterator[str]:
    for note in notes:
        yield from textwrap.wrap(f"- {note}", WIDTH, subsequent_indent="  ")


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _value(found: Estimate | None) -> str:
    return "" if found is None else f"{found.value:.2f}"


def _bounds(found: Estimate | None) -> str:
    return f"[{found.low:.2f}, {found.high:.2f}]" if found is not None and found.bounded else ""
