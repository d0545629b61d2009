"""``--entries``: by which rule a dictionary's entries propose."""

from __future__ import annotations

import argparse

from paceline.cli.arguments import Parser
from paceline.dictionary.header import EntryRule

PROPOSED = (
    "what an entry proposes: with 'token' one token after the other, while each is likely enough; with 'paper', as in "
    "the DictSpec paper, the most probable ending of its n-grams, if that is likely enough as a whole"
)


def add_rule(parser: Parser, text: str, default: str | None) -> None:
    parser.add_argument("--entries", choices=tuple(EntryRule), metavar="RULE", help=text, type=rule, default=default)


def rule(given: str) -> str:
    if given.isdigit():
        raise argparse.ArgumentTypeError(f"it is token or paper; --size {given} says how many entries to keep")
    return given
