"""Sections on speed: who was faster, where, and how that goes with acceptance."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from paceline.bench.report.axes import nearest_line
from paceline.bench.report.blocks import (
    Beside,
    Block,
    Cell,
    Chart,
    Charts,
    Heat,
    Row,
    Section,
    Table,
    Text,
    Tiles,
)
from paceline.bench.report.charts import Dot, Interval, intervals, scatter
from paceline.bench.report.words import (
    NOTHING,
    best_of,
    counted,
    equal_texts,
    interval,
    number,
    rate,
    short,
    times,
)
from paceline.bench.run.record import Record
from paceline.bench.statistics import Estimate
from paceline.bench.summary import Figures, Summary

DOTS = 1500
"""Points that are drawn."""
FEWEST = 6
"""Points that a line of a single method needs."""
ALL = "all"


def written_entries(summary: Summary) -> list[tuple[int, str, Figures]]:
    """Entries that wrote something: number, name and figures over everything."""
    found = ((number, entry, summary.figures(entry)) for number, entry in enumerate(summary.entries))
    return [(number, entry, figures) for number, entry, figures in found if figures is not None]


def figures_at_a_glance(summary: Summary) -> Tiles:
    base, best = summary.figures(summary.base), best_of(summary, ours=True)
    tiles = [("plain", rate(base.tokens_per_second if base else None), "tokens per second")]
    if best is not None:
        assert best.speed_up is not None, "the best has one"
        tiles += [
            (short(best.entry), rate(best.tokens_per_second), "tokens per second"),
            ("speed-up", times(best.speed_up.value), interval(best.speed_up) or "no interval"),
            ("tokens per round", number(best.tokens_per_round), short(best.entry)),
        ]
    if (equal := equal_texts(summary)) is not None:
        tiles.append(("texts equal to plain's", *equal))
    told = [f for f in (best, base) if f is not None and f.joules_per_token is not None]
    if told:
        how = "measured" if summary.run.about.energy.get("measured") else "estimated"
        beside = f"; plain {number(told[1].joules_per_token)}" if len(told) > 1 else ""
        tiles.append(("joules per token", number(told[0].joules_per_token), how + beside))
    return Tiles(tiles)


def speed(summary: Summary) -> Section:
    """Methods by tasks, with intervals; a forest of all, and a heat map."""
    entries = written_entries(summary)
    table = _by_task(summary, entries)
    note = Text(
        "Speed-up is the mean over texts of a method's speed divided by plain decoding's on the same prompt in the "
        "same minute, with a 95% interval over prompts. ★ marks the fastest of a column, where its interval lies "
        "above 1."
    )
    blocks: list[Block] = [table, note]
    if chart := _forest(summary, entries):
        blocks = [Beside(chart, [table, note] if len(table.head) < 4 else [note])]
        blocks += [table] if len(table.head) >= 4 else []
    return Section("speed", "Speed-up by task", blocks)


def _forest(summary: Summary, entries: Sequence[tuple[int, str, Figures]]) -> Charts | None:
    rows = [
        Interval(entry, up.value, *((up.low, up.high) if up.bounded else (up.value, up.value)), number, _labelled(up))
        for number, entry, figures in entries
        if entry != summary.base and (up := figures.speed_up) is not None
    ]
    if not rows:
        return None
    told_rows = "; ".join(f"{row.name} {row.label}" for row in rows)
    svg = intervals("Speed-up by method", f"Speed-up over plain decoding with 95% intervals: {told_rows}.", rows, 1.0)
    return Charts([Chart(svg, "Speed-up over plain decoding, all tasks together. The line at 1 is plain decoding.")])


def _labelled(found: Estimate) -> str:
    bounds = interval(found)
    return f"{times(found.value)} ({bounds})" if bounds else times(found.value)


def _by_task(summary: Summary, entries: Sequence[tuple[int, str, Figures]]) -> Table:
    columns: list[str | None] = [None, *(summary.tasks if len(summary.tasks) > 1 else [])]
    fastest = {task: _fastest(summary, task, None) for task in columns}
    rows = [
        Row(
            entry,
            [_speed_cell(summary, entry, task, None, fastest[task]) for task in columns],
            number,
        )
        for number, entry, _ in entries
    ]
    head = ["method", *(ALL if task is None else task for task in columns)]
    return Table("Speed-up over plain decoding; beneath, its interval and tokens per round", head, rows)


def _fastest(summary: Summary, task: str | None, language: str | None) -> str | None:
    """Who was fastest in a cell, if it was faster than plain decoding beyond chance."""
    found = {
        entry: figures.speed_up
        for entry in summary.entries
        if entry != summary.base
        if (figures := summary.figures(entry, task, language)) is not None and figures.speed_up is not None
    }
    best = max(found, key=lambda entry: found[entry].value, default=None)
    return best if best is not None and found[best].low > 1 else None


def _speed_cell(summary: Summary, entry: str, task: str | None, language: str | None, fastest: str | None) -> Cell:
    figures = summary.figures(entry, task, language)
    if figures is None:
        return Cell(NOTHING)
    if entry == summary.base:
        return Cell(f"{rate(figures.tokens_per_second)}", "tokens/s")
    small = [interval(figures.speed_up)]
    if figures.tokens_per_round is not None:
        small.append(f"{number(figures.tokens_per_round)} / round")
    value = figures.speed_up.value if figures.speed_up else None
    return Cell(times(value), "\n".join(filter(None, small)), entry == fastest)


def heat(summary: Summary) -> Section | None:
    """Tasks, and languages, by methods; coloured around 1."""
    entries = [entry for _, entry, _ in written_entries(summary) if entry != summary.base]
    if not entries:
        return None
    blocks: list[Block] = [Heat(), _heat_table(summary, entries, "task", [(task, None) for task in summary.tasks])]
    if len(summary.languages) > 1:
        languages = [(None, language) for language in summary.languages]
        blocks.append(_heat_table(summary, entries, "language", languages))
        if len(summary.tasks) > 1:
            blocks.append(_heat_table(summary, entries, "task, language", summary.cells(), folded=True))
    return Section("heat", "Where it helps", blocks)


def _heat_table(
    summary: Summary,
    entries: Sequence[str],
    what: str,
    places: Sequence[tuple[str | None, str | None]],
    *,
    folded: bool = False,
) -> Table:
    rows = []
    for task, language in places if folded or len(places) == 1 else [(None, None), *places]:
        fastest = _fastest(summary, task, language)
        cells = [_heat_cell(summary, entry, task, language, entry == fastest) for entry in entries]
        rows.append(Row(", ".join(filter(None, (task, language))) or ALL, cells))
    return Table(f"Speed-up by {what} and method", [what, *entries], rows, folded)


def _heat_cell(summary: Summary, entry: str, task: str | None, language: str | None, best: bool) -> Cell:
    figures = summary.figures(entry, task, language)
    if figures is None or figures.speed_up is None:
        return Cell(NOTHING)
    up = figures.speed_up
    return Cell(times(up.value), "" if up.excludes(1) else "≈", best, heat=up.value)


def acceptance_and_speed(summary: Summary) -> Section | None:
    """Speed-up against tokens per round, prompt by prompt."""
    dots = [dot for number, entry, _ in written_entries(summary) for dot in _dots(summary, number, entry)]
    if not dots:
        return None
    shown = dots[:: math.ceil(len(dots) / DOTS)]
    fit = nearest_line([(dot.x, dot.y) for dot in dots])
    words = ("tokens per round", "speed-up")
    if fit is None:
        said = "There are too few prompts, or they lie too close together, for a line."
    else:
        said = f"Least-squares line over {counted(len(dots), 'point')}: {fit}, r²\u00a0=\u00a0{fit.r2:.2f}."
        if fit.slope > 0:
            even = (1 - fit.height) / fit.slope
            said += f" It crosses 1.0 at {number(even)} tokens per round: below, drafting costs more than it brings."
    if len(shown) < len(dots):
        said += f" {counted(len(shown), 'point')} of these are drawn."
    svg = scatter(
        "Speed-up against tokens per round", f"A point for each prompt and method. {said}", shown, fit, 1.0, words
    )
    legend = [(n, entry) for n, entry, _ in written_entries(summary) if any(dot.number == n for dot in dots)]
    lines = [Row(entry, _fit_cells([d for d in dots if d.number == n]), n) for n, entry in legend]
    table = Table("Lines of each method alone", ["method", "prompts", "line", "r²"], lines)
    return Section("fit", "Speed-up against acceptance", [Beside(Charts([Chart(svg)], legend), [Text(said), table])])


def _fit_cells(dots: Sequence[Dot]) -> list[Cell | str]:
    fit = nearest_line([(dot.x, dot.y) for dot in dots]) if len(dots) >= FEWEST else None
    return [str(len(dots)), NOTHING if fit is None else str(fit), NOTHING if fit is None else number(fit.r2)]


def _dots(summary: Summary, number_: int, entry: str) -> Iterator[Dot]:
    """One of each prompt that an entry wrote, its turns and repeats taken together."""
    if entry == summary.base:
        return
    pairs: dict[str, list[tuple[Record, Record]]] = {}
    for one, base in summary.pairs(summary.records(entry)):
        pairs.setdefault(one.prompt, []).append((one, base))
    for prompt, found in pairs.items():
        rounds = sum(rounds_of(one) for one, _ in found)
        if not rounds:
            continue
        x = sum(len(one.tokens) for one, _ in found) / rounds
        mine = sum(one.decoded for one, _ in found) / sum(one.seconds_decode for one, _ in found)
        plain = sum(base.decoded for _, base in found) / sum(base.seconds_decode for _, base in found)
        yield Dot(x, mine / plain, number_, f"{entry}, {prompt}: {times(mine / plain)} at {number(x)} tokens per round")


def rounds_of(record: Record) -> int:
    """How often the model was called; 0 where nobody tells."""
    return len(record.rounds["emitted"]) if record.rounds is not None else record.forwards or 0
