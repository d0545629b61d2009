"""``paceline train``: draft heads for a model of yours."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cli.arguments import Parser, Subparsers
from paceline.cli.options import check_counts, describe, load_model
from paceline.cli.output import counted, print_json, say, table
from paceline.drafters.networks.heads import STREAMING
from paceline.errors import InputError, need
from paceline_make.commands import segments
from paceline_make.commands.head_options import KINDS, KindOptions
from paceline_make.commands.texts import CHATS, add_texts, passages_of

if TYPE_CHECKING:
    from paceline.api.model import LanguageModel
    from paceline_make.heads.kinds.base import HeadKind
    from paceline_make.heads.labels import Teacher
    from paceline_make.heads.run import Elsewhere, Recipe
    from paceline_make.heads.watch import TrainingOutcome
    from paceline_make.texts.fields import Passage

LOSSES = ("labels", "overlap", "race")
LABELS = ("truth", "greedy", "sampled", "soft")


def add(commands: Subparsers) -> None:
    parser: Parser = commands.add_parser(
        "train",
        help="train a small head, or a small model, that drafts for a model",
        description="Trains draft heads and draft models, and measures the cost of heads.",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", help="what to do")
    for each in KINDS:
        _add_kind(actions, each)
    segments.add(actions)
    telling: Parser = actions.add_parser(
        "info",
        run=info,
        help="describe a head, or the cost of heads of several shapes here",
        description=(
            "Describes the head in a folder or on the hub. Without one, prints for heads of several shapes their "
            "bytes, the time of a draft on this machine beside a plain forward of the model, and with --data how much "
            "of that text a head with a part of the vocabulary knows."
        ),
    )
    text = "a folder that 'paceline train KIND' wrote, any other with a head, or the name of a head on the hub"
    telling.add_argument("folder", nargs="?", metavar="FOLDER", help=text)
    telling.add_model()
    add_texts(telling, "--data", CHATS)
    telling.add_threads()
    telling.add_json()


def _add_kind(actions: Any, each: KindOptions) -> None:
    parser: Parser = actions.add_parser(
        each.method,
        run=partial(train, each),
        help=each.help,
        description=(
            "Labels texts with the model's own continuations at every position, and trains a head to predict them. "
            f"{each.description} The same command continues a training that was stopped. Started by torchrun, all "
            f"processes train one head. The folder is then given to the method: --method {each.method}:head=DIR."
        ),
    )
    parser.add_model()
    add_texts(parser, "--data", CHATS, required=True)
    parser.argument("--out", "DIR", "the folder of the head, its labels and its state", Path, required=True)
    parser.add_argument(
        "--labels",
        choices=LABELS,
        default="soft",
        help="truth: the text's own tokens; greedy, sampled: the model's continuations; soft: those, and its laws "
        "(default: soft)",
    )
    parser.argument("--temperature", "T", "of the labels: the one that you write at (default: 0.8)", float, default=0.8)
    text = f"tokens that it learns to predict (default: {each.ahead})"
    parser.argument("--ahead", "N", text, int, default=each.ahead)
    parser.argument("--window", "N", "tokens that are labelled together (default: 256)", int, default=256)
    parser.argument("--positions", "N", "places to learn from (default: 1000000)", int, default=1_000_000)
    parser.argument("--epochs", "N", "times that each is learnt (default: 3)", float, default=3.0)
    parser.argument("--batch-size", "N", "positions in a step (default: 2048)", int, default=2048)
    rate = f"{each.rate}" if each.rate else "0.002, and 0.0005 where all weights of a model learn"
    parser.argument("--rate", "R", f"the learning rate's peak (default: {rate})", float, default=each.rate)
    each.add(parser)
    parser.add_argument(
        "--loss",
        choices=LOSSES,
        default="labels",
        help="labels: of the tokens, or of the laws of soft labels; overlap, race: of the chance that a token is "
        "accepted, without the public noise and with it (default: labels)",
    )
    decay = f"{each.decay}" if each.decay else "0.8, and 0.2 with --form paper"
    text = f"what a step ahead weighs beside the one before (default: {decay})"
    parser.argument("--decay", "D", text, float, default=each.decay)
    parser.flag("--no-cache", "label again in each epoch, and store no labels")
    text = "label on a Ray cluster: its address, or 'local' to start one on this machine"
    parser.argument("--cluster", "ADDRESS", text)
    parser.flag("--int8", "store large matrices in 8-bit integers")
    parser.argument("--held-out", "SHARE", "of the passages, to judge the head by (default: 0.02)", float, default=0.02)
    parser.add_seed()
    parser.add_threads()
    parser.add_json()


def train(each: KindOptions, options: argparse.Namespace) -> int:
    from paceline_lab.bench.machine import threads
    from paceline_make.heads.run import Workshop
    from paceline_make.heads.watch import watched

    check_counts(options, "positions", "batch_size", "ahead", "window", "threads", *each.counts)
    recipe = _recipe(each.kind(options), options)
    passages = passages_of(options)
    elsewhere = _elsewhere(options, recipe)
    with threads(options.threads):
        lm, author = load_model(options), _author(options)
        workshop = Workshop(lm, passages, recipe, options.out, elsewhere, author)
        outcome = watched(workshop, [f"- {path}" for path in options.data])
        facts = describe(lm)
    if outcome.positions:
        say(_summary(outcome, each.method, recipe.head.measure, options))
    if options.json:
        print_json({**facts, **outcome._asdict(), "recipe": asdict(recipe), "out": str(options.out)})
    return 0


def _author(options: argparse.Namespace) -> LanguageModel | None:
    """The model whose continuations are learnt in the place of the model's own."""
    named = getattr(options, "target", None)
    return None if named is None else load_model(argparse.Namespace(**{**vars(options), "model": named}))


