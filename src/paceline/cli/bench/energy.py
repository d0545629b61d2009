"""``paceline bench energy``: joules per token from a power and a speed, and which meters work here."""

from __future__ import annotations

import argparse
import math
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from paceline.cli.common import Subparsers, add_json, aligned, print_json
from paceline.cli.streams import say

TEXTS, TOKENS = 50, 128
WIDTH = 100
TABLES = ("bielik",)


def add(commands: Subparsers) -> None:
    parser = commands.add_parser(
        "energy",
        help="joules per token from a power and a speed, and which meters work here",
        description=(
            "Computes what a token costs at a stated power and speed, sets it beside published figures, and tells "
            "which energy meters work on this machine. 'bench run' measures with the first of them that does."
        ),
        allow_abbrev=False,
    )
    parser.add_argument("--watts", type=float, metavar="W", help="the power while it writes")
    parser.add_argument("--tokens-per-second", type=float, metavar="R", help="how fast it writes")
    parser.add_argument("--texts", type=int, default=TEXTS, metavar="N", help=f"how many texts (default: {TEXTS})")
    parser.add_argument("--tokens", type=int, default=TOKENS, metavar="N", help=f"tokens of each (default: {TOKENS})")
    parser.add_argument(
        "--table", metavar="TABLE", help="published figures beside it: bielik, an 11B model in 8 bits on six machines"
    )
    parser.add_argument("--device", default="cpu", metavar="DEVICE", help="what meters are for (default: cpu)")
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    _check(options)
    from paceline.bench.energy import working

    meters = working(options.device)
    found = _computed(options) | {"meters": meters}
    if options.table is not None:
        found["table"] = _table(options.table)
    say("\n\n".join("\n".join(part) for part in _parts(options, found) if part))
    if options.json:
        print_json(found)
    return 0


def _check(options: argparse.Namespace) -> None:
    for name in ("watts", "tokens_per_second"):
        given = getattr(options, name)
        if given is not None and not (given > 0 and math.isfinite(given)):
            raise ValueError(f"--{name.replace('_', '-')} must be more than 0, not {given:g}")
    for name in ("texts", "tokens"):
        if getattr(options, name) < 1:
            raise ValueError(f"--{name} must be at least 1, not {getattr(options, name)}")
    if (options.watts is None) != (options.tokens_per_second is None):
        lacking = "--watts W" if options.watts is None else "--tokens-per-second R"
        raise ValueError(f"energy per token is a power over a speed; give {lacking}, too")
    if options.table is not None and options.table not in TABLES:
        raise ValueError(f"unknown table {options.table!r}; choose {', '.join(TABLES)}")


def _computed(options: argparse.Namespace) -> dict[str, Any]:
    from paceline.bench.energy.recipes import joules, joules_per_token, watt_hours

    if options.watts is None:
        return {}
    total = joules(options.watts, options.tokens_per_second, options.texts, options.tokens)
    return {
        "watts": options.watts,
        "tokens_per_second": options.tokens_per_second,
        "joules_per_token": joules_per_token(options.watts, options.tokens_per_second),
        "texts": options.texts,
        "tokens": options.tokens,
        "joules": total,
        "watt_hours": watt_hours(total),
        "measured": False,
    }


def _table(name: str) -> dict[str, Any]:
    from paceline.bench.energy.recipes import TABLES as PUBLISHED

    platforms, notes = PUBLISHED[name]
    rows = [
        {
            "platform": row.name,
            "kind": row.kind,
            "watts": row.watts,
            "bandwidth": row.bandwidth,
            "tokens_per_second": row.tokens_per_second,
            "speed_measured": row.measured,
            "joules_per_token": row.joules_per_token,
            "printed": row.printed,
            "agrees": row.agrees,
        }
        for row in platforms
    ]
    return {"name": name, "rows": rows, "notes": list(notes)}


def _parts(options: argparse.Namespace, found: Mapping[str, Any]) -> Iterator[list[str]]:
    yield list(_arithmetic(found)) if options.watts is not None else []
    if "table" in found:
        yield [*aligned(list(_table_rows(found))), *_notes(found["table"]["notes"])]
    yield list(_meters(found["meters"]))


def _arithmetic(found: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"{found['watts']:g} W / {found['tokens_per_second']:g} tokens/s = {found['joules_per_token']:.3g} J/token, "
        "an estimate from a stated power"
    )
    yield (
        f"{found['texts']} texts x {found['tokens']} tokens = {found['joules'] / 1000:,.4g} kJ = "
        f"{found['watt_hours']:,.3g} Wh"
    )


def _table_rows(found: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    yield "", "W", "GB/s", "tokens/s", "J/token", "printed", "speed"
    for row in found["table"]["rows"]:
        numbers = (f"{row['watts']:g}", f"{row['bandwidth']:g}", f"{row['tokens_per_second']:g}")
        told = "measured" if row["speed_measured"] else "estimated"
        yield row["platform"], *numbers, f"{row['joules_per_token']:.2f}", f"{row['printed']:.1f}", told
    if "watts" in found:
        numbers = (f"{found['watts']:g}", "", f"{found['tokens_per_second']:g}")
        yield "this machine", *numbers, f"{found['joules_per_token']:.2f}", "", "as stated"


def _notes(notes: list[str]) -> Iterator[str]:
    for note in ("powers are rated ones, none was measured", *notes):
        yield from textwrap.wrap(f"- {note}", WIDTH, subsequent_indent="  ")


def _meters(meters: Mapping[str, str | None]) -> Iterator[str]:
    yield "Meters on this machine:"
    for kind, obstacle in meters.items():
        told = "works" if obstacle is None else f"no: {obstacle}"
        yield from textwrap.wrap(f"  {kind:13} {told}", WIDTH, subsequent_indent=" " * 16)
    yield "  stated        with --watts W: an estimate"
