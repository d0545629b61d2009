"""``paceline bench time``: what forwards, drafting, logits and our loop take, one file each."""

from __future__ import annotations

from paceline.cli.arguments import Parser, Subparsers
from paceline_lab.commands.bench.time import drafting, forwards, logits, overhead

SUBJECTS = (forwards, drafting, logits, overhead)


def add(commands: Subparsers) -> None:
    text = "seconds of the parts of a round: forwards, drafting, logits, and our loop beside transformers' own"
    said = f"Times {text}. All of a table take turns; figures are medians, in milliseconds."
    parser: Parser = commands.add_parser("time", help=text, description=said)
    subjects = parser.add_subparsers(dest="subject", metavar="SUBJECT", help="the part to time")
    for subject in SUBJECTS:
        subject.add(subjects)
