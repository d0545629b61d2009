"""``paceline export``: what other engines call a method."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.cli.common import Subparsers, add_json, print_json
from paceline.cli.streams import say
from paceline.errors import InputError

if TYPE_CHECKING:
    from paceline.integrations.export import Equivalent

ENGINES = ("vllm", "llama.cpp", "transformers")
WIDTH = 100


def add(commands: Subparsers) -> None:
    parser = commands.add_parser(
        "export",
        help="a method as flags of vLLM or llama.cpp, or as Python of transformers",
        description=(
            "Prints the flags or the Python by which another engine drafts as one of our methods does, or as each "
            "method of a run did; says what does not carry over, or why there is none."
        ),
        allow_abbrev=False,
    )
    parser.add_argument("engine", metavar="ENGINE", choices=ENGINES, help=", ".join(ENGINES))
    parser.add_argument("method", metavar="METHOD", nargs="?", help="how to draft; 'paceline methods' lists them")
    parser.add_argument(
        "--draft-model", "-md", metavar="MODEL", help="a small model that drafts, as that engine names it"
    )
    parser.add_argument(
        "--num-draft-tokens", type=int, metavar="K", help="draft tokens per round (default: as suits the method)"
    )
    parser.add_argument("--run", dest="directory", type=Path, metavar="DIR", help="the methods of this run directory")
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from paceline.integrations.export import VERSIONS, equivalent, equivalents_of_run

    if (options.method is None) == (options.directory is None):
        raise InputError("give a METHOD or --run DIR, one of the two")
    if options.directory is not None:
        if options.draft_model is not None or options.num_draft_tokens is not None:
            raise InputError(
                "a run says itself how its methods drafted; leave out --draft-model and --num-draft-tokens"
            )
        from paceline.bench.run.directory import ABOUT, read

        entries = read(options.directory).about.entries
        found = equivalents_of_run(options.engine, entries, options.directory / ABOUT)
    else:
        model, tokens = options.draft_model, options.num_draft_tokens
        found = [equivalent(options.engine, options.method, draft_model=model, draft_tokens=tokens)]
    version = VERSIONS[options.engine]
    say("\n\n".join("\n".join(_told(each, version)) for each in found))
    if options.json:
        print_json({"engine": options.engine, "version": version, "methods": [each.as_dict() for each in found]})
    return 0


def _told(found: Equivalent, version: str) -> Iterator[str]:
    yield f"# {found.method} in {version}"
    yield from found.lines
    for note in found.notes:
        yield from textwrap.wrap(note, WIDTH, initial_indent="# - ", subsequent_indent="#   ")
