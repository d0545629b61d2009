"""``paceline bench run``: a suite written by several methods and other libraries in turns, kept in a run directory."""

from __future__ import annotations

import argparse
import math
import os
import re
import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import astuple, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cli.arguments import Parser, Subparsers
from paceline.cli.options import check_counts, draft_model, inputs_of, load_model, temperature_of
from paceline.cli.output import bullets, counted, interval, print_json, progress, say, table
from paceline.errors import InputError, MissingPackage, need
from paceline.files import Terminated, check_apart
from paceline_lab.commands.bench.suite import add_choice

if TYPE_CHECKING:
    from paceline_lab.bench.run.directory import Run
    from paceline_lab.bench.summary import Figures, Summary

SUITE = "stories"
RUNS = Path("runs")
METHODS = ("plain", "lookup", "assistant", "auto")
TOKENS = 128
DICTSPEC_BATCH = 5
RATIOS = ("x plain [95%]", "ratio of means", "tokens/round", "accepted", "acceptance")
HEAD = ("", "tokens/s", *RATIOS, "first token", "text")
MEAN = "mean of tasks"
"""The column of runs with several tasks, each of which weighs the same in it."""


def add(commands: Subparsers) -> None:
    parser: Parser = commands.add_parser(
        "run",
        run=run,
        help="write a suite with several methods in turns and record every round",
        description=(
            "Writes the prompts of a suite with every method and every other library that is asked for, in turns, and "
            "keeps each text with its rounds and times in a run directory. The same command continues an interrupted "
            "run. 'bench report' makes a page of it, 'bench compare' compares runs. Exit code 1 means that a text "
            "differs from plain decoding where it must not."
        ),
    )
    _add_what(parser)
    _add_how(parser)
    parser.argument(
        "--energy", "METER", "nvml, rapl, powermetrics, stated or none (default: the first that works here)"
    )
    parser.argument("--watts", "W", "the power to estimate energy from where there is no meter", float)
    parser.argument("--out", "DIR", f"the run's directory (default: {RUNS}/SUITE--MODEL)", Path)
    parser.add_json()


def _add_what(parser: Parser) -> None:
    parser.argument(
        "--suite",
        "SUITE",
        "stories, spec-bench, multi-spec-bench, continuation:LANG, dictspec, alpaca-eval, prompts:FILE.jsonl or "
        f"replay:FILE; 'paceline bench suite' lists them (default: {SUITE})",
        default=SUITE,
    )
    add_choice(parser)
    parser.add_model()
    parser.add_ranks()
    parser.add_draft_model()
    parser.several(
        "--method",
        "SPEC",
        "methods to measure, with commas between them or as separate arguments; plain always comes first "
        f"(default: {','.join(METHODS)}; without a draft model no assistant). SPEC@PLANNER gives one "
        "another planner, as in lookup@fixed:8",
        dest="methods",
    )
    parser.several(
        "--peer",
        "PEER",
        "other libraries on the same weights: transformers, transformers-lookup, transformers-assisted, "
        "transformers-uag, and mlx-lm, llama-cpp, openvino, vllm where they are installed (default: none)",
        dest="peers",
    )


def _add_how(parser: Parser) -> None:
    parser.add_draft_length(None, "as suits each method")
    text = (
        "how large drafts are, for methods without @PLANNER: fixed:K, adaptive, calibrated, or default for what "
        "'generate' does (default: fixed at each method's own size, and adaptive for auto)"
    )
    parser.argument("--planner", "P", text)
    parser.argument("--rule", "RULE", "coupled or rejection (default: coupled)", default="coupled")
    parser.add_length(None, f"{TOKENS}; all of a text to replay")
    parser.add_ignore_eos()
    parser.add_temperature()
    parser.add_seed()
    follow = parser.add_mutually_exclusive_group()
    text = (
        "all methods follow the text that a prompt names, or else plain decoding's, so that all do the same work "
        "(default in half precision)"
    )
    follow.add_argument("--follow", action="store_true", default=None, help=text)
    text = "each method writes its own text, which is compared with plain decoding (default otherwise)"
    follow.add_argument("--free", dest="follow", action="store_false", help=text)
    parser.argument("--repeat", "N", "write everything N times (default: 1)", int, default=1)
    parser.flag("--warm", "methods keep what they learn from prompt to prompt (default: they forget)")
    parser.argument("--batch", "N", f"write N texts at once (default: 1; {DICTSPEC_BATCH} for dictspec)", int)
    text = "let R prompts a second arrive at random moments, and measure how long each waits for its tokens"
    parser.argument("--qps", "R", text, float)
    parser.add_threads()


