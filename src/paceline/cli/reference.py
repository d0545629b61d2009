"""The command-line reference in ``docs/cli.md``: written from the parsers, so that it cannot drift.

python -m paceline.cli.reference > docs/cli.md
"""

from __future__ import annotations

import argparse
import os


def reference() -> str:
    """The whole file."""
    os.environ["COLUMNS"] = "110"
    from paceline.cli import parser

    top = parser()
    parts = ["# Command line\n\nWritten by `python -m paceline.cli.reference > docs/cli.md`.\n"]
    parts.append(_block("paceline", top))
    for action in top._actions:
        if isinstance(action, argparse._SubParsersAction):
            parts += [_block(f"paceline {name}", sub) for name, sub in action.choices.items()]
    return "\n".join(parts)


def _block(name: str, parser: argparse.ArgumentParser) -> str:
    return f"## {name}\n\n```\n{parser.format_help().rstrip()}\n```\n"


if __name__ == "__main__":
    print(reference(), end="")
