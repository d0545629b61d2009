"""``paceline bench overhead``: our loop against transformers' own generation, method by method."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from paceline.cli.bench.surroundings import add_threads, hushed, threads
from paceline.cli.common import (
    MODEL,
    Subparsers,
    add_draft_model,
    add_json,
    add_trust,
    describe,
    draft_model,
    load_model,
    print_json,
    progress,
    utf8,
)
from paceline.cli.demo import PROMPTS
from paceline.cli.streams import say

if TYPE_CHECKING:
    from paceline.api.model import LanguageModel
    from paceline.cli.bench.overhead.findings import Part
    from paceline.context import Ints
    from paceline.drafters.assistant import DraftModel

BALLAST = "ballast"
MODELS = (MODEL, f"{MODEL}+{BALLAST}:300M")
METHODS = ("plain", "lookup", "assistant")
DTYPE = "float32"
DRAFT = 4
"""Draft tokens per round: in float32 on a CPU every further row of a forward costs, and few are accepted so far out."""
TOKENS = 40
PASSES = 3


def add(commands: Subparsers) -> None:
    parser = commands.add_parser(
        "overhead",
        help="our speed against transformers' own generation on the same weights",
        description=(
            "Writes the same texts with Paceline and with transformers, in turns: plain decoding against generate, "
            "lookup against prompt_lookup_num_tokens, assistant against assistant_model, with the same weights, "
            "dtype, threads and draft length. Takes about four minutes on two cores."
        ),
        allow_abbrev=False,
    )
    parser.add_argument(
        "--models",
        nargs="+",
        default=list(MODELS),
        metavar="MODEL",
        help=f"bundled models, or folders or names of transformers causal LMs (default: {' '.join(MODELS)})",
    )
    add_draft_model(parser)
    add_trust(parser)
    parser.add_argument(
        "--methods",
        nargs="+",
        choices=METHODS,
        help="what to compare (default: all; assistant where there is a draft model)",
    )
    parser.add_argument(
        "--dtype", default=DTYPE, metavar="TYPE", help=f"float64, float32, bfloat16 or float16 (default: {DTYPE})"
    )
    parser.add_argument("--device", metavar="DEVICE", help="where to run, e.g. cpu, cuda, mps (default: cpu)")
    add_threads(parser)
    parser.add_argument(
        "--prompt",
        type=utf8,
        action="append",
        metavar="TEXT",
        help="write on from this, not from the built-in ones; may repeat",
    )
    parser.add_argument(
        "--max-new-tokens", type=int, default=TOKENS, metavar="N", help=f"tokens per text (default: {TOKENS})"
    )
    parser.add_argument(
        "--num-draft-tokens", type=int, default=DRAFT, metavar="K", help=f"draft tokens per round (default: {DRAFT})"
    )
    parser.add_argument(
        "--passes", type=int, default=PASSES, metavar="N", help=f"how often each text is timed (default: {PASSES})"
    )
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    _check(options)
    from paceline.cli.bench.overhead import findings

    started = time.monotonic()
    options.prompt = options.prompt or list(PROMPTS.values())
    parts = list[findings.Part]()
    with threads(options.threads), hushed():
        for model, name in _short_names(options.models).items():
            parts.append(_part(model, name, options))
            say(findings.told(parts[-1]), end="\n\n", flush=True)
    say(findings.how())
    if options.json:
        print_json(findings.summary(parts, options, time.monotonic() - started))
    return 0


def _check(options: argparse.Namespace) -> None:
    """Tell mistakes before a model is loaded."""
    from paceline.targets.hf.load import named_dtype
    from paceline.targets.pocket.open import is_bundled
    from paceline.targets.pocket.shape import MARK, read_ballast

    for flag, least in (("passes", 1), ("max_new_tokens", 1), ("num_draft_tokens", 1), ("threads", 1)):
        given = getattr(options, flag)
        if given is not None and given < least:
            raise ValueError(f"--{flag.replace('_', '-')} must be at least {least}, not {given}")
    if options.prompt is not None and not all(options.prompt):
        raise ValueError("a --prompt is empty; give it at least a word to go on from")
    named_dtype(options.dtype)
    for model in options.models:
        if is_bundled(model) and MARK in model:
            read_ballast(model)
        if "assistant" in (options.methods or ()) and _draft_name(options, model) is None:
            raise ValueError(f"assistant needs a draft model for {model}: give --draft-model NAME")


def _draft_name(options: argparse.Namespace, model: str) -> str | None:
    return draft_model(argparse.Namespace(model=model, draft_model=options.draft_model))


def _short_names(models: Sequence[str]) -> dict[str, str]:
    """What ratios are called by: a model's name, or ``ballast`` for the one that carries it."""
    carrying = [model for model in dict.fromkeys(models) if f"+{BALLAST}" in model]
    return {model: BALLAST if carrying == [model] else model for model in models}


def _part(model: str, name: str, options: argparse.Namespace) -> Part:
    from paceline.bench.overhead import run as compete
    from paceline.cli.bench.overhead.findings import Part
    from paceline.cli.bench.overhead.sides import Task, contests
    from paceline.drafters.assistant import DraftModel

    draft = _draft_name(options, model)
    methods = dict.fromkeys(options.methods or (METHODS if draft else METHODS[:-1]))
    with progress(f"loading {model}") as advance:
        lm = load_model(argparse.Namespace(model=model, dtype=options.dtype, device=options.device))
        prompts = _prompts(lm, options)
        drafts = DraftModel.load(draft, lm.target) if draft and "assistant" in methods else None
        if drafts is not None:
            drafts.check_fit(lm.target, lm.vocabulary)
        found = contests(lm, drafts, methods, Task(options.max_new_tokens, options.num_draft_tokens))

        def moved(doing: str, done: int, total: int) -> None:
            advance(f"{model}: {doing}", done, total)

        compete(found, prompts, passes=options.passes, progress=moved)
    return Part(name, _facts(lm, drafts), found, len(prompts))


def _prompts(lm: LanguageModel, options: argparse.Namespace) -> list[Ints]:
    """The prompts as ids; transformers would write on past a model's context."""
    prompts = [lm.encode(prompt) for prompt in options.prompt]
    longest, limit = max(map(len, prompts)), lm.target.context_length
    if limit is not None and longest + options.max_new_tokens > limit:
        raise ValueError(
            f"a prompt of {longest} tokens and {options.max_new_tokens} new ones do not fit the {limit} that "
            f"{lm.target.name} reads; give fewer --max-new-tokens"
        )
    return prompts


def _facts(lm: LanguageModel, drafts: DraftModel | None) -> dict[str, Any]:
    from paceline.targets.hf.target import HFTarget
    from paceline.targets.pocket.open import describe as shape

    target = lm.target
    assert isinstance(target, HFTarget), "models that are loaded by name are transformers models"
    return {
        **describe(lm),
        "ballast": shape(target.name) if f"+{BALLAST}" in target.name else None,
        "draft_model": None if drafts is None else drafts.target.name,
        "attention": target.model.config._attn_implementation,
    }
