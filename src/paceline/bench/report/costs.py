"""Sections on what a text costs whoever waits for it and whoever pays for it: latency, energy, memory."""

from __future__ import annotations

from paceline.bench.report.blocks import Beside, Block, Cell, Chart, Charts, Row, Section, Table, Text
from paceline.bench.report.charts import Bar, bars
from paceline.bench.report.speed import written_entries
from paceline.bench.report.words import NOTHING, number, seconds, seconds_between, size
from paceline.bench.summary import PERCENTILES, Summary

LATENCY_PARTS = (("p-first", "until the first token"), ("p-later", "from there to the last"))


def latency(summary: Summary) -> Section:
    """Until the first token, and until the last."""
    rows, table, arrivals = [], [], []
    for number_, entry, f in written_entries(summary):
        if f.seconds is None or f.seconds_first is None:
            continue
        first, whole = f.seconds_first.value, f.seconds.value
        rows.append(
            Bar(
                entry,
                [
                    ("p-first", first, f"first token after {seconds(first)}"),
                    ("p-later", max(whole - first, 0.0), f"last token after {seconds(whole)}"),
                ],
                f"{seconds(first)} · {seconds(whole)}",
            )
        )
        cells = [
            Cell(seconds(first), seconds_between(f.seconds_first), bar=first),
            Cell(seconds(whole), seconds_between(f.seconds), bar=whole),
        ]
        table.append(Row(entry, cells, number_))
        if f.latency:
            times = [seconds(f.latency[which][f"p{p}"]) for which in ("first", "last") for p in PERCENTILES]
            arrivals.append(Row(entry, times, number_))
    told = "; ".join(f"{row.name} {row.label}" for row in rows)
    svg = bars("First and last token", f"Median seconds to the first and the last token: {told}.", rows, " s")
    chart = Charts([Chart(svg, "Medians over texts, in seconds.")], parts=LATENCY_PARTS)
    medians = Table("Medians, with 95% intervals", ["method", "first token", "whole text"], table)
    blocks: list[Block] = [Beside(chart, [medians])]
    if arrivals:
        qps = summary.run.about.recipe.get("qps")
        head = ["method", *(f"{which}, p{p}" for which in ("first", "last") for p in PERCENTILES)]
        blocks.append(Table("Percentiles, from arrival", head, arrivals))
        blocks.append(
            Text(f"Prompts arrived on their own, {qps:g} a second; times count from arrival, waiting included.")
        )
    return Section("latency", "Waiting", blocks)


def energy(summary: Summary) -> Section:
    """Joules per token, said to be measured or estimated."""
    entries = written_entries(summary)
    about = summary.run.about.energy
    metered = [(n, entry, f.joules_per_token) for n, entry, f in entries if f.joules_per_token is not None]
    peaks = {entry: f.peak_bytes for _, entry, f in entries if f.peak_bytes is not None}
    blocks: list[Block] = []
    if metered:
        measured, watts = about.get("measured"), about.get("watts")
        how = f"measured by {about.get('source')}" if measured else "estimated"
        if not measured and watts:
            how += f": time × a stated {watts:g} W"
        drawn = [
            Bar(entry, [("p-energy", j, f"{number(j, 3)} J per token")], f"{number(j, 3)} J") for _, entry, j in metered
        ]
        told = "; ".join(f"{bar.name} {bar.label}" for bar in drawn)
        svg = bars(f"Joules per token, {how}", f"{told}.", drawn, " J")
        base = next((j for _, entry, j in metered if entry == summary.base), None)
        table = [
            Row(entry, [Cell(number(j, 3), bar=j), number(j / base) if base else NOTHING, size(peaks.get(entry))], n)
            for n, entry, j in metered
        ]
        head = ["method", "joules", "of plain's", "peak memory"]
        chart = Charts([Chart(svg, f"Joules per token, {how}.")])
        blocks.append(Beside(chart, [Table(f"Joules per token, {how}", head, table)]))
    else:
        why = about.get("why")
        because = f" ({why})" if why else ""
        blocks.append(
            Text(
                f"No energy was counted{because}. Run with --energy auto where the machine has a meter, or with "
                "--watts W for an estimate from a power that you state."
            )
        )
        if peaks:
            rows = [Row(entry, [size(peaks[entry])], n) for n, entry, _ in entries if entry in peaks]
            blocks.append(Table("Peak memory", ["method", "bytes"], rows))
    return Section("energy", "Energy and memory", blocks)
