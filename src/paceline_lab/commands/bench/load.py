"""``paceline bench load``: servers under some clients."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paceline.cli.arguments import Parser, Subparsers
from paceline.cli.options import PROMPTS, check_counts, json_object
from paceline.cli.output import print_json, progress, say, table
from paceline.errors import InputError

if TYPE_CHECKING:
    from paceline_lab.bench.load import Asked, Load

CLIENTS = (1, 2, 4, 8, 16)


def add(commands: Subparsers) -> None:
    parser: Parser = commands.add_parser(
        "load",
        run=run,
        help="servers of OpenAI's protocol under some clients",
        description=(
            "Ask servers that are running, ours or others, with 1, 2, 4 ... clients at the same time: tokens per "
            "second of all clients, milliseconds to the first token and per token after it. Each SERVER is "
            "NAME=ADDRESS, and --body NAME gives its requests more fields, so one server can be asked in two ways: "
            "paceline bench load plain=http://127.0.0.1:8000 auto=http://127.0.0.1:8000 "
            "--body plain '{\"speculative\": false}'. The servers take turns in every round. Ratios are to the first."
        ),
    )
    parser.argument("servers", "NAME=ADDRESS", "a server, such as ours=http://127.0.0.1:8000", nargs="+")
    text = "more fields of the requests to one of them, as JSON; may be repeated"
    parser.add_argument("--body", nargs=2, metavar=("NAME", "JSON"), action="append", default=[], help=text)
    parser.argument("--api-key", "KEY", "the key of the servers")
    default = " ".join(map(str, CLIENTS))
    parser.several("--clients", "N", f"numbers of clients (default: {default})", int, default=list(CLIENTS))
    parser.argument("--requests", "N", "requests of each client in each round (default: 2)", int, default=2)
    parser.argument("--rounds", "N", "rounds (default: 3)", int, default=3)
    parser.argument("--temperature", "T", "of all requests (default: 0.8)", float, default=0.8)
    parser.add_length(64)
    parser.add_prompts()
    parser.add_json()


def run(options: argparse.Namespace) -> int:
    from paceline_lab.bench.load import load

    check_counts(options, "clients", "requests", "rounds", "max_new_tokens")
    contestants = asked_of(options)
    with progress("asking") as advance:
        loads = load(
            contestants,
            options.prompt or list(PROMPTS.values()),
            clients=list(dict.fromkeys(options.clients)),
            tokens=options.max_new_tokens,
            requests=options.requests,
            rounds=options.rounds,
            progress=advance,
        )
    say(_table(loads, contestants[0].name))
    if options.json:
        print_json({"loads": [one.as_dict() for one in loads]})
    return 0


def asked_of(options: argparse.Namespace) -> list[Asked]:
    """The contestants."""
    from paceline_lab.bench.load import Asked

    bodies = _bodies(options.body)
    found = list[Asked]()
    for server in options.servers:
        name, equals, url = server.partition("=")
        if not equals or not name:
            raise InputError(f"a server is NAME=ADDRESS, such as ours=http://127.0.0.1:8000, not {server!r}")
        body = {"temperature": options.temperature, **bodies.pop(name, {})}
        found.append(Asked(name, url, body, options.api_key))
    if bodies:
        raise InputError(f"--body names {next(iter(bodies))!r}, which is no server here")
    if len({one.name for one in found}) < len(found):
        raise InputError("two servers have one name; give each another")
    return found


def _bodies(given: Sequence[Sequence[str]]) -> dict[str, Mapping[str, Any]]:
    try:
        return {name: json_object(text) for name, text in given}
    except argparse.ArgumentTypeError as error:
        raise InputError(f"--body: {error}") from None


def _table(loads: Sequence[Load], base: str) -> str:
    """A table with a line for each contestant and number of clients."""
    rows = [one.as_dict() for one in loads]
    bases = {row["clients"]: row["tokens_per_second"] for row in rows if row["name"] == base}
    head = ["server", "clients", "tokens/s", "ratio", "first ms p50", "p99", "token ms p50", "p99"]
    cells = [
        [
            row["name"],
            str(row["clients"]),
            f"{row['tokens_per_second']:.1f}",
            f"{row['tokens_per_second'] / bases[row['clients']]:.2f}",
            *(f"{row[name]:.1f}" for name in ("first_ms_p50", "first_ms_p99", "token_ms_p50", "token_ms_p99")),
        ]
        for row in rows
    ]
    return table(head, cells)
