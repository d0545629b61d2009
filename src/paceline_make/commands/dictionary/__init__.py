"""``paceline dict``: what is done with dictionaries, one file each."""

from __future__ import annotations

from paceline.cli.arguments import Parser, Subparsers
from paceline_make.commands.dictionary import build, emulate, info, lookup

ACTIONS = (build, info, lookup, emulate)


def add(commands: Subparsers) -> None:
    parser: Parser = commands.add_parser(
        "dict",
        help="build and study dictionaries that complete the words of a language",
        description="Builds and inspects dictionaries: files that complete words of one language for one tokenizer.",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", help="what to do")
    for action in ACTIONS:
        action.add(actions)