def _elsewhere(options: argparse.Namespace, recipe: Recipe) -> Elsewhere | None:
    if options.cluster is None:
        return None
    if options.no_cache:
        raise InputError("--no-cache labels where it trains; leave it out, or --cluster")
    need("ray", "labelling on a cluster", "cluster")
    from paceline_make.heads.cluster import fill_on_cluster

    named = options.model, getattr(options, "target", None)
    loading = {name: getattr(options, name) for name in ("dtype", "quantize", "device")}
    return partial(fill_on_cluster, options.cluster, partial(_teacher, named, loading, recipe))


def _teacher(
    named: tuple[str, str | None], loading: dict[str, Any], recipe: Recipe, passages: Sequence[Passage]
) -> Teacher:
    """On another machine, of a model and the author of its labels."""
    from paceline.api.model import load
    from paceline_make.heads.run import teacher_of

    lm, author = (None if name is None else load(name, **loading) for name in named)
    assert lm is not None, "a model has a name"
    return teacher_of(lm, passages, recipe, author)


def _recipe(head: HeadKind[Any], options: argparse.Namespace) -> Recipe:
    from paceline_make.heads.labels import LabelSettings
    from paceline_make.heads.run import Recipe

    if not 0 <= options.held_out < 0.5:
        raise InputError(f"--held-out is a share from 0 to below 0.5, not {options.held_out}")
    if not options.epochs > 0:
        raise InputError(f"--epochs must be above 0, not {options.epochs}")
    rate = head.usual_rate if options.rate is None else options.rate
    if not 0 < rate < 1:
        raise InputError(f"--rate must be above 0 and below 1, not {rate}")
    labels = LabelSettings(
        kind=options.labels,
        ahead=options.ahead,
        temperature=options.temperature,
        window=options.window,
        seed=options.seed,
    )
    return Recipe(
        head=head,
        labels=labels,
        positions=options.positions,
        epochs=options.epochs,
        batch=options.batch_size,
        rate=rate,
        loss=options.loss,
        decay=head.usual_decay if options.decay is None else options.decay,
        seed=options.seed,
        held_out=options.held_out,
        int8=options.int8,
        fresh=options.no_cache,
    )


def _summary(outcome: TrainingOutcome, method: str, measure: str, options: argparse.Namespace) -> str:
    lines = [f"{options.out}: {outcome.bytes:,} bytes, trained on {outcome.positions:,} positions"]
    if (held := outcome.held_out) is not None:
        right = " ".join(f"{share:.0%}" for share in held.right)
        lines.append(f"held out: loss {held.loss:.3f}, right {right}, {held.expected:.2f} tokens a round expected")
    if outcome.measured:
        each = (f"{tokens:.2f} with noise={noise}" for noise, tokens in outcome.measured.items())
        better = "; the better is the head's default" if len(outcome.measured) > 1 else ""
        lines.append(f"measured: {measure} {', '.join(each)}{better}")
    if outcome.accepted is not None:
        lines.append(f"accepted: {outcome.accepted:.2f} tokens a round of {options.target}")
    model = options.model
    if method == STREAMING:  # streams are of a draft model, which the head names
        model = getattr(options, "target", None) or "MODEL"
    lines.append(f'To use it: paceline generate "The old house" --model {model} --method {method}:head={options.out}')
    return "\n".join(lines)


def info(options: argparse.Namespace) -> int:
    if options.folder is not None:
        from paceline_make.heads.kinds.table import described

        found = described(options.folder)
        say(_described(found))
    else:
        found = _shapes(options)
    if options.json:
        print_json(found)
    return 0


def _described(found: dict[str, Any]) -> str:
    shape, trained = found["shape"], found["trained"]
    rows = [("for the method", found["method"]), ("parameters", f"{found['parameters']:,}")]
    rows.append(("bytes", f"{found['bytes']:,}"))
    rows += [(name.replace("_", " "), str(value)) for name, value in shape.items()]
    rows.append(("for", f"{found['target_name'] or 'not said'} {found['target']}".strip()))
    rows.append(("noise", found["noise"] or "not measured"))
    rows += [(name.replace("_", " "), str(value)) for name, value in trained.items()]
    return table(("", ""), rows, left=(0, 1))


def _shapes(options: argparse.Namespace) -> dict[str, Any]:
    """Of the model's own width."""
    from paceline_lab.bench.machine import instruction_sets, threads
    from paceline_make.heads.costs import costs
    from paceline_make.heads.data import stream_of

    check_counts(options, "threads")
    passages = passages_of(options) if options.data else []
    with threads(options.threads):
        lm = load_model(options)
        if passages and lm.vocabulary is None:
            raise InputError(f"{lm.target.name} came without a tokenizer; leave --data out")
        text = stream_of(passages, lm.vocabulary, None).ids if passages and lm.vocabulary else None
        found = list(costs(lm.target, text))
        facts = describe(lm)
    rows = (
        (
            one.name,
            f"{one.parameters:,}",
            "" if one.share is None else f"{one.share:.1%}",
            f"{one.bytes / 1e6:.1f} MB",
            f"{one.milliseconds:.2f} ms",
            f"{one.rounds:.0%}",
            "" if one.coverage is None else f"{one.coverage:.1%}",
        )
        for one in found
    )
    titles = ("head", "parameters", "of the model's", "on disk", "a draft", "of a plain forward", "text known")
    say(f"Drafts of width 4 and length 4 for {lm.target.name}, {counted(len(found), 'shape')}; {instruction_sets()}")
    say(table(titles, rows, left=(0,)))
    return {**facts, "shapes": [asdict(one) for one in found]}
