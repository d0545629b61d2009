"""``paceline bench suite``: what suites there are, what is in one, and one as a file."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.cli.arguments import Parser, Subparsers
from paceline.cli.output import print_json, say, table
from paceline.errors import InputError
from paceline.files import check_output, write_whole

if TYPE_CHECKING:
    from paceline_lab.bench.suites import Workload


def add(commands: Subparsers) -> None:
    parser: Parser = commands.add_parser(
        "suite",
        run=run,
        help="list the suites, or show the contents of one",
        description=(
            "Lists the suites that 'bench run' writes. With the name of one, builds it from the files here and "
            "prints how many prompts each task has in each language, what could not be built, and which sources "
            "were replaced. --out keeps the prompts in a file, which --suite prompts:FILE reads."
        ),
    )
    parser.argument("suite", "SUITE", "the suite to show (default: list them all)", nargs="?")
    add_choice(parser)
    parser.argument("--out", "FILE", "keep the prompts in this file, a line each", Path)
    parser.add_json()


def add_choice(parser: Parser) -> None:
    """Which prompts of a suite, and from where."""
    parser.argument("--tasks", "A,B", "only these tasks of the suite", names)
    parser.argument("--langs", "A,B", "only these languages, as in en,pl", names)
    parser.argument("--limit", "N", "at most N prompts of each task and language", int)
    text = "where suites find their files (default: $PACELINE_DATA, ../shared/data, the hub)"
    parser.argument("--data", "DIR", text, Path)


def names(given: str) -> list[str]:
    """Names with commas between them."""
    return [name for name in re.split(r"[,\s]+", given) if name]


def run(options: argparse.Namespace) -> int:
    if options.suite is None:
        return _list(options)
    from paceline_lab.bench.suites import as_lines, open_suite

    check_output(options.out)  # an existing file is never replaced
    workload = open_suite(
        options.suite, data=options.data, languages=options.langs, tasks=options.tasks, limit=options.limit
    )
    kept = None if options.out is None else _keep(options.out, as_lines(workload.prompts))
    _show(workload)
    if kept is not None:
        say(f"\n{kept}: --suite prompts:{options.out} reads it")
    if options.json:
        print_json(
            {
                "suite": workload.suite,
                "prompts": len(workload.prompts),
                "cells": workload.cells,
                "notes": workload.notes,
                "sources": workload.sources,
                "out": None if options.out is None else str(options.out),
            }
        )
    return 0


def _list(options: argparse.Namespace) -> int:
    from paceline_lab.bench.suites import SUITES, is_here

    for flag in ("langs", "tasks", "limit", "out"):
        if getattr(options, flag) is not None:
            raise InputError(f"--{flag} is of a suite: name one, as in 'paceline bench suite spec-bench --{flag} ...'")
    here = {name: is_here(name, options.data) for name in SUITES}
    rows = [(name, "" if here[name] else "data not here", what) for name, what in SUITES.items()]
    say(table(("", "", ""), rows, left=(0, 1, 2)))
    if options.json:
        print_json({"suites": [{"name": name, "is": what, "here": here[name]} for name, what in SUITES.items()]})
    return 0


def _show(workload: Workload) -> None:
    """Prompts per cell, tasks by languages."""
    cells = workload.cells
    languages = list(dict.fromkeys(language for counts in cells.values() for language in counts))
    rows = [
        (task, *(counts.get(language, "-") for language in languages), sum(counts.values()))
        for task, counts in cells.items()
    ]
    sums = [sum(counts.get(language, 0) for counts in cells.values()) for language in languages]
    say(table((workload.suite, *languages, "all"), [*rows, ("all", *sums, sum(sums))]))
    for note in workload.notes:
        say(f"\n{note}" if note == workload.notes[0] else note)
    if workload.sources:
        say("\nread, with the first digits of their SHA-256:")
        say(table(("", ""), workload.sources.items(), left=(0, 1)))


def _keep(path: Path, lines: str) -> str:
    """Write the prompts, all or none; what is there already stays. Says what was done."""
    if path.exists():
        if path.read_bytes() == lines.encode():
            return f"{path} holds these prompts already"
        raise InputError(f"{path} is there and holds something else; give another --out, or remove it")
    write_whole(path, lines)
    return f"{path} holds these prompts"
