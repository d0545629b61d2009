"""``paceline completion``: what a shell needs to complete commands, flags and their values."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from paceline.cli.arguments import Parser, Subparsers
from paceline.targets.pocket.names import POCKET_NAMES

SHELLS = {
    "bash": 'eval "$(paceline completion bash)"',
    "zsh": 'eval "$(paceline completion zsh)"',
    "fish": "paceline completion fish | source",
}
"""A shell -> the line for its start-up file."""


def add(commands: Subparsers) -> None:
    lines = "; ".join(f"{shell}: {line}" for shell, line in SHELLS.items())
    parser: Parser = commands.add_parser(
        "completion",
        run=run,
        help="complete commands, flags, methods, models and files in your shell",
        description=f"Prints a script with which a shell completes paceline. The line for its start-up file: {lines}",
    )
    parser.argument("shell", "SHELL", "bash, zsh or fish", choices=tuple(SHELLS))


def run(options: argparse.Namespace) -> int:
    from argcomplete.shell_integration import shellcode

    sys.stdout.write(shellcode(["paceline"], shell=options.shell))  # a program, which is not to be made visible
    return 0


def complete(parser: Parser) -> None:
    """Answer a shell that asks, and end the process; do nothing where no shell asks."""
    if "_ARGCOMPLETE" not in os.environ:
        return
    from argcomplete import autocomplete
    from argcomplete.completers import FilesCompleter

    files = FilesCompleter()
    for each in _all(parser):
        for action in each._actions:
            setattr(action, "completer", _completer(action, files))  # noqa: B010  (argcomplete reads it)
    autocomplete(parser)


def _all(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    from paceline.cli.reference import commands

    yield from (command for _, command in commands("paceline", parser))


def _completer(action: argparse.Action, files: Any) -> Callable[..., Any] | None:
    """How the values of an option are completed: by their placeholder in the help."""
    if action.choices is not None:
        return None
    match action.metavar:
        case "SPEC" | "METHOD":
            return _methods
        case "NAME" if action.dest == "name":
            return _methods
        case "MODEL" | "T" if action.type is not float:
            return lambda prefix, **_: [*POCKET_NAMES, *files(prefix)]
        case "RULE":
            return lambda **_: ["coupled", "rejection"]
        case "P" if action.type is not float:
            return lambda **_: ["adaptive", "calibrated", "fixed"]
    return files if action.type is Path or action.metavar in ("FILE", "DIR", "RUN") else lambda **_: []


def _methods(**_: Any) -> list[str]:
    from paceline.drafters import available

    return sorted(available())
