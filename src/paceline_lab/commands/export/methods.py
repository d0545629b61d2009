"""``paceline export ENGINE METHOD``: what other engines call a method."""

from __future__ import annotations

import argparse
from pathlib import Path

from paceline.cli.arguments import Parser, Subparsers
from paceline.cli.output import bullets, print_json, say
from paceline.errors import InputError

ENGINES = {"vllm": "the command", "llama.cpp": "the flags", "transformers": "the Python code"}
"""Engine -> in which form a method is written for it."""


def add(exports: Subparsers) -> None:
    for engine, form in ENGINES.items():
        parser: Parser = exports.add_parser(
            engine,
            run=run,
            help=f"a method as {form} of {engine}",
            description=(
                f"Prints first {form} with which {engine} drafts like a method of ours, or like each method of a run. "
                "Then says what does not carry over, and where there is no equivalent."
            ),
        )
        _arguments(parser)


def _arguments(parser: Parser) -> None:
    parser.argument("method", "METHOD", "how to draft; 'paceline methods' lists them", nargs="?")
    parser.argument("--model -m", "MODEL", "the model that vLLM serves: a folder or a name on a hub", dest="target")
    parser.argument("--draft-model -md", "MODEL", "a small model that drafts, as that engine names it")
    text = "dictionaries of dictionary, hybrid and auto (default: those that come with paceline)"
    parser.several("--dict", "FILE", text)
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
        from paceline_lab.bench.run.directory import ABOUT, read

        entries = read(options.directory).about.entries
        found = equivalents_of_run(options.engine, entries, options.directory / ABOUT, options.target)
    else:
        model, tokens = options.draft_model, options.num_draft_tokens
        method = _with_dictionaries(options.method, options.dict)
        found = [equivalent(options.engine, method, draft_model=model, draft_tokens=tokens, target=options.target)]
    version = VERSIONS[options.engine]
    blocks = [(*each.lines, f"# {each.method} in {version}", *bullets(each.notes, "# ")) for each in found]
    say("\n\n".join(map("\n".join, blocks)))
    if options.json:
        print_json({"engine": options.engine, "version": version, "methods": [each.as_dict() for each in found]})
    return 0


def _with_dictionaries(method: str, files: list[str] | None) -> str:
    """The method with these dictionaries."""
    from paceline.drafters.spec import file_names

    if not files:
        return method
    keys = {"dictionary": "file", "hybrid": "file", "auto": "dictionary"}
    if method not in keys:
        raise InputError(f"--dict is for the methods {', '.join(keys)}, not {method!r}; name files in the spec")
    return f"{method}:{keys[method]}={file_names(','.join(files))}"
