"""What must be known before the numbers of a run are believed: sentences, the gravest first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.measure.summary import Summary


def doubts(summary: Summary) -> list[str]:
    """All that there are."""
    return [*_unfinished(summary), *_missing(summary)]


def _unfinished(summary: Summary) -> Iterator[str]:
    run = summary.run
    if not run.about.finished:
        done = len({record.pair[::2] for record in run.records})
        yield f"not finished: {done} of {run.about.workload.get('units', '?')} units are written"


def _missing(summary: Summary) -> Iterator[str]:
    for name, why in summary.run.about.missing.items():
        yield f"{name} is missing: {why}"
