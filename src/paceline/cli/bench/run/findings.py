"""What ``bench run`` says in the end: a table of everybody, and what must be known to read it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from paceline.bench.warnings import warnings
from paceline.cli.common import aligned

if TYPE_CHECKING:
    from paceline.bench.statistics import Estimate
    from paceline.bench.summary import Figures, Summary

WIDTH = 110
HEAD = ("", "tokens/s", "x plain [95%]", "ratio of means", "tokens/round", "accepted", "first token", "text")


def told(summary: Summary) -> str:
    return "\n".join(_lines(summary))


def _lines(summary: Summary) -> Iterator[str]:
    about = summary.run.about
    model, recipe = about.model, about.recipe
    yield f"{model['ballast'] or model['model']}  {model['dtype']}  weights {model['fingerprint']}"
    how = "followed: all walk plain decoding's text" if recipe["follow"] else "free: each writes on its own"
    place = f"{model['device']}, {_threads(model['threads'])}"
    yield f"{recipe['suite']}, temperature {recipe['temperature']:g}, {place}; {how}"
    yield ""
    found = [figures for entry in summary.entries if (figures := summary.figures(entry)) is not None]
    yield from aligned([HEAD, *map(_row, found)])
    for warning in warnings(summary):
        yield from textwrap.wrap(f"- {warning}", WIDTH, subsequent_indent="  ")


def _threads(number: int) -> str:
    return f"{number} {'thread' if number == 1 else 'threads'}"


def _row(figures: Figures) -> tuple[str, ...]:
    """No speeds where no time passed, as in a replay, or all tokens came at once."""
    first, timed = figures.seconds_first, bool(figures.tokens_per_second)
    return (
        figures.entry,
        _number(figures.tokens_per_second, ".1f") if timed else "",
        _interval(figures.speed_up) if timed else "",
        _interval(figures.speed_up_of_means) if timed else "",
        _number(figures.tokens_per_round, ".2f"),
        _number(figures.mean_accepted, ".2f"),
        "" if first is None or not first.value else f"{1000 * first.value:.0f} ms",
        ", ".join(f"{count} {verdict}" for verdict, count in figures.verdicts.items()),
    )


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _interval(found: Estimate | None) -> str:
    if found is None:
        return ""
    return f"{found.value:.2f}" + (f" [{found.low:.2f}, {found.high:.2f}]" if found.bounded else "")
