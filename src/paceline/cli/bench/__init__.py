"""``paceline bench``: what is measured, one file each."""

from __future__ import annotations

from paceline.cli.bench import compare, draft_cost, overhead, report, run, suite
from paceline.cli.common import Subparsers

MEASUREMENTS = (suite, run, compare, report, overhead, draft_cost)


def add(commands: Subparsers) -> None:
    parser = commands.add_parser(
        "bench",
        help="measure how fast this is here",
        description="Measures speed on this machine.",
        allow_abbrev=False,
    )
    measurements = parser.add_subparsers(
        dest="measurement", metavar="MEASUREMENT", required=True, help="what to measure"
    )
    for measurement in MEASUREMENTS:
        measurement.add(measurements)
