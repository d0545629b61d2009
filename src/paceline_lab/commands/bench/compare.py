"""``paceline bench compare``: the methods of a run side by side, or runs against the first of them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.cli.arguments import Parser, Subparsers
from paceline.cli.output import bullets, counted, print_json, say, table
from paceline.errors import InputError, need

if TYPE_CHECKING:
    from paceline_lab.bench.compare import Between, Finding, Within
    from paceline_lab.bench.oracle import Oracle, Share
    from paceline_lab.bench.statistics import Estimate
    from paceline_lab.bench.summary import Summary

BEST = "*"
ALL = "all"
AT_ONCE = 5
"""Columns of a table."""


def add(commands: Subparsers) -> None:
    parser: Parser = commands.add_parser(
        "compare",
        run=run,
        help="methods of a run side by side, or runs against each other",
        description=(
            "One run: the speed-ups of its methods by task, with 95% intervals. Several runs: how the speed-ups of "
            "each stand to those of the first, prompt by prompt. A method is called faster or slower only where "
            "its interval, corrected for the number of comparisons, excludes equality: if no method differs, at most "
            "one table in twenty says faster or slower anywhere."
        ),
    )
    parser.argument("runs", "RUN", "run directories; the first is the base", Path, nargs="+")
    parser.argument("--base", "ENTRY", "the entry that speed-ups are over (default: the run's first, plain)")
    parser.flag("--oracle", "how near each entry came to the best possible draft on this device")
    parser.add_json()


def run(options: argparse.Namespace) -> int:
    need("pandas", "comparing runs", "bench")
    from paceline_lab.bench.compare import Within, across
    from paceline_lab.bench.oracle import Oracle
    from paceline_lab.bench.run.directory import read

    runs = [read(path) for path in options.runs]
    for one in runs:
        if not one.records:
            raise InputError(f"{one.path} holds no finished text; finish its 'paceline bench run' first")
    if len(runs) == 1:
        within = Within(runs[0], options.base)
        say(*_within(within), sep="\n")
        found = within.as_dict()
    else:
        betweens = across(runs, options.base)
        say("\n\n".join("\n".join(_between(between)) for between in betweens))
        found = {"base_run": runs[0].name, "runs": [between.as_dict() for between in betweens]}
    if options.oracle:
        found["oracle"] = {}
        for one in runs:
            oracle = Oracle(one, options.base)
            say("", f"limits of {one.name}", *_limits(oracle), sep="\n")
            found["oracle"][one.name] = oracle.as_dict()
    if options.json:
        print_json(found)
    return 0


def _within(found: Within) -> Iterator[str]:
    from paceline_lab.bench.compare import TOO_FEW
    from paceline_lab.bench.warnings import warnings

    summary = found.summary
    entries = [entry for entry in summary.entries if summary.figures(entry) is not None]
    for tasks in _blocks(summary.tasks):
        last = None in tasks or len(summary.tasks) == 1
        head = (f"x {summary.base}", *(task or ALL for task in tasks))
        best = {task: found.best(task) for task in tasks}
        rows = [
            (entry, *(_speed_up(summary, entry, task, best[task]) for task in tasks), *_overall(summary, entry, last))
            for entry in entries
        ]
        more = ("tokens/s", "tokens/round", "text") if last else ()
        yield table((*head, *more), rows, left=(0, len(head) + 2))
        yield ""
    undecided = [task for task in summary.tasks if not found.best(task)]
    starred = found.best() or len(undecided) < len(summary.tasks)
    notes = [f"{BEST} the fastest of its column, and what is not clearly slower"] if starred else []
    if undecided:
        notes.append(TOO_FEW + (f" in {', '.join(undecided)}" if starred else ""))
    if found.best():
        notes += [
            _sentence(one) for one in found.findings if one.task is None and summary.base not in (one.entry, one.other)
        ]
    yield from bullets([*notes, *warnings(summary)])


def _speed_up(summary: Summary, entry: str, task: str | None, best: Sequence[str]) -> list[str]:
    figures = summary.figures(entry, task)
    found = None if figures is None else figures.speed_up
    bounds = [] if entry == summary.base or not best else [_bounds(found)]
    return [(BEST if entry in best else "") + _value(found), *bounds]


def _overall(summary: Summary, entry: str, last: bool) -> tuple[str, ...]:
    """Values that are not by task are beside the last columns."""
    figures = summary.figures(entry)
    assert figures is not None, "only of entries that wrote something"
    rate, per_round = figures.tokens_per_second, figures.tokens_per_round
    texts = ", ".join(f"{count} {verdict}" for verdict, count in figures.verdicts.items())
    speed, tokens = "" if rate is None else f"{rate:.1f}", "" if per_round is None else f"{per_round:.2f}"
    return (speed, tokens, texts) if last else ()


def _blocks(tasks: Sequence[str]) -> Iterator[list[str | None]]:
    """Columns that fit beside one another: tasks, and in the end all of them together, where there are several."""
    columns: list[str | None] = [*tasks, *([None] if len(tasks) != 1 else [])]
    for start in range(0, len(columns), AT_ONCE):
        yield columns[start : start + AT_ONCE]


def _between(found: Between) -> Iterator[str]:
    old, new = found.base.run.name, found.run.run.name
    if not found.prompts:
        yield from found.notes
        return
    yield f"{new} against {old}: {counted(found.prompts, 'prompt')} in common"
    captions = {
        f"speed-up over {found.run.base}, as a share of that in {old}": found.findings,
        f"tokens/s, as a share of those in {old}: machine or code, runs made apart cannot tell": found.raw,
    }
    for caption, findings in captions.items():
        if findings:
            yield from ("", caption)
            yield from _ratios(found, findings, calls=findings is found.findings)
    yield ""
    yield from bullets(found.notes)


def _ratios(found: Between, findings: Sequence[Finding], *, calls: bool) -> Iterator[str]:
    def called(one: Finding) -> list[str]:
        return [str(one.call)] if calls and found.decided else []

    cells = {
        (one.entry, one.task): [_value(one.ratio), *([_bounds(one.ratio)] if found.decided else []), *called(one)]
        for one in findings
    }
    for tasks in _blocks(found.tasks):
        rows = [
            (entry, *(cells.get((entry, task), "") for task in tasks))
            for entry in dict.fromkeys(one.entry for one in findings)
        ]
        yield table(("", *(task or ALL for task in tasks)), rows)


def _limits(oracle: Oracle) -> Iterator[str]:
    """Shares of both limits, cell by cell, and what they are."""
    base, last, rows = oracle.summary.base, "", []
    for share in oracle.shares():
        cell = ALL if share.task is None else f"{share.task}/{share.language}"
        rows.append(("" if cell == last else cell, share.entry, f"{share.speed_up:.2f}", *_limit(share)))
        last = cell
    yield table(("", "", f"x {base}", "of hindsight", "limit", "of knowing", "limit"), rows, left=(0, 1))
    yield from bullets(
        [
            "all of rounds alone, over " + base + "; reading the prompt counts in none of it",
            "of hindsight: of the speed that the same rounds would have had with only those nodes that were accepted, "
            "and drafts that take no time; what is lacking went into refused rows and into drafting",
            "of knowing: of the speed of a draft that knows the text and sends as much of it at a time as is fastest "
            f"here, up to the {oracle.curve.most} rows that rounds of this run had",
        ]
    )


def _limit(share: Share) -> Iterator[str]:
    limits = (share.hindsight, share.hindsight_speed_up), (share.knowing, share.knowing_speed_up)
    for found, speed_up in limits:
        yield f"{found.value:.0%}" + (f" [{found.low:.0%}, {found.high:.0%}]" if found.bounded else "")
        yield f"{speed_up:.2f}"


def _sentence(one: Finding) -> str:
    prompts = counted(one.prompts, "prompt")
    ratio = " ".join(filter(None, (_value(one.ratio), "x", one.other, _bounds(one.ratio))))
    return f"{one.entry} is {ratio} over {prompts}: {one.call}"


def _value(found: Estimate | None) -> str:
    return "" if found is None else f"{found.value:.2f}"


def _bounds(found: Estimate | None) -> str:
    return f"[{found.low:.2f}, {found.high:.2f}]" if found is not None and found.bounded else ""
