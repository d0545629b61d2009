"""``paceline bench report``: runs as Markdown and as a page with pictures."""

from __future__ import annotations

import argparse
from pathlib import Path

from paceline.cli.common import Subparsers, add_json, print_json, progress
from paceline.cli.streams import say
from paceline.errors import InputError, need

TEXTS = 50


def add(commands: Subparsers) -> None:
    parser = commands.add_parser(
        "report",
        help="runs as Markdown and as a page with pictures",
        description=(
            "Writes report.md and report.html, one page that needs nothing from elsewhere, and pages of coloured texts "
            "in texts/, into a folder. Several runs are compared first. Files of an earlier report are replaced, "
            "others are left alone."
        ),
        allow_abbrev=False,
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run directories; the first is the base")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder to write into; it is made")
    parser.add_argument(
        "--texts",
        type=int,
        default=TEXTS,
        metavar="N",
        help=f"prompts that get a page of coloured texts, spread over the runs (default: {TEXTS})",
    )
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    for package in ("pandas", "matplotlib", "jinja2"):
        need(package, "a report", "bench")
    from paceline.bench.report.whole import MARK, PAGE, TEXTS, files
    from paceline.bench.run.directory import read
    from paceline.bench.summary import Summary
    from paceline.cli.folders import write_folder

    if options.texts < 0:
        raise InputError(f"--texts must be at least 0, not {options.texts}")
    with progress("reading") as advance:
        summaries = []
        for number, path in enumerate(options.runs):
            advance(f"reading {path.name}", number, len(options.runs) + 1)
            summaries.append(Summary(read(path)))
        advance("drawing", len(options.runs), len(options.runs) + 1)
        written = write_folder(options.out, files(summaries, texts=options.texts), mark=MARK, pages=TEXTS)
    say(f"wrote {options.out / PAGE} and {len(written) - 1} more files beside it")
    if options.json:
        print_json(
            {
                "out": str(options.out),
                "files": written,
                "runs": [summary.as_dict() for summary in summaries],
            }
        )
    return 0
