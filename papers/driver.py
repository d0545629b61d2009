"""How the items of a paper are run: one table of the options that any of them has, and one command for each paper.

A paper's ``__main__`` is a list of items. An item names its options, with other defaults where they differ; the
docstring of its function is its help.
"""

from __future__ import annotations

import argparse
import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline_lab import write_whole
from papers.report import Report

Given = argparse.Namespace


def named(given: str) -> tuple[str, Path]:
    """A name and a file or folder."""
    name, equals, place = (part.strip() for part in given.partition("="))
    if not (name and equals and place):
        raise argparse.ArgumentTypeError(f"write a name and its place, as in uk=news.txt; got {given!r}")
    return name, Path(place)


def by_name(given: Sequence[tuple[str, Path]]) -> dict[str, list[Path]]:
    """The places of each name."""
    return {one: [place for name, place in given if name == one] for one, _ in given}


@dataclass(frozen=True)
class Option:
    """An option. It takes several values where its default is a tuple, and none where that is False."""

    metavar: str
    help: str
    kind: Callable[[str], Any] = str
    default: Any = None
    short: str = ""
    choices: Sequence[str] | None = None
    least: float | None = None
    """The smallest number that it takes."""
    above: float | None = None
    """The largest number that it does not take."""
    required: bool = False
    many: str = "+"
    """How many values it takes where it takes several, as argparse says it."""

    def add(self, name: str, found: argparse.ArgumentParser) -> None:
        flags = [*filter(None, (f"--{name.replace('_', '-')}", self.short))] if name.islower() else [name.lower()]
        if self.default is False:
            found.add_argument(*flags, action="store_true", help=self.help)
            return
        several = isinstance(self.default, tuple)
        shown = " ".join(map(str, self.default)) if several else "" if self.default is None else f"{self.default}"
        how: dict[str, Any] = {"help": f"{self.help} ({shown})" if shown else self.help, "metavar": self.metavar}
        how |= {"type": self.kind, "default": self.default, "choices": self.choices}
        how |= {"nargs": self.many} if several else {}
        how |= {"required": True} if self.required else {}
        found.add_argument(*flags, **how)

    def check(self, name: str, value: Any) -> None:
        """ValueError where a value is a number that it does not take."""
        for one in value if isinstance(value, list | tuple) else [value]:
            if self.least is not None and one is not None and not one >= self.least:
                raise ValueError(f"--{name.replace('_', '-')} must be at least {self.least:g}, not {one:g}")
            if self.above is not None and one is not None and not (one > self.above and math.isfinite(one)):
                raise ValueError(f"--{name.replace('_', '-')} must be more than {self.above:g}, not {one:g}")


def count(metavar: str, said: str, default: Any = None) -> Option:
    return Option(metavar, said, int, default, least=1)


OPTIONS: Mapping[str, Option] = {
    "model": Option("MODEL", "the model", short="-m"),
    "draft_model": Option("MODEL", "a small model that drafts", short="-md"),
    "trust_remote_code": Option("", "run the Python code that the model brings along", default=False),
    "dtype": Option("TYPE", "float32, bfloat16 or float16 (bfloat16 with ballast, or the model's own)"),
    "device": Option("DEVICE", "where to run it (default: $PACELINE_DEVICE, or auto)"),
    "draft_device": Option("PLACE", "where mirror drafts: 2-3 or cuda:1 (the last core)"),
    "threads": count("N", "threads of torch"),
    "suite": Option("SUITE", "as in 'paceline bench run' (MT-Bench of spec-bench, or else stories)"),
    "tasks": Option("A,B", "only these tasks of the suite", default=()),
    "langs": Option("A,B", "only these languages", default=()),
    "limit": count("N", "prompts of each task and language", 2),
    "prompts": Option("NAME=FILE", "your prompts of a data set", named, ()),
    "data": Option("DIR", "the data folder (default: $PACELINE_DATA)", Path),
    "max_new_tokens": count("N", "tokens per text", 64),
    "temperature": Option("T", "0 is greedy (0.8 for bundled models, else 0)", float),
    "seed": Option("S", "same seed, same texts", int, 0),
    "repeat": count("N", "write everything N times", 1),
    "batch": count("N", "texts at a time"),
    "method": Option("SPEC", "the method that is looked at"),
    "rivals": Option("SPEC", "other methods, with heads by folder: eagle:paper,head=FOLDER", default=(), many="*"),
    "out": Option("DIR", "where runs are kept (runs/papers/PAPER-ITEM--MODEL)", Path),
    "runs": Option("[NAME=]DIR", "measure nothing, and join what was kept", default=()),
    "quick": Option("", "less of everything, in under a minute", default=False),
    "calibration_runs": count("M", "sizes that the paper's calibration runs"),
    "calibration_seconds": Option("S", "how long our calibration may take", float, 20.0, above=0),
    "nodes": count("N", "the draft size of the method and of unispec (calibrated)"),
    "head": Option("FOLDER", "a head of redrafter for the model (the one that comes with paceline)", Path),
    "width": count("W", "beams of a draft"),
    "length": count("L", "tokens of a beam"),
    "gamma": count("N", "tokens of a draft"),
    "k": count("K", "tokens of a draft, the draft model's"),
    "draft": Option("NAME", "the draft model"),
    "exit": Option("SHARE", "depth of the early exit", float, above=0),
    "tokenizers": Option("T", "folders, models, or names in DIR/tokenizers of the data folder", default=()),
    "texts": Option("NAME=FILE", "texts by language, as in uk=news.txt", named, ()),
}
"""Options that mean the same in every item that has them."""
SHOWN = {
    "json": Option("", "one JSON object as the last line", default=False),
    "note": Option("FILE", "add the result, with its date, to a Markdown file", Path),
    "svg": Option("FILE", "draw it, where there is something to draw", Path),
}
"""Options of every item."""
LISTS = "tasks", "langs"
"""Options that take names with commas or spaces between them."""