def run(options: argparse.Namespace) -> int:
    check(options)
    lacking = _lacking(options)
    _say_missing(lacking)
    from paceline_lab.bench.machine import hushed, threads
    from paceline_lab.bench.run.record import TextVerdict
    from paceline_lab.bench.run.setup import RunOptions, opened

    started = time.monotonic()
    check_apart(options.out, inputs_of(options))
    asked = RunOptions(**{field.name: getattr(options, field.name) for field in fields(RunOptions)})
    how: dict[str, Any] = {"data": options.data, "energy": options.energy, "watts": options.watts}
    with (
        threads(options.threads),
        hushed(),
        progress("loading") as advance,
        opened(asked, options.model, lambda: load_model(options), options.out, **how, progress=advance) as referee,
    ):
        _say_missing({name: why for name, why in referee.run.about.missing.items() if name not in lacking})
        written = len(referee.run.records)
        try:
            referee.sit()
        except (KeyboardInterrupt, Terminated):
            say(f"\n{_kept(referee.run)} The same command continues it.", file=sys.stderr)
            raise
    if written == len(referee.run.records):
        say(f"{referee.run.path} was finished before; to measure again, give another --out.\n")
    found: dict[str, Any] = {"out": str(referee.run.path), "seconds": time.monotonic() - started}
    found |= _summary(referee.run)
    say(f"\n{_kept(referee.run)} Next: paceline bench report {shlex.quote(str(referee.run.path))} --out report")
    if options.json:
        print_json(found)
    warm_up = (found.get("verdict") for found in referee.run.about.warm_up.values())
    return int(TextVerdict.BUG in {*warm_up, *(record.verdict for record in referee.run.records)})


def _lacking(options: argparse.Namespace) -> dict[str, str]:
    """The peers that cannot take part, as far as that is known before anything is loaded, and why."""
    if not options.peers:
        return {}
    from paceline_lab.bench.peers import ALONE, why_missing

    together = options.batch > 1 or options.qps is not None
    found = {peer: ALONE if together else why_missing(peer) for peer in options.peers}
    return {peer: why for peer, why in found.items() if why}


def _say_missing(missing: dict[str, str]) -> None:
    for peer, why in missing.items():
        say(f"{peer} is missing, and the run goes on without it: {why}", file=sys.stderr)


def _summary(run: Run) -> dict[str, Any]:
    """Print what the run found, and return it as plain data. Measuring works without the packages that read runs."""
    try:
        need("pandas", "a summary", "bench")
    except MissingPackage as lacking:
        say(f"{lacking}; then: paceline bench compare {shlex.quote(str(run.path))}")
        return {}
    from paceline_lab.bench.summary import Summary
    from paceline_lab.bench.warnings import warnings

    summary = Summary(run)
    warned = warnings(summary)
    say("\n".join(_lines(summary, warned)))
    return {**summary.as_dict(), "warnings": warned}


def _kept(run: Run) -> str:
    count = len(run.records)
    return f"{counted(count, 'text')} {'is' if count == 1 else 'are'} kept in {run.path}."


def check(options: argparse.Namespace) -> None:
    """Refuse mistakes before a model is loaded, and fill in the defaults that depend on other options."""
    check_counts(options, "limit", "max_new_tokens", "num_draft_tokens", "repeat", "batch", "threads")
    for name in ("qps", "watts"):
        given = getattr(options, name)
        if given is not None and not 0 < given < math.inf:
            raise InputError(f"--{name} must be more than 0 and finite, not {given:g}")
    if options.threads is not None and options.threads > (cores := os.cpu_count() or options.threads):
        raise InputError(f"--threads must be at most {cores}, the number of processors, not {options.threads}")
    options.draft_model = draft_model(options)
    options.methods = _methods(options)
    options.peers = _listed(options.peers or [])
    options.temperature = temperature_of(options)
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


def _lines(summary: Summary, warnings: list[str]) -> Iterator[str]:
    """A table of all entries, and what must be known to read it."""
    about = summary.run.about
    model, recipe = about.model, about.recipe
    yield f"{model['ballast'] or model['model']}  {model['dtype']}  weights {model['fingerprint']}"
    how = (
        "followed: all methods follow plain decoding's text"
        if recipe["follow"]
        else "free: each method writes its own text"
    )
    place = f"{model['device']}, {counted(model['threads'], 'thread')}"
    yield f"{recipe['suite']}, temperature {recipe['temperature']:g}, {place}; {how}"
    yield ""
    found = [figures for entry in summary.entries if (figures := summary.figures(entry)) is not None]
    rows: list[tuple[str, ...]] = [HEAD, *map(_row, found)]
    if len(summary.tasks) > 1:
        means = [summary.means(figures.entry).speed_up for figures in found]
        cells = ["" if one is None else interval(*astuple(one)) for one in means]
        rows = [(*row[:3], cell, *row[3:]) for row, cell in zip(rows, [MEAN, *cells], strict=True)]
    yield table(rows[0], rows[1:], left=(0, len(rows[0]) - 1))
    yield from bullets(warnings)


def _row(figures: Figures) -> tuple[str, ...]:
    """No speeds where no time passed, as in a replay, or all tokens came at once."""
    first, timed = figures.seconds_first, bool(figures.tokens_per_second)
    ratios = (figures.speed_up, figures.speed_up_of_means)
    return (
        figures.entry,
        _number(figures.tokens_per_second, ".1f") if timed else "",
        *(interval(*astuple(ratio)) if timed and ratio is not None else "" for ratio in ratios),
        _number(figures.tokens_per_round, ".2f"),
        _number(figures.mean_accepted, ".2f"),
        _number(figures.acceptance_rate, ".1%"),
        "" if first is None or not first.value else f"{1000 * first.value:.0f} ms",
        ", ".join(f"{count} {verdict}" for verdict, count in figures.verdicts.items()),
    )


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
