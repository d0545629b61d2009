"""``paceline dict info``: describe a dictionary."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cli.arguments import Parser, Subparsers
from paceline.cli.output import print_json, say
from paceline.files.visible import one_line

if TYPE_CHECKING:
    from paceline.dictionary.header import DictionaryHeader


def add(actions: Subparsers) -> None:
    parser: Parser = actions.add_parser(
        "info",
        run=run,
        help="describe a dictionary, and check that it is whole",
        description="Reads a whole dictionary and prints its contents.",
    )
    parser.argument("file", "FILE", "a file that 'paceline dict build' wrote")
    parser.add_json()


def run(options: argparse.Namespace) -> int:
    """Describe a file, read to its last entry."""
    from paceline.dictionary.file import read

    header, entries = read(options.file)
    facts = facts_of(Path(options.file), header)
    by_length = (entries.prefixes >= 0).sum(axis=1)
    proposed = (entries.texts >= 0).sum(axis=1)[entries.completions]
    facts["entries_by_prefix_length"] = {str(n): int((by_length == n).sum()) for n in sorted(set(by_length.tolist()))}
    facts["mean_completion"] = round(float(proposed.mean()), 3) if len(proposed) else 0.0
    (print_json if options.json else print_facts)(facts)
    return 0


def facts_of(path: Path, header: DictionaryHeader) -> dict[str, Any]:
    """A dictionary's header, and the size of its file."""
    return {
        "file": str(path),
        "bytes": path.stat().st_size,
        "language": header.language,
        "entries": header.entries,
        "completions": header.completions,
        "order": header.order,
        "rule": header.rule,
        "min_probability": header.min_probability,
        "longest_prefix": header.longest_prefix,
        "longest_completion": header.longest_completion,
        "tokenizer": header.tokenizer,
        "tokenizer_name": header.tokenizer_name,
        "highest_token": header.highest,
        "licence": header.licence,
        "corpus": dict(header.corpus),
    }


def print_facts(facts: dict[str, Any]) -> None:
    """Print a line for each item, made safe for a terminal."""
    for name, value in facts.items():
        say(f"{name.replace('_', ' '):25} {one_line(_in_words(value))}")


def _in_words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name.replace('_', ' ')} {_in_words(inner)}" for name, inner in value.items())
    return "not said" if value == "" else str(value)
