"""Everything that Paceline needs to know of a GPU, in minutes: one command, one file, tables at the end.

    python -m papers.device --minutes 8 --out runs/device.json

Parts run one after the other, most important first, each in a separate process with a limit; the minutes may not be
enough for the last ones. The same command goes on with the parts that have no result yet; `--again` runs all. Without
a GPU, and with `--small`, everything is tiny: that shows that the script works, and no speed.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import torch

from paceline_lab import terminable
from papers.device.parts import KINDS, SMALL, Sizes, parts_of
from papers.device.running import Record, here, run_all
from papers.device.tables import notes, tables
from papers.driver import OPTIONS, Given, Item, Option, asked, run
from papers.report import Report

INTERRUPTED = 130
SIZED = {
    "shapes": Option("MODEL", "models of forwards: random:8b random:1b", default=()),
    "model": replace(OPTIONS["model"], help="model of the check and of the first start: pocket"),
    "targets": Option("MODEL", "models of rounds, and the first for all parts after them", default=()),
    "draft": OPTIONS["draft"],
    "dtype": Option("TYPE", "type of forwards, rounds and all after them: bfloat16"),
}
"""Options that change the usual sizes."""
OPTIONS_OF_PARTS = {
    "out": Option("FILE.json", "where results are kept", OPTIONS["out"].kind, required=True),
    "minutes": Option("M", "for all parts together", float, 8.0, above=0),
    "parts": Option("PART", f"only these: {', '.join(KINDS)}", default=KINDS, choices=KINDS),
    "again": Option("", "also run the parts that have a result", default=False),
    "device": Option("DEVICE", "where models run (cuda where there is a GPU, else cpu)"),
    "small": Option("", "tiny models, few rows and tokens (always on a CPU)", default=False),
}


def sizes_of(given: Given, *, small: bool) -> Sizes:
    """The usual sizes, and what was asked for."""
    asked = {name: value for name in SIZED if (value := getattr(given, name))}
    return replace(SMALL if small else Sizes(), **asked)


def device(given: Given) -> Report:
    """All parts on one device, and what they found."""
    name = given.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if torch.device(name).type == "cuda" and not torch.cuda.is_available():
        raise ValueError("torch finds no GPU here; --device cpu runs the smallest form")
    small = given.small or name == "cpu"
    parts = [part for part in parts_of(sizes_of(given, small=small), name) if part.kind in given.parts]
    record = Record(given.out)
    try:
        with terminable():
            run_all(parts, record, 60 * given.minutes, again=given.again, about=here(name))
    except KeyboardInterrupt:
        print(f"\n{given.out} has what was finished; the same command goes on", file=sys.stderr)
        sys.exit(INTERRUPTED)
    title = f"One device: {name}{', smallest form' if small else ''}"
    data = {"parts": {part.name: record.parts[part.name] for part in parts if part.name in record.parts}}
    print()
    return Report(title, tables(parts, record.parts), notes=notes(parts, record.parts), data=data)


ITEM = Item("device", device, asked(**OPTIONS_OF_PARTS | SIZED))

if __name__ == "__main__":
    run("device", __doc__, ITEM)
