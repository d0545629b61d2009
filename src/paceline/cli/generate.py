"""``paceline generate``: write on from a prompt."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cli.common import Subparsers, add_json, add_model, load_model, print_json, read_prompt

if TYPE_CHECKING:
    from paceline.hosts.python import Generation, LanguageModel

SAMPLING = (
    ("--temperature", float, "0 for the most probable token (default: 0)"),
    ("--top-k", int, "keep the K most probable tokens"),
    ("--top-p", float, "keep the most probable tokens that hold this share of the mass"),
    ("--min-p", float, "keep tokens at least this probable, relative to the best"),
    (
        "--repetition-penalty",
        float,
        "divide positive logits of tokens that occurred by this, multiply negative ones",
    ),
    ("--presence-penalty", float, "subtract this from the logits of tokens that were emitted"),
    ("--frequency-penalty", float, "subtract this for every time a token was emitted"),
    ("--seed", int, "same seed, same text, with every method of the coupled rule (default: 0)"),
)


def add(commands: Subparsers) -> None:
    parser = commands.add_parser(
        "generate",
        help="write on from a prompt",
        description="Write on from a prompt. Under the coupled rule, the default, no method changes the text.",
        allow_abbrev=False,
    )
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help="the prompt; - reads standard input")
    parser.add_argument("--prompt-file", type=Path, metavar="FILE", help="read the prompt from a UTF-8 file")
    add_model(parser)
    parser.add_argument(
        "--method", metavar="SPEC", help="how to draft; 'paceline methods' lists them (default: lookup)"
    )
    parser.add_argument(
        "--num-draft-tokens",
        "--num-speculative-tokens",
        dest="num_draft_tokens",
        type=int,
        metavar="K",
        help="draft tokens per round: --planner fixed:K (default: 10)",
    )
    parser.add_argument("--planner", metavar="P", help="how large drafts are: fixed:K")
    parser.add_argument(
        "--rule", metavar="RULE", help="how drafts are accepted: coupled or rejection (default: coupled)"
    )
    parser.add_argument("--max-new-tokens", type=int, metavar="N", help="stop after N tokens (default: 128)")
    for flag, kind, text in SAMPLING:
        parser.add_argument(flag, type=kind, metavar=flag[2:].split("-")[-1][0].upper(), help=text)
    parser.add_argument("--stop", action="append", metavar="STR", help="stop before this string; may be repeated")
    parser.add_argument("--ignore-eos", action="store_true", help="go on past the end-of-text token")
    parser.add_argument("--logprobs", type=int, metavar="K", help="log-probabilities, with K alternatives (JSON only)")
    parser.add_argument("--samples", type=int, default=1, metavar="N", help="write N texts from the prompt")
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from paceline.hosts.python import split_settings

    prompt = read_prompt(options.prompt, options.prompt_file)
    settings = _settings(options)
    how, _ = split_settings(settings)
    _ = how.drafter, how.sizes  # a misspelt method or planner is told before a model is loaded
    lm = load_model(options)
    if options.json or options.samples != 1:
        return _write_all(lm, prompt, settings, options)
    for piece in lm.stream(prompt, **settings):
        sys.stdout.write(piece.text)
        sys.stdout.flush()
    print()
    return 0


def _write_all(lm: LanguageModel, prompt: str, settings: dict[str, Any], options: argparse.Namespace) -> int:
    texts = lm.sample(prompt, n=options.samples, **settings)
    if options.json:
        print_json(_record(lm, texts, options.samples))
        return 0
    for number, text in enumerate(texts):
        print(f"--- sample {number} ---\n{text.text}")
    return 0


def _record(lm: LanguageModel, texts: list[Generation], samples: int) -> dict[str, Any]:
    model = {"model": lm.target.name, "fingerprint": lm.target.fingerprint()}
    first = texts[0].as_dict()
    return {**first, **model} if samples == 1 else {"samples": [text.as_dict() for text in texts], **model}


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    """Only what was given, so that the defaults stand in one place."""
    names = [
        "method",
        "planner",
        "rule",
        "max_new_tokens",
        "logprobs",
        *(flag[2:].replace("-", "_") for flag, _, _ in SAMPLING),
    ]
    settings = {name: value for name in names if (value := getattr(options, name)) is not None}
    if options.num_draft_tokens is not None:
        if options.planner is not None:
            raise ValueError("--num-draft-tokens K is short for --planner fixed:K; give one of the two")
        settings["planner"] = f"fixed:{options.num_draft_tokens}"
    if options.stop:
        settings["stop"] = tuple(options.stop)
    if options.ignore_eos:
        settings["ignore_eos"] = True
    return settings
