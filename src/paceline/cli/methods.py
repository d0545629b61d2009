"""``paceline methods``: what can draft."""

from __future__ import annotations

import argparse
import inspect
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from paceline.cli.arguments import Parser, Subparsers
from paceline.cli.output import TEXT_COLUMNS, print_json, say
from paceline.errors import InputError

if TYPE_CHECKING:
    from paceline.drafters.counters import Counter
    from paceline.targets.base import Want


GROUPS = {
    "default": "the default",
    "text": "need nothing beyond the text",
    "rows": "need the model's best tokens after every row, which its forwards give anyway",
    "file": "need a file: one that comes with paceline, or your own",
    "draft model": "need a draft model",
    "installed": "from installed packages",
}
"""The main requirement of methods -> their heading."""
NAME = 12
"""Columns of a name."""
JOINED = "a,b is the first of a and b that proposes anything, and a+b both in one tree."
MORE = "'paceline methods NAME' describes one; docs/methods.md says how each works and when to take which."


def add(commands: Subparsers) -> None:
    text = "Lists the methods by their requirements, or describes one: its options, presets, rules and source."
    parser: Parser = commands.add_parser("methods", run=run, help="list the methods", description=text)
    parser.argument("name", "NAME", "print all about this method; of a+b, about each part", nargs="?")
    parser.add_json()


def run(options: argparse.Namespace) -> int:
    rows = describe() if options.name is None else _named(options.name)
    if options.json:
        print_json({"methods": rows})
        return 0
    width = (
        min(shutil.get_terminal_size((TEXT_COLUMNS, 24)).columns, TEXT_COLUMNS) if sys.stdout.isatty() else TEXT_COLUMNS
    )
    if options.name is None:
        say("\n".join(_table(rows, width)))
    else:
        cards = zip(rows, _counters(options.name), strict=True)
        say("\n\n".join("\n".join(_card(row, counters, width)) for row, counters in cards))
    return 0


def _named(spec: str) -> list[dict[str, Any]]:
    """The rows of the methods in a spec. One in a file that cannot be loaded is an `InputError`."""
    from paceline.drafters.plugin import InFile
    from paceline.drafters.spec import methods_in

    rows = []
    for name, factory in methods_in(spec).items():
        if not isinstance(factory, InFile):
            rows.append(_row(name, factory))
            continue
        made = factory.load()
        rows.append(_row(name, made) | {"source": getattr(made, "source", "") or "a file"})
    return rows


def _table(rows: Sequence[Mapping[str, Any]], width: int) -> Iterator[str]:
    for group, heading in GROUPS.items():
        if here := [row for row in rows if row["group"] == group]:
            yield heading
            for row in here:
                yield from _entry(row["name"], row["summary"], width)
            yield ""
    for line in (JOINED, MORE):
        yield from textwrap.wrap(line, width)


def _counters(spec: str) -> Iterator[str]:
    """The counters of each method in a spec, with their help."""
    from paceline.drafters.plugin import PlugIn
    from paceline.drafters.spec import methods_in

    for factory in methods_in(spec).values():
        counters: Sequence[Counter] = ()
        with suppress(InputError):  # its row says so
            counters = getattr(factory.load() if isinstance(factory, PlugIn) else factory, "counters", ())
        yield "; ".join(f"{one.name}, {one.help}" for one in counters)


def _card(row: Mapping[str, Any], counters: str, width: int) -> Iterator[str]:
    """Everything about one method, a heading per line."""
    yield from textwrap.wrap(f"{row['name']}: {row['summary']}", width)
    entries = {
        "needs": row["needs"],
        "rules": ", ".join(row["rules"]),
        "from": row["source"],
        "required": ", ".join(row["required"]),
        "options": _pairs(row["options"]),
        **{f":{preset}": _pairs(given) for preset, given in row["presets"].items()},
        "counts": counters,
        "not for": row["unfit"],
    }
    for heading, text in entries.items():
        if text:
            yield from _entry(heading, text, width)


def _entry(name: str, text: str, width: int) -> list[str]:
    """A name with its description beside it; a long name is on a separate line."""
    beside = f"  {name:{NAME}}" if len(name) < NAME else f"  {name}\n  {'':{NAME}}"
    first, *more = textwrap.wrap(text, max(width - NAME - 2, 20), break_long_words=False, break_on_hyphens=False)
    return [f"{beside}{first}", *(f"  {'':{NAME}}{line}" for line in more)]


def describe() -> list[dict[str, Any]]:
    """One entry per method, built in or installed."""
    from paceline.drafters import available

    return [_row(name, factory) for name, factory in sorted(available().items())]


def _row(name: str, factory: Any) -> dict[str, Any]:
    """A plug-in that cannot be imported says so in its own row and leaves the others alone."""
    from paceline.drafters.plugin import PlugIn
    from paceline.drafters.spec import BUILT_IN, MODEL
    from paceline.targets.base import NOTHING
    from paceline.verify import Rule

    rules, words = [str(rule) for rule in Rule], dict.fromkeys(("needs", "source", "unfit"), "")
    row = {"name": name, "group": "installed", **words, "rules": rules, "options": {}, "required": [], "presets": {}}
    try:
        method: Any = factory.load() if isinstance(factory, PlugIn) else factory
    except ValueError as error:
        return {**row, "summary": f"cannot be used: {error}"}
    parameters = inspect.signature(method).parameters
    options = {key: one.default for key, one in parameters.items() if one.default is not one.empty}
    named = {key for key, one in parameters.items() if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)}
    required = sorted(named - options.keys())
    made = method
    if name in BUILT_IN and not required:
        try:
            made = method()
        except InputError:  # it has a default model for some of its options only
            required = [MODEL]
    needs, of_prompt = (getattr(made, wish, NOTHING) for wish in ("needs", "prompt_needs"))
    rows = "every row of the prompt" if of_prompt != NOTHING else ""
    needed = list(filter(None, (getattr(method, "requires", ""), in_words(needs), rows)))
    return {
        **row,
        "group": _group(name, required, needed) if name in BUILT_IN else "installed",
        "summary": getattr(method, "summary", "") or "a plug-in",
        "needs": "; ".join(needed) or "nothing beyond the text",
        "source": getattr(method, "source", "") or "an installed package",
        "unfit": getattr(method, "unfit", ""),
        "options": options,
        "required": required,
        "presets": {preset: dict(given) for preset, given in getattr(method, "presets", {}).items()},
    }


def _group(name: str, required: Sequence[str], needed: Sequence[str]) -> str:
    """The main requirement of a built-in method."""
    from paceline.api.settings import Settings
    from paceline.drafters.spec import BUILT_IN, MODEL

    if name == Settings().spec:
        return "default"
    if MODEL in required:
        return "draft model"
    if getattr(BUILT_IN[name], "requires", ""):
        return "file"
    return "rows" if needed else "text"


def _pairs(options: Mapping[str, Any]) -> str:
    """As a spec has them."""
    said = {key: str(value).lower() if isinstance(value, bool) else value for key, value in options.items()}
    return ", ".join(f"{key}={value}" for key, value in said.items())


def in_words(want: Want) -> str:
    """The model outputs that a method reads besides tokens."""
    parts = [
        f"the {want.top} best tokens after every scored row" if want.top else "",
        f"hidden states of layers {', '.join(map(str, sorted(want.hidden)))}" if want.hidden else "",
        f"an early exit at layer {want.early_exit}" if want.early_exit is not None else "",
    ]
    return ", ".join(filter(None, parts))
