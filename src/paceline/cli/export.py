"""``paceline export``: what other engines call a method."""

from __future__ import annotations

import argparse
from pathlib import Path

from paceline.cli.arguments import Parser, Subparsers
from paceline.cli.output import bullets, print_json, say
from paceline.errors import InputError

ENGINES = ("vllm", "llama.cpp", "transformers")


def add(commands: Subparsers) -> None:
    parser: Parser = commands.add_parser(
        "export",
        run=run,
        help="a method as flags of vLLM or llama.cpp, or as Python of transformers",
        description=(
            "Prints the flags or the Python code with which another engine drafts like one of our methods, or like "
            "each method of a run. Says what does not carry over, and where an engine has no equivalent."
        ),
    )
    parser.argument("engine", "ENGINE", ", ".join(ENGINES), choices=ENGINES)
    parser.argument("method", "METHOD", "how to draft; 'paceline methods' lists them", nargs="?")
    parser.argument("--draft-model -md", "MODEL", "a small model that drafts, as that engine names it")
    parser.several("--dict", "FILE", "dictionaries of dictionary and hybrid (default: those that come with paceline)")
    parser.add_draft_length(None, "as suits the method")
    parser.argument("--run", "DIR", "the methods of this run directory", Path, dest="directory")
    parser.add_json()


def run(options: argparse.Namespace) -> int:
    from paceline.integrations.export import VERSIONS, equivalent, equivalents_of_run

    if (options.method is None) == (options.directory is None):
        raise InputError("give a METHOD or --run DIR, one of the two")
    if options.directory is not None:
        if options.draft_model is not None or options.num_draft_tokens is not None or options.dict:
            raise InputError(
                "a run says itself how its methods drafted; leave out --draft-model, --dict and --num-draft-tokens"
            )
        from paceline.bench.run.directory import ABOUT, read

        entries = read(options.directory).about.entries
        found = equivalents_of_run(options.engine, entries, options.directory / ABOUT)
    else:
        model, tokens = options.draft_model, options.num_draft_tokens
        method = _with_dictionaries(options.method, options.dict)
        found = [equivalent(options.engine, method, draft_model=model, draft_tokens=tokens)]
    version = VERSIONS[options.engine]
    blocks = [(f"# {each.method} in {version}", *each.lines, *bullets(each.notes, "# ")) for each in found]
    say("\n\n".join(map("\n".join, blocks)))
    if options.json:
        print_json({"engine": options.engine, "version": version, "methods": [each.as_dict() for each in found]})
    return 0


def _with_dictionaries(method: str, files: list[str] | None) -> str:
    """The method with these dictionaries, by names that hold wherever the server is started."""
    if not files:
        return method
    if method not in ("dictionary", "hybrid"):
        raise InputError(f"--dict is for the methods dictionary and hybrid, not {method!r}; name files in the spec")
    names = ",".join(str(Path(file).absolute()) for file in files)
    return f"{method}:file='{names}'"
