"""``paceline bench draft-cost``: what drafting costs beside the model, without a model."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from paceline.cli.common import Subparsers, add_json, aligned, print_json

METHODS = ("unispec", "recycling", "suffix", "lookup")
SIZES = (60, 120)
TEMPERATURES = (0.0, 0.8)
ROUNDS = 200
ROWS = (1, 9, 17, 33, 64)
REPEATS = 7
WIDTH = 100


def add(commands: Subparsers) -> None:
    parser = commands.add_parser(
        "draft-cost",
        help="microseconds of a draft and milliseconds of reading logits, without a model",
        description=(
            "Times what a round costs beside the model, in a vocabulary of 151,936 tokens and behind a text of 4,096: "
            "drafting and learning of each method, at temperature 0 and with the public noise at 0.8, and reading the "
            "best tokens out of rows of logits. Medians; no model runs."
        ),
        allow_abbrev=False,
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help=f"rounds timed (default: {ROUNDS})")
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    if options.rounds < 1:
        raise ValueError(f"--rounds must be at least 1, not {options.rounds}")
    import torch

    from paceline.drafters import make_drafter
    from paceline.measure import draft_cost

    makers = {name: (lambda name=name: make_drafter(name)) for name in METHODS}
    found = draft_cost.costs(makers, sizes=SIZES, temperatures=TEMPERATURES, rounds=options.rounds)
    read = draft_cost.reading(ROWS, repeats=REPEATS)
    first = found[TEMPERATURES[0]][SIZES[0]]
    result = {
        "microseconds": {name: round(cost.microseconds, 1) for name, cost in first.items()},
        "read_top_k": {
            dtype: {str(rows): round(milliseconds, 3) for rows, milliseconds in by_rows.items()}
            for dtype, by_rows in read.items()
        },
        "drafts": [
            {
                "method": name,
                "temperature": temperature,
                "budget": size,
                "nodes": round(cost.nodes, 1),
                "microseconds": round(cost.microseconds, 1),
                "microseconds_propose": round(cost.propose, 1),
                "microseconds_observe": round(cost.observe, 1),
            }
            for temperature, by_size in found.items()
            for size, by_method in by_size.items()
            for name, cost in by_method.items()
        ],
        "vocabulary": draft_cost.VOCABULARY,
        "context": draft_cost.CONTEXT,
        "best": draft_cost.BEST,
        "text": draft_cost.TEXT,
        "rounds": options.rounds,
        "threads": torch.get_num_threads(),
    }
    print("\n".join(_lines(result)))
    if options.json:
        print_json(result)
    return 0


def _lines(result: Mapping[str, Any]) -> Iterator[str]:
    told = (
        f"Microseconds a round, medians of {result['rounds']}; {result['vocabulary']:,} tokens in the vocabulary, "
        f"{result['context']:,} in the text ({result['text']}). Proposing and learning; with the nodes proposed. "
        "What learns from rows has seen one for every token of the vocabulary."
    )
    yield from textwrap.wrap(told, WIDTH)
    yield ""
    yield from aligned(list(_draft_rows(result["drafts"])))
    yield ""
    yield from textwrap.wrap(
        f"Milliseconds to read the {result['best']} best tokens and the normaliser of so many rows, "
        f"{result['threads']} thread{'s'[: result['threads'] > 1]}:",
        WIDTH,
    )
    yield ""
    yield from aligned(list(_read_rows(result["read_top_k"])))


def _draft_rows(drafts: list[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    yield "", "temperature", "budget", "nodes", "propose", "learn", "together", ""
    for one in drafts:
        times = (f"{one[key]:.0f}" for key in ("microseconds_propose", "microseconds_observe", "microseconds"))
        yield one["method"], f"{one['temperature']:g}", str(one["budget"]), f"{one['nodes']:.0f}", *times, "us"


def _read_rows(read: Mapping[str, Mapping[str, float]]) -> Iterator[tuple[str, ...]]:
    counts = list(next(iter(read.values())))
    yield "rows", *counts, ""
    for dtype, by_rows in read.items():
        yield dtype, *(f"{milliseconds:.2f}" for milliseconds in by_rows.values()), "ms"
