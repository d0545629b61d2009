"""The command-line reference in ``docs/cli.md``: written from the parsers, so that it cannot drift.

python -m paceline.cli.reference > docs/cli.md
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator

from paceline.cli.output import say


def reference() -> str:
    """The whole file."""
    os.environ["COLUMNS"] = "110"
    from paceline.cli import parser

    top = parser()
    parts = ["# Command line\n\nWritten by `python -m paceline.cli.reference > docs/cli.md`.\n"]
    return "\n".join([*parts, *_blocks("paceline", top)])


def _blocks(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    """A command, and the commands below it."""
    yield _block(name, parser)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below, sub in action.choices.items():
                yield from _blocks(f"{name} {below}", sub)


def _block(name: str, parser: argparse.ArgumentParser) -> str:
    return f"## {name}\n\n```\n{parser.format_help().rstrip()}\n```\n"


if __name__ == "__main__":
    say(reference(), end="")
