"""``paceline bench time overhead``: our loop against transformers' own generation, method by method."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from paceline.cli.arguments import Parser, Subparsers
from paceline.cli.options import DEFAULT_MODEL, DRAFT, check_counts, describe, draft_model, load_model, prompts_of
from paceline.cli.output import TEXT_COLUMNS, counted, progress, say
from paceline.errors import InputError
from paceline_lab.commands.bench.time.report import print_record, times_table

if TYPE_CHECKING:
    from paceline.api.model import LanguageModel
    from paceline.context import Ints
    from paceline_lab.bench.times.overhead import Contest
    from paceline_lab.bench.times.steps import TimedLine

MODELS = (DEFAULT_MODEL, f"{DEFAULT_MODEL}+ballast:300M")
METHODS = ("plain", "lookup", "assistant")
DTYPE = "float32"
TOKENS, PASSES = 40, 3
HOW = (
    "Greedy, past any end of text, so that all sides write the same. Calls are timed whole, from the prompt's ids to "
    "the finished ids, reading the prompt included, with a new cache each; every text is written once before that. "
    "Ours: as Paceline loads a model, weights packed where that helps. Theirs: transformers' generate on the same "
    "weights in ordinary layers. Inside: our loop in that generate, on the same model, by custom_generate."
)


def add(subjects: Subparsers) -> None:
    parser: Parser = subjects.add_parser(
        "overhead",
        run=run,
        help="our loop beside transformers' own generation on the same weights",
        description=(
            "Writes the same texts with Paceline and with transformers, in turns: plain decoding against generate, "
            "lookup against prompt_lookup_num_tokens, assistant against assistant_model, with the same weights, "
            "dtype, threads and draft length. Takes about four minutes on two cores."
        ),
    )
    text = f"bundled models, or folders or names of transformers causal LMs (default: {' '.join(MODELS)})"
    parser.several("--model -m", "MODEL", text, dest="models", default=list(MODELS))
    parser.add_draft_model()
    parser.add_trust()
    text = f"methods to compare: {', '.join(METHODS)} (default: all; assistant if there is a draft model)"
    parser.several("--method", "METHOD", text, dest="methods", choices=METHODS)
    parser.add_place(DTYPE)
    parser.set_defaults(quantize=None)  # transformers computes no such layers to compare with
    parser.add_threads()
    parser.add_prompts()
    parser.add_length(TOKENS)
    parser.add_draft_length(DRAFT)
    parser.argument("--passes", "N", f"how often each text is timed (default: {PASSES})", int, default=PASSES)
    parser.add_json()


def run(options: argparse.Namespace) -> int:
    _check(options)
    from paceline_lab.bench.machine import hushed, threads

    options.prompt = list(prompts_of(options).values())
    lines: list[TimedLine] = []
    setups: dict[str, dict[str, Any]] = {}
    with threads(options.threads), hushed():
        for model in dict.fromkeys(options.models):
            setups[model], found = _contests(model, options)
            its = [line for contest in found for line in contest.lines]
            say("\n".join(_shown(setups[model], found, its, len(options.prompt))), end="\n\n", flush=True)
            lines += [line.about(model=model) for line in its]
    say(textwrap.fill(HOW, TEXT_COLUMNS))
    names = ("dtype", "num_draft_tokens", "max_new_tokens", "passes")
    settings = {name: getattr(options, name) for name in names}
    print_record(options, lines, setups=setups, settings=settings, prompts=options.prompt)
    return 0


def _check(options: argparse.Namespace) -> None:
    """Refuse mistakes before a model is loaded."""
    from paceline.targets.place import named_dtype
    from paceline.targets.pocket.names import BALLAST_MARK, is_bundled
    from paceline.targets.pocket.shape import read_ballast

    check_counts(options, "passes", "max_new_tokens", "num_draft_tokens", "threads")
    prompts_of(options)
    named_dtype(options.dtype)
    for model in options.models:
        if is_bundled(model) and BALLAST_MARK in model:
            read_ballast(model)
        options.model = model
        if "assistant" in (options.methods or ()) and draft_model(options) is None:
            raise InputError(f"assistant needs a draft model for {model}: give --draft-model NAME")


def _contests(model: str, options: argparse.Namespace) -> tuple[dict[str, Any], list[Contest]]:
    """The facts about a model, and its races."""
    from paceline.drafters.networks.assistant import DraftModel
    from paceline_lab.bench.times.overhead import contests

    options.model = model
    draft = draft_model(options)
    methods = dict.fromkeys(options.methods or (METHODS if draft else METHODS[:-1]))
    with progress(f"loading {model}") as advance:
        lm = load_model(options)
        prompts = _prompts(lm, options)
        drafts = DraftModel.load(draft, lm.target) if draft and "assistant" in methods else None
        if drafts is not None:
            drafts.check_fit(lm.target, lm.vocabulary)
        found = contests(
            lm,
            drafts,
            methods,
            prompts,
            tokens=options.max_new_tokens,
            draft_tokens=options.num_draft_tokens,
            passes=options.passes,
            progress=lambda doing, done, total: advance(f"{model}: {doing}", done, total),
        )
        races = list(found)
        return describe(lm) | {"races": {race.method: race.about for race in races}}, races


def _prompts(lm: LanguageModel, options: argparse.Namespace) -> list[Ints]:
    """The prompts as ids; transformers would write on past a model's context."""
    prompts = [lm.encode(prompt) for prompt in options.prompt]
    longest, limit = max(map(len, prompts)), lm.target.context_length
    if limit is not None and longest + options.max_new_tokens > limit:
        raise InputError(
            f"a prompt of {longest} tokens and {options.max_new_tokens} new ones do not fit the {limit} that "
            f"{lm.target.name} reads; give fewer --max-new-tokens"
        )
    return prompts


def _shown(setup: dict[str, Any], found: Sequence[Contest], lines: Sequence[TimedLine], prompts: int) -> Iterator[str]:
    """A model's table, and what must be known to read it."""
    yield setup["model"]
    yield (
        f"{setup['dtype']}  weights {setup['fingerprint']} on all sides  {setup['device']}, "
        f"{counted(setup['threads'], 'thread')}"
    )
    theirs = found[0].facts["theirs"]
    yield f"torch {version('torch')}, transformers {theirs['version']} with {theirs['attention']} attention"
    yield times_table(lines)
    yield from textwrap.wrap("; ".join(_notes(setup, found, prompts)), TEXT_COLUMNS)


def _notes(setup: dict[str, Any], found: Sequence[Contest], prompts: int) -> Iterator[str]:
    yield f"medians over {len(found[0].heats)} turns, 95% intervals"
    lengths = sorted({length for contest in found for length in contest.lengths})
    yield f"{' or '.join(map(str, lengths))} tokens from each of {counted(prompts, 'prompt')}"
    if any(contest.parts for contest in found):
        yield (
            f"'paceline check --model {setup['model']} --dtype {setup['dtype']}' distinguishes near ties of "
            "the arithmetic from bugs"
        )
    spread = max((contest.spread for contest in found if contest.spread is not None), default=None)
    repeated = max(contest.repetition for contest in found)
    from paceline_lab.bench.texts import cautions

    yield from cautions(repeated, "lookup on all sides", spread, "times of the same text differ")