def asked(*names: str, **defaults: Any) -> dict[str, Option]:
    """Options of the table by their names, some with other defaults or as options that the table does not have."""
    found = {name: OPTIONS[name] for name in names}
    for name, value in defaults.items():
        found[name] = value if isinstance(value, Option) else replace(OPTIONS[name], default=value)
    return found


@dataclass(frozen=True)
class Item:
    """A table or a figure, or several that one measurement makes."""

    name: str
    make: Callable[[Given], Report]
    options: Mapping[str, Option]


def parser(paper: str, said: str | None, items: Sequence[Item] | Item) -> argparse.ArgumentParser:
    """A command for each of these items, or one for all where there is only one."""
    raw = argparse.RawDescriptionHelpFormatter
    found = argparse.ArgumentParser(f"python -m papers.{paper}", description=said, formatter_class=raw)
    if isinstance(items, Item):
        return _filled(found, paper, items)
    places = found.add_subparsers(dest="item", metavar="ITEM", required=True)
    for item in items:
        page = inspect.getdoc(item.make) or ""
        help_line = page.partition("\n\n")[0].replace("\n", " ").replace("%", "%%")
        _filled(places.add_parser(item.name, help=help_line, description=page, formatter_class=raw), paper, item)
    return found


def _filled(found: argparse.ArgumentParser, paper: str, item: Item) -> argparse.ArgumentParser:
    for name, option in {**item.options, **SHOWN}.items():
        option.add(name, found)
    found.set_defaults(paper=paper, made=item)
    return found


def asked_for(paper: str, said: str | None, items: Sequence[Item] | Item, words: Sequence[str] | None = None) -> Given:
    """The values of a command line. ValueError if a number is outside its option's bounds."""
    given = parser(paper, said, items).parse_args(words)
    for name in LISTS:
        if hasattr(given, name):
            parts = (part.strip() for one in getattr(given, name) for part in one.split(","))
            setattr(given, name, [*filter(None, parts)] or None)
    for name, option in given.made.options.items():
        option.check(name, getattr(given, name.lower()))
    return given


def run(paper: str, said: str | None, items: Sequence[Item] | Item) -> None:
    """Run an item, as the command line says, and show it."""

    def main() -> None:
        given = asked_for(paper, said, items)
        given.made.make(given).show(given)

    script(main)


def script(main: Callable[[], None]) -> None:
    """A user's mistake ends a program with one sentence."""
    try:
        main()
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")


# --- what is written meanwhile


def write(file: Path, text: str) -> None:
    """The whole file or none, in a folder that is made where there is none."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, text)


def progress(doing: str, done: int = 0, total: int = 0) -> None:
    """Show the current work on the last line of a terminal; an empty text clears the line."""
    if sys.stderr.isatty():
        count = f" ({done} of {total})" if total else ""
        print(f"\r\033[K{doing}{count}", end="\r", file=sys.stderr, flush=True)
