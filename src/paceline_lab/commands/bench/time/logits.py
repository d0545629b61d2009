"""``paceline bench time logits``: what reading rows of logits takes, and the law with the choice of a token."""

from __future__ import annotations

import argparse

from paceline.cli.arguments import Parser, Subparsers
from paceline.cli.options import check_counts
from paceline.cli.output import progress, say
from paceline_lab.commands.bench.time.report import print_record, times_table

ROWS = (1, 9, 17, 33, 64)
ROUNDS, VOCABULARY = 40, 151_936


def add(subjects: Subparsers) -> None:
    parser: Parser = subjects.add_parser(
        "logits",
        run=run,
        help="reading the best tokens from rows of logits, and the law with the choice of a token",
        description=(
            "Times reading the best tokens and the normaliser out of rows of logits, and the way from a row of logits "
            "to a token under many settings of sampling, by how certain the row is. No model runs."
        ),
    )
    parser.argument("--rounds", "N", f"how often each is timed (default: {ROUNDS})", int, default=ROUNDS)
    parser.several("--rows", "N", f"rows that are read (default: {' '.join(map(str, ROWS))})", int, default=ROWS)
    text = f"tokens in the vocabulary (default: {VOCABULARY})"
    parser.argument("--vocabulary", "N", text, int, default=VOCABULARY)
    parser.add_threads()
    parser.add_json()


def run(options: argparse.Namespace) -> int:
    check_counts(options, "rounds", "rows", "vocabulary", "threads")
    from paceline_lab.bench.machine import threads
    from paceline_lab.bench.times.logits import choices, readings
    from paceline_lab.bench.times.made_up import BEST
    from paceline_lab.bench.times.steps import medians

    with threads(options.threads), progress("making logits") as advance:
        steps = list(readings(sorted(set(options.rows)), options.vocabulary))
        read = list(medians(steps, options.rounds, progress=advance, doing="reading "))
        steps = list(choices(options.vocabulary))
        chosen = list(medians(steps, options.rounds, progress=advance, doing="choosing by "))
    say(f"Reading the {BEST} best tokens and the normaliser, medians of {options.rounds}:\n")
    say(times_table(read, "rows"))
    say("\nThe law and the choice of a token, by how certain the row is:\n")
    say(times_table(chosen, "row"))
    print_record(options, [*read, *chosen], vocabulary=options.vocabulary, best=BEST)
    return 0
