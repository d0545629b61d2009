"""``paceline train segments``: a draft model in tracks, from nothing."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cli.arguments import Parser
from paceline.cli.options import check_counts, describe, load_model
from paceline.cli.output import print_json, say
from paceline.errors import InputError
from paceline_make.commands.texts import CHATS, add_texts, passages_of

if TYPE_CHECKING:
    from paceline_make.models.tracks import TracksOutcome, TracksRecipe, TracksWorkshop

TEMPERATURE = 0.8
"""Of the texts that are written to measure it."""


def add(actions: Any) -> None:
    parser: Parser = actions.add_parser(
        "segments",
        run=train,
        help="train a draft model whose layers run in parallel tracks",
        description=(
            "Trains a small llama from nothing on the laws of a model, with its tokenizer. Its layers are divided into "
            "segments. In a segment its tracks run side by side, each with a share of the heads and of the MLP, and "
            "they meet at the end of each. So processes that have a track each exchange data as often as there are "
            "segments, and not twice in every layer. The same command continues a training that was stopped. The "
            "folder is then a draft model: --draft-model DIR."
        ),
    )
    parser.add_model()
    add_texts(parser, "--data", CHATS, required=True)
    parser.argument("--out", "DIR", "the folder of the model and its state", Path, required=True)
    parser.argument("--tracks", "N", "tracks; 1 for an ordinary llama (default: 2)", int, default=2)
    parser.argument("--segments", "N", "segments (default: 2)", int, default=2)
    parser.argument("--layers", "N", "layers of all segments (default: 4)", int, default=4)
    parser.argument("--width", "N", "the width of its states (default: 128)", int, default=128)
    parser.argument("--units", "N", "of its MLPs (default: about 8/3 of the width)", int)
    parser.argument("--tokens", "N", "tokens to learn from (default: 3200000)", int, default=3_200_000)
    parser.argument("--batch-size", "N", "tokens in a step (default: 8192)", int, default=8192)
    parser.argument("--held-out", "SHARE", "of the passages, to judge it by (default: 0.02)", float, default=0.02)
    parser.add_seed()
    parser.add_threads()
    parser.add_json()


def train(options: argparse.Namespace) -> int:
    from paceline.files import terminable
    from paceline_lab.bench.machine import threads
    from paceline_make.heads.judging import by_noise
    from paceline_make.models.progress import progress
    from paceline_make.models.tracks import TracksWorkshop
    from paceline_make.states import resumable

    check_counts(options, *("tracks", "segments", "layers", "width", "units", "tokens", "batch_size", "threads"))
    recipe, passages = _recipe(options), passages_of(options)
    with threads(options.threads), terminable(), resumable():
        lm = load_model(options)
        workshop = TracksWorkshop(lm, passages, recipe, options.out)
        with progress("segments") as report:
            outcome = workshop.train(report)
        measured = by_noise(lm, workshop.held, f"assistant:model='{options.out}'", TEMPERATURE)
        _write_card(workshop, outcome, measured, [f"- {path}" for path in options.data])
        facts = describe(lm)
    say(_summary(outcome, measured, options))
    if options.json:
        found = {**outcome._asdict(), "measured": measured, "recipe": asdict(recipe), "out": str(options.out)}
        print_json({**facts, **found})
    return 0


def _recipe(options: argparse.Namespace) -> TracksRecipe:
    from paceline_make.models.schedule import ModelSchedule
    from paceline_make.models.tracks import TracksRecipe, TracksShape

    if not 0 <= options.held_out < 0.5:
        raise InputError(f"--held-out is a share from 0 to below 0.5, not {options.held_out}")
    if options.seed < 0:
        raise InputError(f"--seed is 0 or more, not {options.seed}")
    shape = TracksShape(
        tracks=options.tracks,
        segments=options.segments,
        layers=options.layers,
        width=options.width,
        units=options.units,
    )
    whole = ModelSchedule(tokens=options.tokens, tokens_per_step=options.batch_size, seed=options.seed)
    schedule = whole.within(options.batch_size)
    return TracksRecipe(shape=shape, schedule=schedule, held_out=options.held_out)


def _summary(outcome: TracksOutcome, measured: dict[str, float], options: argparse.Namespace) -> str:
    lines = [f"{options.out}: {outcome.parameters:,} parameters, trained on {outcome.tokens:,} tokens"]
    if outcome.held_out is not None:
        lines.append(f"held out: {outcome.held_out:.3f} nats per token")
    if measured:
        each = (f"{tokens:.2f} with noise={noise}" for noise, tokens in measured.items())
        lines.append(f"measured: tokens a round {', '.join(each)}")
    lines.append(f'To use it: paceline generate "The old house" --model {options.model} --draft-model {options.out}')
    return "\n".join(lines)


def _write_card(
    workshop: TracksWorkshop, outcome: TracksOutcome, measured: dict[str, float], origin: list[str]
) -> None:
    from paceline_make import cards

    cards.write(
        workshop.out,
        cards.TEMPLATES / "tracks.md",
        model=workshop.target.name,
        fingerprint=workshop.target.fingerprint(),
        shape=workshop.recipe.shape,
        outcome=outcome,
        measured=measured,
        temperature=TEMPERATURE,
        tokens=len(workshop.stream),
        origin=origin,
    )
