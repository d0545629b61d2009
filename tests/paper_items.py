"""Items of papers as their commands run them."""

import json
from importlib import import_module
from typing import Any

from papers.driver import Given, asked_for

STEADY: dict[str, Any] = {
    "peers": (),
    "degenerate": False,
    "stall": False,
    "noise": 0.01,
    "joules": False,
    "repeats": 1,
}
"""A made run of our methods alone, whose texts are all equal and whose speeds vary little."""


def asked(paper: str, *words: object) -> Given:
    """What a command asks for."""
    main = import_module(f"papers.{paper}.__main__")
    return asked_for(paper, main.__doc__, main.ITEMS, list(map(str, words)))


def shown(paper: str, *words: object) -> dict[str, Any]:
    """Run an item, show it, and give its data."""
    given = asked(paper, *words)
    report = given.made.make(given)
    report.show(given)
    found: dict[str, Any] = json.loads(report.as_json)
    return found
