"""Sections on what a text costs: latency, energy, memory."""

from __future__ import annotations

from paceline.bench.report.blocks import Block, Cell, Chart, Charts, Group, Section, Text, by_method
from paceline.bench.report.charts import Bar, bars
from paceline.bench.report.words import NOTHING, entries_of, number, seconds, seconds_between, size
from paceline.bench.statistics import Estimate
from paceline.bench.summary import PERCENTILES, Figures, Summary

LATENCY_PARTS = {"first": "until the first token", "later": "from there to the last"}
BOTH = ("first", "last")


def latency(summary: Summary) -> Section:
    """Time to the first token and to the last."""
    entries = entries_of(summary)
    rows = [_waiting(entry, *_times(figures)) for _, entry, figures in entries]
    told = "; ".join(f"{row.name} {row.label}" for row in rows)
    svg = bars("First and last token", f"Median seconds to the first and the last token: {told}.", rows, " s")

    def cells(_: str, figures: Figures) -> list[Cell]:
        return [Cell(seconds(one.value), seconds_between(one), bar=one.value) for one in _times(figures)]

    def percentiles(_: str, figures: Figures) -> list[str]:
        return [seconds(figures.latency[which][f"p{percent}"]) for which in BOTH for percent in PERCENTILES]

    chart = Charts([Chart(svg, "Medians over texts, in seconds.")], parts=LATENCY_PARTS)
    medians = by_method("Medians, with 95% intervals", ["first token", "whole text"], entries, cells)
    blocks: list[Block] = [Group([chart, medians])]
    arrivals = [one for one in entries if one[2].latency]
    if arrivals:
        head = [f"{which}, p{percent}" for which in BOTH for percent in PERCENTILES]
        qps = summary.run.about.recipe.get("qps")
        note = f"Prompts arrived on their own, {qps:g} a second; times count from arrival, waiting included."
        blocks += [by_method("Percentiles, from arrival", head, arrivals, percentiles), Text(note)]
    return Section("latency", "Waiting", blocks)


def _times(figures: Figures) -> tuple[Estimate, Estimate]:
    assert figures.seconds_first is not None, "every text has times"
    assert figures.seconds is not None, "every text has times"
    return figures.seconds_first, figures.seconds


def _waiting(entry: str, first: Estimate, whole: Estimate) -> Bar:
    until, all_of_it = seconds(first.value), seconds(whole.value)
    later = max(whole.value - first.value, 0.0)
    parts = [("first", first.value, f"first token after {until}"), ("later", later, f"last token after {all_of_it}")]
    return Bar(entry, parts, f"{until} · {all_of_it}")


def energy(summary: Summary) -> Section:
    """Joules per token, measured or estimated, and memory."""
    entries, about = entries_of(summary), summary.run.about.energy
    metered = [(n, entry, f) for n, entry, f in entries if f.joules_per_token is not None]
    if metered:
        measured, watts = about.get("measured"), about.get("watts")
        how = f"measured by {about.get('source')}" if measured else "estimated"
        if not measured and watts:
            how += f": time × a stated {watts:g} W"
        return Section("energy", "Energy and memory", [_joules(metered, summary.base, f"Joules per token, {how}")])
    because = f" ({about['why']})" if about.get("why") else ""
    said = (
        f"No energy was counted{because}. Run with --energy auto where the machine has a meter, or with "
        "--watts W for an estimate from a power that you state."
    )
    peaks = [(n, entry, f) for n, entry, f in entries if f.peak_bytes is not None]
    memory = by_method("Peak memory", ["bytes"], peaks, lambda _, f: [size(f.peak_bytes)])
    return Section("energy", "Energy and memory", [Text(said), *([memory] if peaks else [])])


def _joules(metered: list[tuple[int, str, Figures]], base: str, caption: str) -> Block:
    joules = {entry: f.joules_per_token or 0.0 for _, entry, f in metered}
    rows = [
        Bar(entry, [("energy", j, f"{number(j, 3)} J per token")], f"{number(j, 3)} J") for entry, j in joules.items()
    ]
    svg = bars(caption, f"{'; '.join(f'{row.name} {row.label}' for row in rows)}.", rows, " J")
    plain = joules.get(base)

    def cells(entry: str, f: Figures) -> list[Cell | str]:
        of_plain = number(joules[entry] / plain) if plain else NOTHING
        return [Cell(number(joules[entry], 3), bar=joules[entry]), of_plain, size(f.peak_bytes)]

    table = by_method(caption, ["joules", "of plain's", "peak memory"], metered, cells)
    return Group([Charts([Chart(svg, f"{caption}.")]), table])
