"""Sections on speed: which method was faster, where, and how that depends on acceptance."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import linregress

from paceline_lab.bench.compare import too_few
from paceline_lab.bench.report.blocks import Block, Chart, Group, Row, Table, TableCell, Text, by_method
from paceline_lab.bench.report.charts import Interval, Scales, Series, intervals, plot
from paceline_lab.bench.report.words import (
    ALL,
    MINUS,
    NOTHING,
    best_of,
    counted,
    entries_of,
    equal_texts,
    interval,
    labelled,
    main_of,
    number,
    rate,
    short,
    speed_up_of,
    times,
)
from paceline_lab.bench.summary import Figures, Summary

DOTS = 1500
"""Points that are drawn at most."""
FEWEST = 6
"""Points that a line of a single method needs."""
CAPTION = "Speed-up over plain decoding; beneath, its interval and tokens per round"
MEAN = "mean of tasks"
DRAWN = "Speed-up over plain decoding, all tasks together. The line at 1 is plain decoding."
ABOUT_SPEED = (
    "Speed-up is the mean over texts of a method's speed divided by plain decoding's on the same prompt in the same "
    "minute, with a 95% interval over prompts. In the mean of tasks each task weighs the same. ★ marks the fastest of "
    "a column, where its interval lies above 1 and there are at least 6 prompts."
)


def glance(summary: Summary) -> Table:
    """The few figures that matter."""
    base, main = summary.figures(summary.base), main_of(summary)
    tiles = {"plain": TableCell(rate(base.tokens_per_second if base else None), "tokens per second")}
    if main is not None:
        up = speed_up_of(main)
        tiles[short(main.entry)] = TableCell(rate(main.tokens_per_second), "tokens per second")
        tiles["speed-up"] = TableCell(times(up.value), interval(up) or "no interval")
        tiles["tokens per round"] = TableCell(number(main.tokens_per_round), short(main.entry))
    if (equal := equal_texts(summary)) is not None:
        tiles["texts equal to plain's"] = TableCell(*equal)
    metered = [f for f in (main, base) if f is not None and f.joules_per_token is not None]
    if metered:
        how = "measured" if summary.run.about.energy.get("measured") else "estimated"
        beside = f"; plain {number(metered[1].joules_per_token)}" if len(metered) > 1 else ""
        tiles["joules per token"] = TableCell(number(metered[0].joules_per_token), how + beside)
    return Table("", ["figure", "value"], [Row(name, [cell]) for name, cell in tiles.items()], "tiles")


def speed(summary: Summary) -> Iterator[Block]:
    """Methods by tasks, with intervals, and a chart of all tasks together."""
    tasks: list[str | None] = [None, *(summary.tasks if len(summary.tasks) > 1 else [])]
    fastest = {task: _fastest(summary, task, None) for task in tasks}

    def cells(entry: str, _: Figures) -> list[TableCell]:
        found = [_speed_cell(summary, entry, task, entry == fastest[task]) for task in tasks]
        return [*found, _mean_cell(summary, entry)][: len(columns)]

    columns = [*(task or ALL for task in tasks), *([MEAN] if len(tasks) > 1 else [])]
    note, table = Text(ABOUT_SPEED), by_method(CAPTION, columns, entries_of(summary), cells)
    beside = len(tasks) < 3
    if chart := _chart(summary):
        yield Group([chart, table, note] if beside else [chart, note])
    if not chart or not beside:
        yield table
    if not chart:
        yield note


def _chart(summary: Summary) -> Chart | None:
    rows = [
        Interval(n, entry, figures.speed_up, labelled(figures.speed_up))
        for n, entry, figures in entries_of(summary)
        if entry != summary.base and figures.speed_up is not None
    ]
    description = "Speed-up over plain decoding with 95% intervals"
    return intervals("Speed-up by method", description, rows, DRAWN) if rows else None


def _fastest(summary: Summary, task: str | None, language: str | None) -> str | None:
    """The fastest entry of a cell, where it was faster than plain decoding beyond chance, and prompts are not few."""
    best = None if too_few(summary, task) else best_of(summary, task, language)
    return best.entry if best is not None and speed_up_of(best).low > 1 else None


def _speed_cell(summary: Summary, entry: str, task: str | None, best: bool) -> TableCell:
    figures = summary.figures(entry, task)
    if figures is None:
        return TableCell(NOTHING)
    if entry == summary.base:
        return TableCell(rate(figures.tokens_per_second), "tokens/s")
    per_round = "" if figures.tokens_per_round is None else f"{number(figures.tokens_per_round)} / round"
    value = figures.speed_up.value if figures.speed_up else None
    return TableCell(times(value), "\n".join(filter(None, [interval(figures.speed_up), per_round])), best)


def _mean_cell(summary: Summary, entry: str) -> TableCell:
    """The mean over tasks, each of which weighs the same."""
    found = summary.means(entry)
    if entry == summary.base or found.speed_up is None:
        return TableCell(NOTHING)
    per_round = "" if found.tokens_per_round is None else f"{number(found.tokens_per_round)} / round"
    return TableCell(times(found.speed_up.value), "\n".join(filter(None, [interval(found.speed_up), per_round])))


def heat(summary: Summary) -> Iterator[Block]:
    """Tasks, and languages, by methods; coloured around 1."""
    entries = [entry for _, entry, _ in entries_of(summary) if entry != summary.base]
    if not entries:
        return

    def table(what: str, places: Sequence[tuple[str | None, str | None]], *, folded: bool = False) -> Table:
        rows = []
        for task, language in places if folded or len(places) == 1 else [(None, None), *places]:
            fastest = _fastest(summary, task, language)
            cells = [_heat_cell(summary.figures(entry, task, language), entry == fastest) for entry in entries]
            rows.append(Row(", ".join(filter(None, (task, language))) or ALL, cells))
        return Table(f"Speed-up by {what} and method", [what, *entries], rows, "heat", folded)

    yield Text("", "legend")
    yield table("task", [(task, None) for task in summary.tasks])
    if len(summary.languages) > 1:
        yield table("language", [(None, language) for language in summary.languages])
        if len(summary.tasks) > 1:
            yield table("task, language", summary.cells(), folded=True)


def _heat_cell(figures: Figures | None, best: bool) -> TableCell:
    if figures is None or figures.speed_up is None:
        return TableCell(NOTHING)
    up = figures.speed_up
    return TableCell(times(up.value), "≈" if up.bounded and not up.excludes(1) else "", best, heat=up.value)


def fit(summary: Summary) -> Iterator[Block]:
    """Speed-up against tokens per round, prompt by prompt."""
    prompts = _prompts(summary)
    if prompts.empty:
        return
    shown, line = prompts[:: math.ceil(len(prompts) / DOTS)], _line(prompts)
    said = "There are too few prompts, or they lie too close together, for a line."
    if line is not None:
        equation, r2 = _equation(line)
        said = f"Least-squares line over {counted(len(prompts), 'point')}: {equation}, r²\u00a0=\u00a0{r2}."
        if line.slope > 0:
            even = number((1 - line.intercept) / line.slope)
            said += f" It crosses 1.0 at {even} tokens per round: below, drafting costs more than it brings."
    if len(shown) < len(prompts):
        said += f" {counted(len(shown), 'point')} of these are drawn."
    ends = np.linspace(prompts.per_round.min(), prompts.per_round.max(), 200)
    points = [] if line is None else [(x, line.intercept + line.slope * x) for x in ends]
    scales, by = Scales(("tokens per round", "speed-up"), level=1.0, line=points), ["number", "entry"]
    series = [_series(n, entry, its) for (n, entry), its in shown.groupby(by)]
    description = f"A point for each prompt and method. {said}"
    chart = plot("Speed-up against tokens per round", description, series, scales, 320)
    groups = [(n, entry, its) for (n, entry), its in prompts.groupby(by)]
    yield Group([chart, Text(said), by_method("Lines of each method alone", ["prompts", "line", "r²"], groups, _cells)])


def _prompts(summary: Summary) -> pd.DataFrame:
    """Tokens per round and speed-up of each prompt that an entry wrote, its turns and repeats taken together."""
    pairs = summary.beside(summary.base)
    pairs = pairs[pairs.entry != summary.base]
    pairs = pairs.assign(calls=pairs.rounds.fillna(pairs.forwards), brought=pairs.emitted.fillna(pairs.tokens))
    columns = ["brought", "calls", "decoded", "seconds_decode", "decoded_base", "seconds_decode_base"]
    found = pairs.groupby(["entry", "prompt"], sort=False)[columns].sum().query("calls > 0").reset_index()
    found["number"] = found.entry.map(summary.entries.index)
    found["per_round"] = found.brought / found.calls
    found["speed_up"] = found.decoded / found.seconds_decode / (found.decoded_base / found.seconds_decode_base)
    return found.sort_values("number", kind="stable")


def _series(n: int, entry: str, prompts: pd.DataFrame) -> Series:
    points = list(zip(prompts.per_round, prompts.speed_up, strict=True))
    places = zip(prompts.prompt, points, strict=True)
    tips = [f"{entry}, {prompt}: {times(y)} at {number(x)} tokens per round" for prompt, (x, y) in places]
    return Series(n, entry, points, tips)


def _line(prompts: pd.DataFrame) -> Any:
    """The line of least squares; None where the points do not determine one: fewer than three, or all above one
    place."""
    if len(prompts) < 3 or prompts.per_round.std() < 1e-6:
        return None
    return linregress(prompts.per_round, prompts.speed_up)


def _equation(line: Any) -> tuple[str, str]:
    """A line, and how much of the points' spread it explains."""
    sign = "+" if line.intercept >= 0 else MINUS
    return f"y = {number(line.slope)} x {sign} {number(abs(line.intercept))}", number(line.rvalue**2)


def _cells(_: str, prompts: pd.DataFrame) -> list[str]:
    line = _line(prompts) if len(prompts) >= FEWEST else None
    return [str(len(prompts)), *((NOTHING, NOTHING) if line is None else _equation(line))]
