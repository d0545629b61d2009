"""Options that name texts, and what is said about the texts when they were read."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from paceline.cli.arguments import Parser
from paceline.cli.options import utf8
from paceline.cli.output import say

if TYPE_CHECKING:
    from paceline_make.texts.fields import Passage

CHATS = "; plain text is divided at empty lines, a record may have a chat (messages) in place of a text"
KINDS = "plain text, .gz, .zst, .jsonl, .parquet, a folder of such files, a saved dataset, or hf:NAME[:SPLIT]"


def add_texts(parser: Parser, flag: str, note: str = "", **more: Any) -> None:
    """Which texts, and the field of records that holds them."""
    parser.several(flag, "FILE", KINDS + note, utf8, **more)
    parser.argument("--field", "NAME", "where records have their text (default: text)", default="text")


def passages_of(options: argparse.Namespace) -> list[Passage]:
    """All of the texts that ``--data`` names, chats among them."""
    from paceline_make.texts.corpus import open_corpus

    corpus = open_corpus(options.data, field=options.field, chats=True)
    passages = list(corpus.passages())
    say_notes(corpus.notes)
    return passages


def say_notes(notes: Sequence[str]) -> None:
    for note in notes:
        say(f"note: {note}")
