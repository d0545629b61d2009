"""``paceline bench run``: a suite written by several methods and other libraries in turns, kept in a run directory."""

from __future__ import annotations

import argparse
import math
import os
import re
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.cli.bench.suite import add_choice
from paceline.cli.bench.surroundings import add_threads, hushed, threads
from paceline.cli.common import Subparsers, add_draft_model, add_json, add_model, draft_model, print_json, progress
from paceline.cli.streams import say
from paceline.files import Terminated

if TYPE_CHECKING:
    from paceline.bench.run.directory import Run

SUITE = "continuation:en"
RUNS = Path("runs")
METHODS = ("plain", "lookup", "assistant", "auto")
TOKENS = 128
DICTSPEC_BATCH = 5
BUNDLED_TEMPERATURE = 0.8
"""The bundled models fall into loops when they are greedy, which flatters methods that look things up."""


def add(commands: Subparsers) -> None:
    parser = commands.add_parser(
        "run",
        help="write a suite with several methods in turns and keep everything that happened",
        description=(
            "Writes the prompts of a suite with every method and every other library that is asked for, in turns, and "
            "keeps each text with its rounds and times in a run directory. The same command goes on with a run that "
            "was interrupted. 'bench report' makes a page of it, 'bench compare' holds runs against each other. Exit "
            "code 1 means that a text differs from plain decoding where it must not."
        ),
        allow_abbrev=False,
    )
    _add_options(parser)
    parser.set_defaults(run=run)


def options_of(arguments: list[str]) -> argparse.Namespace:
    """What these arguments of the command say, filled in and found right."""
    parser = argparse.ArgumentParser(prog="paceline bench run", allow_abbrev=False)
    _add_options(parser)
    options = parser.parse_args(arguments)
    _check(options)
    return options


def _add_options(parser: argparse.ArgumentParser) -> None:
    _add_what(parser)
    _add_how(parser)
    _add_where(parser)


def _add_what(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--suite",
        default=SUITE,
        metavar="SUITE",
        help=(
            "spec-bench, multi-spec-bench, continuation:LANG, dictspec, alpaca-eval, prompts:FILE.jsonl or "
            f"replay:FILE; 'paceline bench suite' lists them (default: {SUITE})"
        ),
    )
    add_choice(parser)
    add_model(parser)
    add_draft_model(parser)
    parser.add_argument(
        "--methods",
        nargs="+",
        metavar="SPEC",
        help=(
            "methods to measure, with commas between them or each as an argument of its own; plain always comes first "
            f"(default: {','.join(METHODS)}; without a draft model no assistant). SPEC@PLANNER gives one "
            "a planner of its own, as in lookup@fixed:8"
        ),
    )
    parser.add_argument(
        "--peers",
        nargs="+",
        metavar="PEER",
        help=(
            "other libraries on the same weights: transformers, transformers-lookup, transformers-assisted, "
            "transformers-uag, and mlx-lm, mlx-lm-assisted, llama-cpp where they are installed (default: none)"
        ),
    )


def _add_how(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--num-draft-tokens", type=int, metavar="K", help="draft tokens per round (default: as suits each method)"
    )
    parser.add_argument(
        "--planner",
        metavar="P",
        help="how large drafts are, for methods that do not say (default: each method's own; see 'generate')",
    )
    parser.add_argument("--rule", default="coupled", metavar="RULE", help="coupled or rejection (default: coupled)")
    parser.add_argument(
        "--max-new-tokens", type=int, metavar="N", help=f"tokens per text (default: {TOKENS}; all of a text to replay)"
    )
    parser.add_argument("--ignore-eos", action="store_true", help="go on past the end-of-text token")
    parser.add_argument(
        "--temperature",
        type=float,
        metavar="T",
        help=f"0 is greedy (default: 0; {BUNDLED_TEMPERATURE:g} on the bundled models, which loop when greedy)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="same seed, same texts (default: 0)")
    follow = parser.add_mutually_exclusive_group()
    follow.add_argument(
        "--follow",
        action="store_true",
        default=None,
        help="all methods walk plain decoding's text, so that all do the same work (default in half precision)",
    )
    follow.add_argument(
        "--free",
        dest="follow",
        action="store_false",
        help="each writes on its own and is compared with plain decoding (default otherwise)",
    )
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="write everything N times (default: 1)")
    parser.add_argument(
        "--warm", action="store_true", help="methods keep what they learn from prompt to prompt (default: they forget)"
    )
    parser.add_argument(
        "--batch", type=int, metavar="N", help=f"write N texts at once (default: 1; {DICTSPEC_BATCH} for dictspec)"
    )
    parser.add_argument(
        "--qps",
        type=float,
        metavar="R",
        help="let R prompts a second arrive at random moments, and measure how long each waits for its tokens",
    )
    add_threads(parser)


