"""``paceline bench draft-cost``: what drafting costs beside the model, without a model or as a share of its rounds."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from paceline.cli.arguments import Parser, Subparsers
from paceline.cli.options import check_counts, describe, load_model
from paceline.cli.output import TEXT_COLUMNS, counted, print_json, say, table
from paceline.errors import InputError
from paceline.files import workplace
from paceline_lab.commands.bench.forwards import add_forwards, time_forwards

if TYPE_CHECKING:
    from paceline.drafters import Drafter
    from paceline.targets.base import Target
    from paceline_lab.bench.made_up import MadeUpModel

METHODS = ("unispec", "recycling", "suffix", "lookup", "dictionary", "foresight", "auto")
SIZES = (60, 120)
TEMPERATURES = (0.0, 0.8)
ROUNDS = 200
ROWS = (1, 9, 17, 33, 64)
REPEATS = 7
FORWARDS = 15
"""Rounds of a model at most; a forward takes a thousand drafts' time."""
LAW_REPEATS = 40


def add(commands: Subparsers) -> None:
    parser: Parser = commands.add_parser(
        "draft-cost",
        run=run,
        help="microseconds of a draft and milliseconds of reading logits, without a model",
        description=(
            "Times what a round costs beside the model, in a vocabulary of 151,936 tokens and behind a text of 4,096: "
            "drafting and learning of each method, at temperature 0 and with the public noise at 0.8, and reading the "
            "best tokens out of rows of logits. Prints medians. No model runs unless --model names one: then its "
            "forwards of a plain row and of drafts of each method's size are timed between the drafts, and drafting "
            "and reading are reported as a share of the round. With --forwards only forwards of the model are timed, "
            "over one row and over drafts, along every path, beside transformers' own and the bandwidth of the memory."
        ),
    )
    parser.argument("--rounds", "N", f"rounds timed (default: {ROUNDS})", int, default=ROUNDS)
    parser.argument("--model -m", "MODEL", "time rounds of this model, too, named as elsewhere")
    parser.add_trust()
    parser.add_place()
    parser.add_quantize()
    add_forwards(parser)
    parser.add_json()


def run(options: argparse.Namespace) -> int:
    check_counts(options, "rounds")
    if options.model is None and (options.dtype or options.device):
        raise InputError("--dtype and --device say how a model is loaded; name one with --model")
    if options.forwards:
        return time_forwards(options)
    import torch

    from paceline_lab.bench import draft_cost, made_up

    made = draft_cost.made_for(options.rounds)
    with _makers(made) as makers:
        found = draft_cost.costs(makers, sizes=SIZES, temperatures=TEMPERATURES, rounds=options.rounds, made=made)
    read = draft_cost.reading(ROWS, repeats=REPEATS)
    drafts = [
        {
            "method": name,
            "temperature": temperature,
            "budget": size,
            "nodes": round(cost.nodes, 1),
            "microseconds": round(1e6 * cost.draft, 1),
            "microseconds_propose": round(1e6 * cost.propose, 1),
            "microseconds_observe": round(1e6 * cost.observe, 1),
        }
        for temperature, by_size in found.items()
        for size, by_method in by_size.items()
        for name, cost in by_method.items()
    ]
    result: dict[str, Any] = {
        "microseconds": {one["method"]: one["microseconds"] for one in drafts[: len(METHODS)]},
        "read_top_k": {
            dtype: {str(rows): round(milliseconds, 3) for rows, milliseconds in by_rows.items()}
            for dtype, by_rows in read.items()
        },
        "drafts": drafts,
        "law": draft_cost.law_costs(made_up.VOCABULARY, LAW_REPEATS),
        "vocabulary": made_up.VOCABULARY,
        "context": draft_cost.CONTEXT,
        "best": made_up.BEST,
        "text": made_up.TEXT,
        "rounds": options.rounds,
        "threads": torch.get_num_threads(),
    }
    say("\n\n".join(_blocks(result)), flush=True)
    if options.model is not None:
        result["rounds_of_a_model"] = shares = _rounds(options)
        say("\n" + "\n\n".join(_share_blocks(shares)))
    if options.json:
        print_json(result)
    return 0


@contextmanager
def _makers(made: MadeUpModel, tokenizer: str = "") -> Iterator[dict[str, Callable[[], Drafter]]]:
    """Methods by their names; those that take a dictionary have one of the made-up text."""
    from paceline.drafters import make_drafter
    from paceline_lab.bench.made_up import write_dictionary

    with workplace() as folder:
        file = folder / "made-up.dict"
        write_dictionary(file, made.text, len(made.ids), tokenizer)
        specs = {"dictionary": f"dictionary:file='{file}'", "auto": f"auto:dictionary='{file}'"}
        yield {name: partial(make_drafter, specs.get(name, name)) for name in METHODS}


