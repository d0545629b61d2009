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

    parts = ["# Command line\n\nWritten by `python -m paceline.cli.reference > docs/cli.md`.\n"]
    parts += [f"## {name}\n\n```\n{one.format_help().rstrip()}\n```\n" for name, one in commands("paceline", parser())]
    return "\n".join(parts)


def commands(name: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """A command, and the commands below it, by their whole names."""
    yield name, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, below in action.choices.items():
                yield from commands(f"{name} {word}", below)


if __name__ == "__main__":
    say(reference(), end="")
