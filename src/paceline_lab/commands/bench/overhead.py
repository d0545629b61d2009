"""``paceline bench overhead``: our loop against transformers' own generation, method by method."""

from __future__ import annotations

import argparse
import textwrap
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline.cli.arguments import Parser, Subparsers
from paceline.cli.options import DEFAULT_MODEL, DRAFT, check_counts, describe, draft_model, load_model, prompts_of
from paceline.cli.output import TEXT_COLUMNS, cautions, counted, interval, print_json, progress, say, table
from paceline.errors import InputError

if TYPE_CHECKING:
    from paceline.api.model import LanguageModel
    from paceline.context import Ints
    from paceline.drafters.networks.assistant import DraftModel

BALLAST = "ballast"
MODELS = (DEFAULT_MODEL, f"{DEFAULT_MODEL}+{BALLAST}:300M")
METHODS = ("plain", "lookup", "assistant")
DTYPE = "float32"
TOKENS, PASSES = 40, 3
HOW = (
    "Greedy, past any end of text, so that all sides write the same. Calls are timed whole, from the prompt's ids to "
    "the finished ids, reading the prompt included, with a new cache each; every text is written once before that. "
    "Ours: as Paceline loads a model, weights packed where that helps. Theirs: transformers' generate on the same "
    "weights in ordinary layers. Inside: our loop in that generate, on the same model, by custom_generate."
)


def add(commands: Subparsers) -> None:
    parser: Parser = commands.add_parser(
        "overhead",
        run=run,
        help="our speed against transformers' own generation on the same weights",
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
    text = f"what to compare: {', '.join(METHODS)} (default: all; assistant where there is a draft model)"
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

    started = time.monotonic()
    options.prompt = list(prompts_of(options).values())
    parts = list[ModelOverhead]()
    with threads(options.threads), hushed():
        for model, name in _short_names(options.models).items():
            parts.append(_part(model, name, options))
            say("\n".join(_lines(parts[-1])), end="\n\n", flush=True)
    say(textwrap.fill(HOW, TEXT_COLUMNS))
    if options.json:
        print_json(_summary(parts, options, time.monotonic() - started))
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


def _short_names(models: Sequence[str]) -> dict[str, str]:
    """What ratios are called by: a model's name, or ``ballast`` for the one that carries it."""
    carrying = [model for model in dict.fromkeys(models) if f"+{BALLAST}" in model]
    return {model: BALLAST if carrying == [model] else model for model in models}


@dataclass(frozen=True)
class ModelOverhead:
    """What was found on one model."""

    name: str
    """The short one that ratios are called by."""
    facts: dict[str, Any]
    rows: list[dict[str, Any]]
    """Plain data, a row per method."""
    lengths: set[int]
    """Tokens of the texts."""
    prompts: int


def _part(model: str, name: str, options: argparse.Namespace) -> ModelOverhead:
    from paceline.drafters.networks.assistant import DraftModel
    from paceline_lab.bench.overhead import contests

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
    rows = [race.as_dict() | {"model": model} for race in races]
    return ModelOverhead(name, _facts(lm, drafts), rows, {n for race in races for n in race.lengths}, len(prompts))


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


def _lines(part: ModelOverhead) -> Iterator[str]:
    """A model's table, and what must be known to read it."""
    facts, versions = part.facts, _versions()
    yield f"{facts['ballast'] or facts['model']}"
    yield (
        f"{facts['dtype']}  weights {facts['fingerprint']} on all sides  {facts['device']}, "
        f"{counted(facts['threads'], 'thread')}"
    )
    yield f"torch {versions['torch']}, transformers {versions['transformers']} with {facts['attention']} attention"
    names, ratios = part.rows[0]["tokens_per_second"], part.rows[0]["ratios"]
    head = ("tokens/s", *names, *(f"{name}/theirs" for name in ratios), "tokens/forward", "texts")
    yield table(head, map(_cells, part.rows), left=(0, len(head) - 1))
    yield from textwrap.wrap("; ".join(_notes(part)), TEXT_COLUMNS)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        row["method"],
        *(f"{speed:.1f}" for speed in row["tokens_per_second"].values()),
        *(interval(**ratio) for ratio in row["ratios"].values()),
        " : ".join(f"{row['tokens_per_forward'][name]:.2f}" for name in ("ours", "theirs")),
        "equal" if row["texts_equal"] else "DIFFER",
    )


def _notes(part: ModelOverhead) -> Iterator[str]:
    rows = part.rows
    yield f"medians over {rows[0]['turns']} turns, 95% intervals"
    yield f"{' or '.join(map(str, sorted(part.lengths)))} tokens from each of {counted(part.prompts, 'prompt')}"
    for row in rows:
        for name, place in row["parts_at"].items():
            where = f"token {place['token'] + 1} of prompt {place['prompt'] + 1}"
            yield f"{row['method']}: the text of {name} is not theirs, from {where} on"
    if not all(row["texts_equal"] for row in rows):
        model, dtype = part.facts["model"], part.facts["dtype"]
        yield f"'paceline check --model {model} --dtype {dtype}' tells near ties of the arithmetic from bugs"
    spread = max((row["spread"] for row in rows if row["spread"] is not None), default=None)
    repeated = max(row["repeated_8grams"] for row in rows)
    yield from cautions(repeated, "lookup on all sides", spread, "times of the same text differ")


def _summary(parts: Sequence[ModelOverhead], options: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """Everything as plain data; ratios by method and model, ours over theirs, come first."""
    rows = {f"{row['method']}@{part.name}": row for part in parts for row in part.rows}
    found: dict[str, Any] = {}
    for name, before in (("ours", ""), ("inside", "inside_")):
        ratios = {key: row["ratios"][name] for key, row in rows.items()}
        found[f"{before}ratios"] = {key: ratio["value"] for key, ratio in ratios.items()}
        found[f"{before}intervals"] = {key: [ratio["low"], ratio["high"]] for key, ratio in ratios.items()}
    return {
        **found,
        "rows": rows,
        "models": {part.name: part.facts for part in parts},
        "settings": {
            name: getattr(options, name) for name in ("dtype", "num_draft_tokens", "max_new_tokens", "passes")
        },
        "prompts": options.prompt,
        "versions": _versions(),
        "seconds": seconds,
    }


def _versions() -> dict[str, str]:
    import torch
    import transformers

    from paceline import __version__

    return {"paceline": __version__, "torch": torch.__version__, "transformers": transformers.__version__}