def _rounds(options: argparse.Namespace) -> dict[str, Any]:
    """The shares of every method in the rounds of a model."""
    from paceline.drafters import make_drafter
    from paceline.drafters.asking import fit
    from paceline.drafters.networks.redrafter.drafter import shipped_head
    from paceline_lab.bench import draft_cost

    lm = load_model(options)
    rounds, methods, plain = min(options.rounds, FORWARDS), list[dict[str, Any]](), dict[str, float]()
    made = draft_cost.made_for_model(lm.target, rounds)
    for temperature in TEMPERATURES:
        drafters = {}
        with _makers(made, "" if lm.vocabulary is None else lm.vocabulary.fingerprint) as makers:
            if shipped_head(lm.target.name) is not None:
                makers["redrafter"] = partial(make_drafter, "redrafter")
            for name, make in makers.items():
                drafter = make()
                fit(drafter, lm.target, lm.vocabulary)
                drafters[name] = drafter, _best_size(lm.target, name) or drafter.nodes
        found = draft_cost.shares(lm.target, drafters, temperature=temperature, rounds=rounds, made=made)
        plain[f"{temperature:g}"] = round(1e3 * found.pop(draft_cost.PLAIN).forward, 3)
        methods += [
            {
                "method": name,
                "temperature": temperature,
                "budget": size,
                "calibrated": _best_size(lm.target, name) is not None,
                "nodes": round(found[name].nodes, 1),
                "milliseconds_forward": round(1e3 * found[name].forward, 3),
                "milliseconds_draft": round(1e3 * found[name].draft, 3),
                "milliseconds_read": round(1e3 * found[name].read, 3),
                "share": round(found[name].share, 4),
            }
            for name, (_, size) in drafters.items()
        ]
    return {
        **describe(lm),
        "rounds": rounds,
        "context": draft_cost.behind(lm.target),
        "milliseconds_plain_forward": plain,
        "methods": methods,
    }


def _best_size(target: Target, spec: str) -> int | None:
    """The size that ``paceline calibrate`` found for the method here, if it was asked and found that drafts pay."""
    from paceline.planning.stored import find
    from paceline.targets.setup import setup_of

    profile = find(setup_of(target))
    method = None if profile is None else profile.method(spec)
    return method.choices[0].nodes or None if method is not None and method.enough else None


def _share_blocks(found: Mapping[str, Any]) -> Iterator[str]:
    plain = ", ".join(f"{ms:.1f} ms at temperature {at}" for at, ms in found["milliseconds_plain_forward"].items())
    text = (
        f"Rounds of {found['model']} ({found['dtype']} on {found['device']}) behind {found['context']} tokens, medians "
        f"of {found['rounds']} in turns: a forward of one row takes {plain}. Drafting and reading the best tokens of "
        "all rows, as a share of the round they make with the forward; * at the size that 'paceline calibrate' found, "
        "else at the method's own."
    )
    yield textwrap.fill(text, TEXT_COLUMNS)
    head = ("", "temperature", "budget", "nodes", "forward", "draft", "read", "share", "")
    yield table(head, map(_share_row, found["methods"]), left=(0, 8))


def _share_row(one: Mapping[str, Any]) -> tuple[str, ...]:
    times = (f"{one[f'milliseconds_{key}']:.2f}" for key in ("forward", "draft", "read"))
    size = f"{one['budget']}{'*' if one['calibrated'] else ''}"
    return one["method"], f"{one['temperature']:g}", size, f"{one['nodes']:.0f}", *times, f"{one['share']:.1%}", "ms"


def _blocks(result: Mapping[str, Any]) -> Iterator[str]:
    text = (
        f"Microseconds a round, medians of {result['rounds']}; {result['vocabulary']:,} tokens in the vocabulary, "
        f"{result['context']:,} in the text ({result['text']}). Proposing and learning; with the nodes proposed. "
        "What learns from rows has seen one for every token of the vocabulary; the dictionary is of this text."
    )
    yield textwrap.fill(text, TEXT_COLUMNS)
    head = ("", "temperature", "budget", "nodes", "propose", "learn", "together", "")
    yield table(head, map(_draft_row, result["drafts"]), left=(0, 7))
    best, threads = result["best"], counted(result["threads"], "thread")
    yield f"Milliseconds to read the {best} best tokens and the normaliser of so many rows, {threads}:"
    yield _by_rows("rows", result["read_top_k"])
    yield "Milliseconds of the law and the choice of a token, by how certain the row is:"
    yield _by_rows("", result["law"])


def _by_rows(corner: str, found: Mapping[str, Mapping[str, float]]) -> str:
    head = (corner, *next(iter(found.values())), "")
    rows = ((name, *(f"{took:.2f}" for took in row.values()), "ms") for name, row in found.items())
    return table(head, rows, left=(0, len(head) - 1))


def _draft_row(one: Mapping[str, Any]) -> tuple[str, ...]:
    times = (f"{one[key]:.0f}" for key in ("microseconds_propose", "microseconds_observe", "microseconds"))
    return one["method"], f"{one['temperature']:g}", str(one["budget"]), f"{one['nodes']:.0f}", *times, "us"
