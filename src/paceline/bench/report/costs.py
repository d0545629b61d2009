"""Sections on what a text costs: latency, energy, memory."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.bench.report.blocks import Block, Cell, Group, Text, by_method
from paceline.bench.report.charts import Bar, bars
from paceline.bench.report.words import NOTHING, Entries, entries_of, number, seconds, seconds_between, size
from paceline.bench.statistics import Estimate
from paceline.bench.summary import PERCENTILES, Figures, Summary

LATENCY_PARTS = {"first": "until the first token", "later": "from there to the last"}
BOTH = [(which, f"p{percent}") for which in ("first", "last") for percent in PERCENTILES]


def latency(summary: Summary) -> Iterator[Block]:
    """Time to the first token and to the last."""
    entries = entries_of(summary)

    def bar(entry: str, first: Estimate, whole: Estimate) -> Bar:
        until, then = seconds(first.value), seconds(whole.value)
        later = max(whole.value - first.value, 0.0)
        parts = [("first", first.value, f"first token after {until}"), ("later", later, f"last token after {then}")]
        return Bar(entry, parts, f"{until} · {then}")

    def cells(_: str, figures: Figures) -> list[Cell]:
        return [Cell(seconds(one.value), seconds_between(one), bar=one.value) for one in _times(figures)]

    rows = [bar(entry, *_times(figures)) for _, entry, figures in entries]
    told, caption = "Median seconds to the first and the last token", "Medians over texts, in seconds."
    chart = bars("First and last token", told, rows, " s", caption, LATENCY_PARTS)
    yield Group([chart, by_method("Medians, with 95% intervals", ["first token", "whole text"], entries, cells)])
    arrivals = [one for one in entries if one[2].latency]
    if arrivals:
        head = [f"{which}, {percentile}" for which, percentile in BOTH]
        yield by_method(
            "Percentiles, from arrival", head, arrivals, lambda _, f: [seconds(f.latency[a][b]) for a, b in BOTH]
        )
        qps = summary.run.about.recipe.get("qps")
        yield Text(f"Prompts arrived on their own, {qps:g} a second; times count from arrival, waiting included.")


def _times(figures: Figures) -> tuple[Estimate, Estimate]:
    assert figures.seconds_first is not None, "every text has times"
    assert figures.seconds is not None, "every text has times"
    return figures.seconds_first, figures.seconds


def energy(summary: Summary) -> Iterator[Block]:
    """Joules per token, measured or estimated, and memory."""
    entries, about = entries_of(summary), summary.run.about.energy
    metered = [(n, entry, f) for n, entry, f in entries if f.joules_per_token is not None]
    if metered:
        measured, watts = about.get("measured"), about.get("watts")
        stated = f": time × a stated {watts:g} W" if watts else ""
        how = f"measured by {about.get('source')}" if measured else f"estimated{stated}"
        yield _joules(metered, summary.base, f"Joules per token, {how}")
        return
    because = f" ({about['why']})" if about.get("why") else ""
    yield Text(
        f"No energy was counted{because}. Run with --energy auto where the machine has a meter, or with "
        "--watts W for an estimate from a power that you state."
    )
    if peaks := [(n, entry, f) for n, entry, f in entries if f.peak_bytes is not None]:
        yield by_method("Peak memory", ["bytes"], peaks, lambda _, f: [size(f.peak_bytes)])


def _joules(metered: Entries, base: str, caption: str) -> Block:
    joules = {entry: f.joules_per_token or 0.0 for _, entry, f in metered}
    told = {entry: number(value, 3) for entry, value in joules.items()}
    rows = [
        Bar(entry, [("energy", joules[entry], f"{told[entry]} J per token")], f"{told[entry]} J") for entry in joules
    ]

    def cells(entry: str, f: Figures) -> list[Cell | str]:
        of_plain = number(joules[entry] / joules[base]) if joules.get(base) else NOTHING
        return [Cell(told[entry], bar=joules[entry]), of_plain, size(f.peak_bytes)]

    chart = bars(caption, caption, rows, " J", f"{caption}.")
    return Group([chart, by_method(caption, ["joules", "of plain's", "peak memory"], metered, cells)])
