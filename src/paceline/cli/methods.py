"""``paceline methods``: what can draft."""

from __future__ import annotations

import argparse
import inspect
from typing import Any

from paceline.cli.common import Subparsers, add_json, print_json


def add(commands: Subparsers) -> None:
    parser = commands.add_parser(
        "methods",
        help="list the methods",
        description="List the methods and their options.",
        allow_abbrev=False,
    )
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    rows = describe()
    if options.json:
        print_json({"methods": rows})
        return 0
    for row in rows:
        print(f"{row['name']:10} {row['summary']}")
        print(f"{'':10} needs: {row['needs']}; rules: {', '.join(row['rules'])}; from: {row['source']}")
        if row["options"]:
            print(f"{'':10} options: {', '.join(f'{k}={v}' for k, v in row['options'].items())}")
    print("\na,b   the first of a and b that proposes anything")
    print("a+b   both in one tree")
    return 0


def describe() -> list[dict[str, Any]]:
    """One entry per method, built in or installed."""
    from paceline.drafters import available

    return [_row(name, factory) for name, factory in sorted(available().items())]


def _row(name: str, factory: Any) -> dict[str, Any]:
    """A plug-in that cannot be imported says so in its own row and leaves the others alone."""
    from paceline.drafters.spec import PlugIn
    from paceline.targets.base import NOTHING
    from paceline.verify import Rule

    row = {"name": name, "needs": "", "rules": [str(rule) for rule in Rule], "source": "", "options": {}}
    try:
        method: Any = factory.load() if isinstance(factory, PlugIn) else factory
    except ValueError as error:
        return {**row, "summary": f"cannot be used: {error}"}
    needs = getattr(method, "needs", NOTHING)
    told = [getattr(method, "requires", ""), "" if needs == NOTHING else str(needs)]
    return {
        **row,
        "summary": getattr(method, "summary", "") or "a plug-in",
        "needs": "; ".join(filter(None, told)) or "nothing beyond the text",
        "source": getattr(method, "source", "") or "an installed package",
        "options": {
            key: parameter.default
            for key, parameter in inspect.signature(method).parameters.items()
            if parameter.default is not parameter.empty
        },
    }
