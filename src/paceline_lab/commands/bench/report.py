"""``paceline bench report``: runs as Markdown and as a page with pictures."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from pathlib import Path

from paceline.cli.arguments import Parser, Subparsers
from paceline.cli.output import print_json, progress, say
from paceline.errors import InputError, need
from paceline.files import claimed, naming, workplace

TEXTS = 50
LOOKED_AT = 4096
"""Bytes at the beginning of a file in which a report has its mark."""


def add(commands: Subparsers) -> None:
    parser: Parser = commands.add_parser(
        "report",
        run=run,
        help="runs as Markdown and as a page with pictures",
        description=(
            "Writes report.md and report.html, one page that needs nothing from elsewhere, and pages of coloured texts "
            "in texts/, into a folder. Several runs are compared first. Files of an earlier report are replaced, "
            "others are left alone."
        ),
    )
    parser.argument("runs", "RUN", "run directories; the first is the base", Path, nargs="+")
    parser.argument("--out", "DIR", "the folder to write into; it is made", Path, required=True)
    text = f"prompts that get a page of coloured texts, spread over the runs (default: {TEXTS})"
    parser.argument("--texts", "N", text, int, default=TEXTS)
    parser.add_json()


def run(options: argparse.Namespace) -> int:
    if options.texts < 0:
        raise InputError(f"--texts must be at least 0, not {options.texts}")
    for package in ("pandas", "matplotlib", "jinja2"):
        need(package, "a report", "bench")
    from paceline_lab.bench.report.whole import PAGE, files
    from paceline_lab.bench.run.directory import read
    from paceline_lab.bench.summary import Summary

    with progress("reading") as advance:
        summaries = []
        for number, path in enumerate(options.runs):
            advance(f"reading {path.name}", number, len(options.runs) + 1)
            summaries.append(Summary(read(path)))
        advance("drawing", len(options.runs), len(options.runs) + 1)
        written = write_report(options.out, files(summaries, texts=options.texts))
    say(f"wrote {options.out / PAGE} and {len(written) - 1} more files beside it")
    if options.json:
        runs = [summary.as_dict() for summary in summaries]
        print_json({"out": str(options.out), "files": written, "runs": runs})
    return 0


def write_report(folder: Path, files: Iterable[tuple[str, str]]) -> list[str]:
    """Write all files or none, and return their names. Files of an earlier report are replaced, and its pages of texts
    are removed where this one has none; files of others are never replaced."""
    from paceline_lab.bench.report.whole import TEXTS

    with claimed(folder), naming(folder), workplace(folder) as fresh:
        names = []
        for name, text in files:
            (fresh / name).parent.mkdir(exist_ok=True)
            (fresh / name).write_text(text, encoding="utf8", newline="\n")
            names.append(name)
        for place in (folder / name for name in names):
            if os.path.lexists(place) and not _is_ours(place):
                raise InputError(f"{place} is there and is no earlier report; move it away, or give another --out")
        (folder / TEXTS).mkdir(exist_ok=True)
        for name in names:
            (fresh / name).replace(folder / name)
        for old in (folder / TEXTS).glob("*.html"):
            if f"{TEXTS}/{old.name}" not in names and old.stem.isdecimal() and _is_ours(old):
                old.unlink()
    return names


def _is_ours(place: Path) -> bool:
    """Whether the beginning of a file says that a report wrote it."""
    from paceline_lab.bench.report.whole import MARK

    if place.is_symlink() or not place.is_file():
        return False
    with place.open("rb") as file:
        return MARK.encode() in file.read(LOOKED_AT)
