"""``paceline methods``: what can draft."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from paceline.cli.arguments import Subparsers
from paceline.cli.output import print_json, say

if TYPE_CHECKING:
    from paceline.targets.base import Want


def add(commands: Subparsers) -> None:
    text = "List the methods and their options."
    commands.add_parser("methods", run=run, help="list the methods", description=text).add_json()


def run(options: argparse.Namespace) -> int:
    rows = describe()
    if options.json:
        print_json({"methods": rows})
        return 0
    for row in rows:
        say(f"{row['name']:10} {row['summary']}")
        say(f"{'':10} needs: {row['needs']}; rules: {', '.join(row['rules'])}; from: {row['source']}")
        if row["options"]:
            say(f"{'':10} options: {_pairs(row['options'])}")
        for preset, given in row["presets"].items():
            say(f"{'':10} {row['name']}:{preset} is {_pairs(given)}")
        if row["unfit"]:
            say(f"{'':10} unfit where: {row['unfit']}")
    say("\na,b   the first of a and b that proposes anything")
    say("a+b   both in one tree")
    say("How each works, and when to take which: docs/methods.md")
    return 0


def describe() -> list[dict[str, Any]]:
    """One entry per method, built in or installed."""
    from paceline.drafters import available

    return [_row(name, factory) for name, factory in sorted(available().items())]


def _row(name: str, factory: Any) -> dict[str, Any]:
    """A plug-in that cannot be imported says so in its own row and leaves the others alone."""
    from paceline.drafters.plugin import PlugIn
    from paceline.drafters.spec import BUILT_IN
    from paceline.targets.base import NOTHING
    from paceline.verify import Rule

    rules, words = [str(rule) for rule in Rule], dict.fromkeys(("needs", "source", "unfit"), "")
    row = {"name": name, **words, "rules": rules, "options": {}, "required": [], "presets": {}}
    try:
        method: Any = factory.load() if isinstance(factory, PlugIn) else factory
    except ValueError as error:
        return {**row, "summary": f"cannot be used: {error}"}
    parameters = inspect.signature(method).parameters
    options = {key: one.default for key, one in parameters.items() if one.default is not one.empty}
    named = {key for key, one in parameters.items() if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)}
    made = method() if name in BUILT_IN and len(options) == len(parameters) else method
    needs, of_prompt = (getattr(made, wish, NOTHING) for wish in ("needs", "prompt_needs"))
    rows = "every row of the prompt" if of_prompt != NOTHING else ""
    needed = filter(None, (getattr(method, "requires", ""), in_words(needs), rows))
    return {
        **row,
        "summary": getattr(method, "summary", "") or "a plug-in",
        "needs": "; ".join(needed) or "nothing beyond the text",
        "source": getattr(method, "source", "") or "an installed package",
        "unfit": getattr(method, "unfit", ""),
        "options": options,
        "required": sorted(named - options.keys()),
        "presets": {preset: dict(given) for preset, given in getattr(method, "presets", {}).items()},
    }


def _pairs(options: Mapping[str, Any]) -> str:
    """As a spec has them."""
    said = {key: str(value).lower() if isinstance(value, bool) else value for key, value in options.items()}
    return ", ".join(f"{key}={value}" for key, value in said.items())


def in_words(want: Want) -> str:
    """What a method reads of the model besides its tokens."""
    parts = [
        f"the {want.top} best tokens after every scored row" if want.top else "",
        f"hidden states of layers {', '.join(map(str, sorted(want.hidden)))}" if want.hidden else "",
        f"an early exit at layer {want.early_exit}" if want.early_exit is not None else "",
    ]
    return ", ".join(filter(None, parts))
