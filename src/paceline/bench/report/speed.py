"""Sections on speed: which method was faster, where, and how that depends on acceptance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import linregress

from paceline.bench.report.blocks import Block, Cell, Chart, Charts, Group, Row, Section, Table, Text, Tiles, by_method
from paceline.bench.report.charts import Interval, Scales, Series, intervals, plot
from paceline.bench.report.words import (
    MINUS,
    NOTHING,
    Entries,
    best_of,
    counted,
    entries_of,
    equal_texts,
    interval,
    labelled,
    number,
    rate,
    short,
    times,
)
from paceline.bench.summary import Figures, Summary

DOTS = 1500
"""Points that are drawn at most."""
FEWEST = 6
"""Points that a line of a single method needs."""
ALL = "all"
ABOUT_SPEED = (
    "Speed-up is the mean over texts of a method's speed divided by plain decoding's on the same prompt in the same "
    "minute, with a 95% interval over prompts. ★ marks the fastest of a column, where its interval lies above 1."
)


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
    """Methods by tasks, with intervals, and a chart of all tasks together."""
    entries, note = entries_of(summary), Text(ABOUT_SPEED)
    tasks: list[str | None] = [None, *(summary.tasks if len(summary.tasks) > 1 else [])]
    fastest = {task: _fastest(summary, task, None) for task in tasks}

    def cells(entry: str, _: Figures) -> list[Cell]:
        return [_speed_cell(summary, entry, task, entry == fastest[task]) for task in tasks]

    caption = "Speed-up over plain decoding; beneath, its interval and tokens per round"
    table = by_method(caption, [task or ALL for task in tasks], entries, cells)
    chart = _chart(summary, entries)
    blocks: list[Block] = [table, note]
    if chart and len(tasks) < 3:
        blocks = [Group([chart, table, note])]
    elif chart:
        blocks = [Group([chart, note]), table]
    return Section("speed", "Speed-up by task", blocks)


def _chart(summary: Summary, entries: Entries) -> Charts | None:
    rows = [
        Interval(entry, number, figures.speed_up, labelled(figures.speed_up))
        for number, entry, figures in entries
        if entry != summary.base and figures.speed_up is not None
    ]
    if not rows:
        return None
    told = "; ".join(f"{row.name} {row.label}" for row in rows)
    svg = intervals("Speed-up by method", f"Speed-up over plain decoding with 95% intervals: {told}.", rows)
    return Charts([Chart(svg, "Speed-up over plain decoding, all tasks together. The line at 1 is plain decoding.")])


def _fastest(summary: Summary, task: str | None, language: str | None) -> str | None:
    """The fastest entry of a cell, where it was faster than plain decoding beyond chance."""
    found = {
        entry: figures.speed_up
        for entry in summary.entries
        if entry != summary.base
        if (figures := summary.figures(entry, task, language)) is not None and figures.speed_up is not None
    }
    best = max(found, key=lambda entry: found[entry].value, default=None)
    return best if best is not None and found[best].low > 1 else None


def _speed_cell(summary: Summary, entry: str, task: str | None, best: bool) -> Cell:
    figures = summary.figures(entry, task)
    if figures is None:
        return Cell(NOTHING)
    if entry == summary.base:
        return Cell(rate(figures.tokens_per_second), "tokens/s")
    per_round = "" if figures.tokens_per_round is None else f"{number(figures.tokens_per_round)} / round"
    value = figures.speed_up.value if figures.speed_up else None
    return Cell(times(value), "\n".join(filter(None, [interval(figures.speed_up), per_round])), best)


def heat(summary: Summary) -> Section | None:
    """Tasks, and languages, by methods; coloured around 1."""
    entries = [entry for _, entry, _ in entries_of(summary) if entry != summary.base]
    if not entries:
        return None

    def table(what: str, places: Sequence[tuple[str | None, str | None]], *, folded: bool = False) -> Table:
        rows = []
        for task, language in places if folded or len(places) == 1 else [(None, None), *places]:
            fastest = _fastest(summary, task, language)
            cells = [_heat_cell(summary.figures(entry, task, language), entry == fastest) for entry in entries]
            rows.append(Row(", ".join(filter(None, (task, language))) or ALL, cells))
        return Table(f"Speed-up by {what} and method", [what, *entries], rows, "heat", folded)

    blocks: list[Block] = [Text("", "legend"), table("task", [(task, None) for task in summary.tasks])]
    if len(summary.languages) > 1:
        blocks.append(table("language", [(None, language) for language in summary.languages]))
        if len(summary.tasks) > 1:
            blocks.append(table("task, language", summary.cells(), folded=True))
    return Section("heat", "Where it helps", blocks)


def _heat_cell(figures: Figures | None, best: bool) -> Cell:
    if figures is None or figures.speed_up is None:
        return Cell(NOTHING)
    up = figures.speed_up
    return Cell(times(up.value), "" if up.excludes(1) else "≈", best, heat=up.value)


def acceptance_and_speed(summary: Summary) -> Section | None:
    """Speed-up against tokens per round, prompt by prompt."""
    dots = _prompts(summary)
    if dots.empty:
        return None
    shown, line = dots[:: math.ceil(len(dots) / DOTS)], _line(dots)
    said = "There are too few prompts, or they lie too close together, for a line."
    if line is not None:
        said = f"Least-squares line over {counted(len(dots), 'point')}: {_equation(line)}, r²\u00a0=\u00a0{_r2(line)}."
        if line.slope > 0:
            even = number((1 - line.intercept) / line.slope)
            said += f" It crosses 1.0 at {even} tokens per round: below, drafting costs more than it brings."
    if len(shown) < len(dots):
        said += f" {counted(len(shown), 'point')} of these are drawn."
    ends = (dots.per_round.min(), dots.per_round.max())
    points = [] if line is None else [(x, line.intercept + line.slope * x) for x in np.linspace(*ends, 200)]
    scales = Scales(("tokens per round", "speed-up"), across=1.0, line=points)
    told = f"A point for each prompt and method. {said}"
    marks = [_series(number, entry, its) for (number, entry), its in shown.groupby(["number", "entry"])]
    svg = plot("Speed-up against tokens per round", told, marks, scales, 320)
    groups = [(number, entry, its) for (number, entry), its in dots.groupby(["number", "entry"])]
    table = by_method("Lines of each method alone", ["prompts", "line", "r²"], groups, _line_cells)
    chart = Charts([Chart(svg)], [(number, entry) for number, entry, _ in groups])
    return Section("fit", "Speed-up against acceptance", [Group([chart, Text(said), table])])


def _prompts(summary: Summary) -> pd.DataFrame:
    """Tokens per round and speed-up of each prompt that an entry wrote, its turns and repeats taken together."""
    pairs = summary.beside(summary.base)
    pairs = pairs[pairs.entry != summary.base].assign(calls=pairs.rounds.fillna(pairs.forwards))
    columns = ["tokens", "calls", "decoded", "seconds_decode", "decoded_base", "seconds_decode_base"]
    found = pairs.groupby(["entry", "prompt"], sort=False)[columns].sum().query("calls > 0").reset_index()
    found["number"] = found.entry.map(summary.entries.index)
    found["per_round"] = found.tokens / found.calls
    found["speed_up"] = found.decoded / found.seconds_decode / (found.decoded_base / found.seconds_decode_base)
    return found.sort_values("number", kind="stable")


def _series(number_: int, entry: str, prompts: pd.DataFrame) -> Series:
    points = list(zip(prompts.per_round, prompts.speed_up, strict=True))
    tips = [
        f"{entry}, {prompt}: {times(y)} at {number(x)} tokens per round"
        for prompt, (x, y) in zip(prompts.prompt, points, strict=True)
    ]
    return Series(number_, points, tips)


def _line(prompts: pd.DataFrame) -> Any:
    """The line of least squares; None where the points do not determine one: fewer than three, or all above one
    place."""
    if len(prompts) < 3 or prompts.per_round.std() < 1e-6:
        return None
    return linregress(prompts.per_round, prompts.speed_up)


def _equation(line: Any) -> str:
    sign = "+" if line.intercept >= 0 else MINUS
    return f"y = {number(line.slope)} x {sign} {number(abs(line.intercept))}"


def _r2(line: Any) -> str:
    return number(line.rvalue**2)


def _line_cells(_: str, prompts: pd.DataFrame) -> list[str]:
    line = _line(prompts) if len(prompts) >= FEWEST else None
    return [str(len(prompts)), *([NOTHING, NOTHING] if line is None else [_equation(line), _r2(line)])]
