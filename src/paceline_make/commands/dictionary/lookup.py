"""``paceline dict lookup``: show what a dictionary proposes after a text."""

from __future__ import annotations

import argparse
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cli.arguments import Parser, Subparsers
from paceline.cli.options import DEFAULT_MODEL, utf8
from paceline.cli.output import print_json, say
from paceline.errors import InputError
from paceline_make.commands.dictionary.rules import add_rule
from paceline_make.commands.dictionary.tokenizer import opened, tokenizer_of
from paceline_make.commands.dictionary.trace import check_trace, show_trace

if TYPE_CHECKING:
    from paceline.dictionary.index import Dictionary, Match
    from paceline.vocabulary import Vocabulary


def add(actions: Subparsers) -> None:
    parser: Parser = actions.add_parser(
        "lookup",
        run=run,
        help="show what a dictionary proposes after a text",
        description=(
            "Encodes a text and shows every entry that it ends with, the longest first: the tokens that match, the "
            "tokens that are proposed behind them, and the probability of each of these."
        ),
    )
    parser.argument("text", "TEXT", "a text that ends where a word should be completed", utf8)
    text = "dictionaries (default: those that come with the package for this tokenizer)"
    parser.several("--dict", "FILE", text, dest="files")
    parser.argument(
        "--tokenizer --model -m",
        "T",
        "the tokenizer: a folder or name of transformers, or a bundled model (default: the one that the "
        f"first dictionary was built for, where it is bundled or in the data folder, or {DEFAULT_MODEL})",
    )
    parser.add_trust()
    _add_trace(parser)
    parser.add_json()


def _add_trace(parser: Parser) -> None:
    text = (
        "show instead how the entry is made of counted n-grams, which 'dict build --keep-counts' wrote: what may "
        "follow, how probable it is, what is discarded and why; with --dict by that dictionary's settings"
    )
    parser.argument("--trace", "COUNTS", text, Path)
    add_rule(parser, "of a trace without --dict: the rule, token or paper (default: token)", None)
    parser.argument("--min-prob", "P", "of a trace without --dict: the least probability (default: 0.8)", float)
    parser.argument("--size", "N", "of a trace without --dict: entries that are kept (default: 200000)", int)
    parser.argument("--order", "N", "of a trace without --dict: words of an n-gram (default: 3)", int)


def run(options: argparse.Namespace) -> int:
    """Look the end of a text up in every dictionary."""
    check_trace(options)
    from paceline.dictionary.shipped import shipped
    from paceline.targets.replay import open_vocabulary

    named = _tokenizer(options)
    vocabulary = open_vocabulary(named)
    if options.trace is not None:
        show_trace(options, vocabulary, vocabulary.encode(options.text, add_special=False).tolist())
        return 0
    files = options.files or shipped(vocabulary.fingerprint)
    if not files:
        raise InputError(
            f"no dictionary for the tokenizer of {named} comes with paceline; "
            "'paceline dict build' makes one, and --dict FILE names it"
        )
    ids = vocabulary.encode(options.text, add_special=False).tolist()
    found = []
    for path in files:
        dictionary = opened(path, vocabulary)
        found += [_as_dict(dictionary, match, ids, vocabulary) for match in dictionary.matches(ids)]
    if options.json:
        print_json({"tokens": [_text_of([token], vocabulary) for token in ids], "matches": found})
        return 0
    say("tokens: " + " ".join(f"[{_text_of([token], vocabulary)}]" for token in ids))
    if not found:
        say("nothing is proposed: no entry ends like this")
    for one in found:
        say(
            f"{one['dictionary']}: [{one['matched']}] -> [{']['.join(one['tokens'])}]"
            f"  {one['first']:.2f}, then {one['rest']:.2f}"
        )
    return 0


def _tokenizer(options: argparse.Namespace) -> str:
    """The model or folder that the tokenizer is opened from."""
    from paceline_lab.bench.suites.sources import Sources

    if options.tokenizer is None and options.files:
        return tokenizer_of(options.files[0], Sources())
    return options.tokenizer or DEFAULT_MODEL


def _as_dict(dictionary: Dictionary, match: Match, ids: list[int], vocabulary: Vocabulary) -> dict[str, Any]:
    return {
        "dictionary": Path(dictionary.path).name,
        "length": match.length,
        "matched": _text_of(ids[len(ids) - match.length :], vocabulary),
        "tokens": [_text_of([token], vocabulary) for token in match.tokens],
        "completion": _text_of(list(match.tokens), vocabulary),
        "first": round(exp(match.first), 3),
        "rest": round(exp(match.rest), 3),
    }


def _text_of(ids: list[int], vocabulary: Vocabulary) -> str:
    return b"".join(map(vocabulary.token_bytes, ids)).decode(errors="replace")
