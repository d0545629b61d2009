"""``paceline bench``: what is measured, one file each."""

from __future__ import annotations

from paceline.cli.arguments import Parser, Subparsers
from paceline_lab.commands.bench import compare, load, quality, report, run, suite, time

MEASUREMENTS = (suite, run, compare, report, time, quality, load)


def add(commands: Subparsers) -> None:
    text = "Measures speed on this machine."
    parser: Parser = commands.add_parser("bench", help="measure speed on this machine", description=text)
    text = "what to measure"
    measurements = parser.add_subparsers(dest="measurement", metavar="MEASUREMENT", help=text)
    for measurement in MEASUREMENTS:
        measurement.add(measurements)
