"""Everything that is to be known of a GPU, in minutes: one command, one file, tables at the end.

    python -m papers.device --minutes 8 --out runs/device.json

Parts run one after the other, most important first, each in a process of its own and for its share of the minutes that
are left. The same command goes on with the parts that have no result yet; `--again` runs all. Without a GPU, and with
`--small`, everything is tiny: that shows that the script works, and no speed.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import torch

from paceline_lab import terminable
from papers.common import Report, parser, script
from papers.device.parts import KINDS, SMALL, Sizes, parts_of
from papers.device.running import Record, here, run_all
from papers.device.tables import notes, tables

MINUTES = 8.0
INTERRUPTED = 130


def options() -> argparse.Namespace:
    asked = parser(__doc__)
    add = asked.add_argument
    add("--out", type=Path, required=True, metavar="FILE.json", help="where results are kept")
    add("--minutes", type=float, default=MINUTES, metavar="M", help="for all parts together (8)")
    add("--parts", nargs="+", choices=KINDS, default=KINDS, metavar="PART", help=f"only these: {', '.join(KINDS)}")
    add("--again", action="store_true", help="also run the parts that have a result")
    add("--device", metavar="DEVICE", help="where models run (cuda where there is a GPU, else cpu)")
    add("--small", action="store_true", help="tiny models, few rows and tokens (always on a CPU)")
    add("--shapes", nargs="+", metavar="MODEL", help="models of forwards (random:8b random:1b)")
    add("--model", "-m", metavar="MODEL", help="model of the check and of the first start (pocket)")
    add("--targets", nargs="+", metavar="MODEL", help="models of rounds, and the first for all parts after them")
    add("--draft", metavar="MODEL", help="draft model (pocket-draft)")
    add("--dtype", metavar="TYPE", help="type of forwards, rounds and all after them (bfloat16)")
    return asked.parse_args()


def sizes_of(given: argparse.Namespace, *, small: bool) -> Sizes:
    """The usual sizes, and what was asked for."""
    names = ("shapes", "model", "targets", "draft", "dtype")
    asked = {name: getattr(given, name) for name in names if getattr(given, name) is not None}
    return replace(SMALL if small else Sizes(), **asked)


def main() -> None:
    given = options()
    if not given.minutes > 0:
        raise ValueError(f"--minutes must be more than 0, not {given.minutes:g}")
    device = given.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise ValueError("torch finds no GPU here; --device cpu runs the smallest form")
    small = given.small or device == "cpu"
    parts = parts_of(sizes_of(given, small=small), device)
    parts = [part for part in parts if part.kind in given.parts]
    record = Record(given.out)
    try:
        with terminable():
            run_all(parts, record, 60 * given.minutes, again=given.again, about=here())
    except KeyboardInterrupt:
        print(f"\n{given.out} has what was finished; the same command goes on", file=sys.stderr)
        sys.exit(INTERRUPTED)
    title = f"One device: {device}{', smallest form' if small else ''}"
    data = {"parts": {part.name: record.parts[part.name] for part in parts if part.name in record.parts}}
    print()
    Report(title, tables(parts, record.parts), notes=notes(parts, record.parts), data=data).show(given)


if __name__ == "__main__":
    script(main)