def _add_where(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--energy",
        metavar="METER",
        help="nvml, rapl, powermetrics, stated or none (default: the first that works here)",
    )
    parser.add_argument(
        "--watts", type=float, metavar="W", help="the power to estimate energy from where there is no meter"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"the run's directory (default: {RUNS}/SUITE--MODEL)")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    _check(options)
    from paceline.bench.warnings import warnings
    from paceline.bench.run.record import Verdict
    from paceline.bench.summary import Summary
    from paceline.cli.bench.run import findings, stage

    started = time.monotonic()
    with (
        threads(options.threads),
        hushed(),
        progress("loading") as advance,
        stage.referee(options, advance) as referee,
    ):
        written = len(referee.run.records)
        try:
            referee.sit()
        except (KeyboardInterrupt, Terminated):
            say(f"\n{_kept(referee.run)} The same command goes on.", file=sys.stderr)
            raise
    summary = Summary(referee.run)
    if written == len(referee.run.records):
        say(f"{referee.run.path} was finished before; to measure again, give another --out.\n")
    say(findings.told(summary))
    say(f"\n{_kept(referee.run)} Next: paceline bench report {shlex.quote(str(referee.run.path))} --out report")
    if options.json:
        took = {"out": str(referee.run.path), "seconds": time.monotonic() - started}
        print_json({**took, **summary.as_dict(), "warnings": warnings(summary)})
    warm_up = (found.get("verdict") for found in referee.run.about.warm_up.values())
    return int(Verdict.BUG in {*warm_up, *(record.verdict for record in referee.run.records)})


def _kept(run: Run) -> str:
    count = len(run.records)
    return f"{count} {'text is' if count == 1 else 'texts are'} kept in {run.path}."


def _check(options: argparse.Namespace) -> None:
    """Tell mistakes before a model is loaded, and fill in what follows from the rest."""
    for name, least in (
        ("limit", 1),
        ("max_new_tokens", 1),
        ("num_draft_tokens", 1),
        ("repeat", 1),
        ("batch", 1),
        ("threads", 1),
    ):
        given = getattr(options, name)
        if given is not None and given < least:
            raise ValueError(f"--{name.replace('_', '-')} must be at least {least}, not {given}")
    for name in ("qps", "watts"):
        given = getattr(options, name)
        if given is not None and not 0 < given < math.inf:
            raise ValueError(f"--{name} must be more than 0 and finite, not {given:g}")
    if options.threads is not None and options.threads > (cores := os.cpu_count() or options.threads):
        raise ValueError(f"--threads must be at most {cores}, for so many processors are here, not {options.threads}")
    if options.rule not in ("coupled", "rejection"):
        raise ValueError(f"unknown rule {options.rule!r}; choose coupled or rejection")
    options.draft_model = draft_model(options)
    options.methods = _methods(options)
    options.peers = _listed(options.peers or [])
    if options.temperature is None:
        from paceline.targets.pocket.open import is_bundled

        options.temperature = BUNDLED_TEMPERATURE if is_bundled(options.model) else 0.0
    if options.max_new_tokens is None and not options.suite.startswith("replay:"):
        options.max_new_tokens = TOKENS
    if options.batch is None:
        options.batch = DICTSPEC_BATCH if options.suite == "dictspec" else 1
    if options.out is None:
        options.out = RUNS / re.sub(r"[^\w.+-]+", "-", f"{options.suite}--{options.model}").strip("-")


def _methods(options: argparse.Namespace) -> list[str]:
    asked = _listed(options.methods or [",".join(m for m in METHODS if m != "assistant" or options.draft_model)])
    return list(dict.fromkeys(["plain", *asked]))


def _listed(given: list[str]) -> list[str]:
    """One argument is a list with commas, in which ``key=value`` belongs to what stands before it; several arguments
    are a spec each, so that one may be a fallback ``a,b``."""
    if len(given) != 1:
        return list(dict.fromkeys(given))
    found: list[str] = []
    for piece in given[0].split(","):
        if found and re.match(r"\s*\w+\s*=", piece):
            found[-1] += f",{piece}"
        elif piece.strip():
            found.append(piece.strip())
    return list(dict.fromkeys(found))
