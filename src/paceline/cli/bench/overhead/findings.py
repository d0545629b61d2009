"""What the command tells: a table for each model, and everything as plain data."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import transformers

from paceline import __version__
from paceline.bench.overhead import COUNTERPARTS, Contest
from paceline.bench.statistics import Estimate
from paceline.cli.bench.overhead.sides import INSIDE, OURS, THEIRS
from paceline.cli.common import aligned

LOOPING = 0.2
"""Share of repeated 8-grams from which texts count as loops."""
STABLE = 1.3
"""Ratio of slowest to fastest time for the same text up to which a measurement counts as stable."""
WIDTH = 100
HOW = (
    "Greedy, past any end of text, so that all sides write the same. Calls are timed whole, from the prompt's ids to "
    "the finished ids, reading the prompt included, with a new cache each; every text is written once before that. "
    "Ours: as Paceline loads a model, weights packed where that helps. Theirs: transformers' generate on the same "
    "weights in ordinary layers. Inside: our loop in that generate, on their very model, by custom_generate."
)


@dataclass(frozen=True)
class Part:
    """What was found on one model."""

    name: str
    """The short one that ratios are called by."""
    facts: dict[str, Any]
    contests: list[Contest]
    prompts: int

    @property
    def sides(self) -> list[str]:
        return [side.name for side in self.contests[0].sides]

    def rows(self) -> Iterator[dict[str, Any]]:
        """Plain data, a row per method."""
        for contest in self.contests:
            partings = {side: contest.parting(side, THEIRS) for side in self.sides}
            yield {
                "method": contest.method,
                "counterpart": COUNTERPARTS[contest.method],
                "model": self.facts["model"],
                "ratios": {side: asdict(contest.ratio(side, THEIRS)) for side in self.sides if side != THEIRS},
                "ratios_of_totals": {s: contest.ratio_of_totals(s, THEIRS) for s in self.sides if s != THEIRS},
                "tokens_per_second": {side: contest.speed(side) for side in self.sides},
                "tokens_per_round": {side: contest.tokens_per_round(side) for side in self.sides},
                "texts_equal": all(parting is None for parting in partings.values()),
                "parts_at": {side: parting.as_dict() for side, parting in partings.items() if parting is not None},
                "repeated_8grams": contest.repetition(THEIRS),
                "spread": contest.spread,
                "turns": len(contest.turns),
            }


def how() -> str:
    """What the numbers are of."""
    return textwrap.fill(HOW, WIDTH)


def told(part: Part) -> str:
    """A model's table, and what must be known to read it."""
    return "\n".join(_lines(part))


def _lines(part: Part) -> Iterator[str]:
    facts = part.facts
    threads = f"{facts['threads']} {'thread' if facts['threads'] == 1 else 'threads'}"
    yield f"{facts['ballast'] or facts['model']}"
    yield f"{facts['dtype']}  weights {facts['fingerprint']} on all sides  {facts['device']}, {threads}"
    yield f"torch {torch.__version__}, transformers {transformers.__version__} with {facts['attention']} attention"
    yield from aligned([_head(part.sides), *(_line(contest, part.sides) for contest in part.contests)])
    yield from textwrap.wrap("; ".join(_notes(part)), WIDTH)


def _head(sides: Sequence[str]) -> tuple[str, ...]:
    ratios = (f"{side}/{THEIRS}" for side in sides if side != THEIRS)
    return ("tokens/s", *sides, *ratios, "tokens/round", "texts")


def _line(contest: Contest, sides: Sequence[str]) -> tuple[str, ...]:
    equal = all(contest.parting(side, THEIRS) is None for side in sides)
    return (
        contest.method,
        *(f"{contest.speed(side):.1f}" for side in sides),
        *(_interval(contest.ratio(side, THEIRS)) for side in sides if side != THEIRS),
        " : ".join(f"{contest.tokens_per_round(side):.2f}" for side in (OURS, THEIRS)),
        "equal" if equal else "DIFFER",
    )


def _interval(found: Estimate) -> str:
    return f"{found.value:.2f}" + (f" [{found.low:.2f}, {found.high:.2f}]" if found.bounded else "")


def _notes(part: Part) -> Iterator[str]:
    rows = list(part.rows())
    tokens = {len(call.tokens) for contest in part.contests for side in part.sides for call in contest.calls(side)}
    prompts = f"{part.prompts} {'prompt' if part.prompts == 1 else 'prompts'}"
    yield f"medians over {rows[0]['turns']} turns, 95% intervals"
    yield f"{' or '.join(map(str, sorted(tokens)))} tokens from each of {prompts}"
    repeated = max(row["repeated_8grams"] for row in rows)
    yield f"repeated 8-grams {repeated:.0%}"
    if repeated > LOOPING:
        yield "the texts loop, which flatters lookup on all sides"
    for row in rows:
        for side, place in row["parts_at"].items():
            where = f"token {place['token'] + 1} of prompt {place['prompt'] + 1}"
            yield f"{row['method']}: the text of {side} is not {THEIRS}, from {where} on"
    if not all(row["texts_equal"] for row in rows):
        name, dtype = part.facts["model"], part.facts["dtype"]
        yield f"'paceline check --model {name} --dtype {dtype}' tells near ties of the arithmetic from bugs"
    spreads = [row["spread"] for row in rows if row["spread"] is not None]
    if not spreads:
        yield "one pass, so how steady the speeds are is not known"
    elif max(spreads) > STABLE:
        yield f"unstable: times of the same text differ by {max(spreads):.1f}x"


def summary(parts: Sequence[Part], options: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """Everything as plain data; ratios by method and model, ours over theirs, come first."""
    rows = {f"{row['method']}@{part.name}": row for part in parts for row in part.rows()}

    def ratios(side: str) -> dict[str, dict[str, float]]:
        return {key: row["ratios"][side] for key, row in rows.items()}

    return {
        "ratios": {key: ratio["value"] for key, ratio in ratios(OURS).items()},
        "intervals": {key: [ratio["low"], ratio["high"]] for key, ratio in ratios(OURS).items()},
        "inside_ratios": {key: ratio["value"] for key, ratio in ratios(INSIDE).items()},
        "inside_intervals": {key: [ratio["low"], ratio["high"]] for key, ratio in ratios(INSIDE).items()},
        "rows": rows,
        "models": {part.name: part.facts for part in parts},
        "settings": {
            name: getattr(options, name) for name in ("dtype", "num_draft_tokens", "max_new_tokens", "passes")
        },
        "prompts": options.prompt,
        "versions": {"paceline": __version__, "torch": torch.__version__, "transformers": transformers.__version__},
        "seconds": seconds,
    }
