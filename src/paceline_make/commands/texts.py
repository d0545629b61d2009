"""Options that name texts, and what is said about the texts when they were read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.cli.arguments import Parser
from paceline.cli.options import utf8
from paceline.cli.output import say

KINDS = "plain text, .gz, .zst, .jsonl, .parquet, a folder of such files, a saved dataset, or hf:NAME[:SPLIT]"


def add_texts(parser: Parser, flag: str, note: str = "", **more: Any) -> None:
    """Which texts, and the field of records that holds them."""
    parser.several(flag, "FILE", KINDS + note, utf8, **more)
    parser.argument("--field", "NAME", "where records have their text (default: text)", default="text")


def say_notes(notes: Sequence[str]) -> None:
    for note in notes:
        say(f"note: {note}")
