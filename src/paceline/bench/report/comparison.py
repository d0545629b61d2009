"""The part that comes first where several runs are reported: what changed between them."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.bench.compare import Between, Call, Finding, across
from paceline.bench.report.blocks import Beside, Block, Cell, Chart, Charts, Part, Row, Section, Table, Text, Warnings
from paceline.bench.report.charts import Interval, intervals
from paceline.bench.report.speed import ALL
from paceline.bench.report.words import NOTHING, counted, interval, listed, short, times
from paceline.bench.summary import Summary


def comparison(summaries: Sequence[Summary]) -> Part:
    """Each run against the first. Runs that share nothing are said to."""
    first, *others = summaries
    empty = [summary.run.name for summary in summaries if not summary.run.records]
    if empty:
        said = f"Nothing can be compared: {listed(empty)} {'holds' if len(empty) == 1 else 'hold'} no text yet."
        return Part("compare", "Paceline benchmark · comparison", said, "", [])
    found = across([summary.run for summary in summaries])
    sections = [
        Section(f"against{number}", f"{other.run.name} against {first.run.name}", _blocks(between))
        for number, (other, between) in enumerate(zip(others, found, strict=True), start=1)
    ]
    more = (
        "What is compared is each method's speed-up over plain decoding, prompt by prompt, so that a machine that was "
        "slower on one day does not count. All intervals are judged together: where nothing differs, at most one "
        "comparison in twenty calls anything."
    )
    return Part("compare", "Paceline benchmark · comparison", _headline(found), more, sections)


def _headline(found: Sequence[Between]) -> str:
    called = [one for between in found for one in between.findings if one.call in (Call.FASTER, Call.SLOWER)]
    overall = [said for between in found if (said := _told(between))]
    if overall:
        return " ".join(overall)
    if called:
        return "Overall no method is told apart from before, but in single tasks some are."
    return "No method became faster or slower, as far as these runs can tell."


def _told(between: Between) -> str:
    """Whose speed-up moved in a run, over all tasks; nothing where none did."""
    moved = [
        f"{short(one.entry)} is {one.call} ({times(one.ratio.value)}, {interval(one.ratio)})"
        for one in between.findings
        if one.task is None and one.call in (Call.FASTER, Call.SLOWER)
    ]
    return f"In {short(between.run.run.name)}, {listed(moved)} than in {short(between.base.run.name)}." if moved else ""


def _blocks(between: Between) -> list[Block]:
    blocks: list[Block] = [Warnings(between.notes)] if between.notes else []
    blocks.append(Text(f"{counted(between.prompts, 'prompt')} in common."))
    overall = [one for one in between.findings if one.task is None]
    if overall:
        rows = [
            Interval(one.entry, one.ratio.value, *_bounds(one), between.run.entries.index(one.entry), _label(one))
            for one in overall
        ]
        told = "; ".join(f"{row.name} {row.label}" for row in rows)
        svg = intervals("Speed-up against the earlier run", f"Ratio of speed-ups: {told}.", rows, 1.0)
        chart = Chart(svg, "Speed-up over that in the earlier run, all tasks. At 1 they are even.")
        table = _table(between, "Speed-up over that in the earlier run", between.findings, calls=True)
        blocks.append(Beside(Charts([chart]), [table]))
    if between.raw:
        caption = "Tokens per second over those in the earlier run: machine or code, runs made apart cannot tell"
        blocks.append(_table(between, caption, between.raw, calls=False))
    return blocks


def _table(between: Between, caption: str, findings: Sequence[Finding], *, calls: bool) -> Table:
    cells = {(one.entry, one.task): one for one in findings}
    columns: list[str | None] = [None, *(between.tasks if len(between.tasks) > 1 else [])]
    rows = [
        Row(entry, [_cell(cells.get((entry, task)), calls=calls) for task in columns], between.run.entries.index(entry))
        for entry in dict.fromkeys(one.entry for one in findings)
    ]
    return Table(caption, ["method", *(task or ALL for task in columns)], rows)


def _cell(one: Finding | None, *, calls: bool) -> Cell:
    if one is None:
        return Cell(NOTHING)
    small = [interval(one.ratio), str(one.call) if calls else ""]
    return Cell(times(one.ratio.value), "\n".join(filter(None, small)))


def _bounds(one: Finding) -> tuple[float, float]:
    return (one.ratio.low, one.ratio.high) if one.ratio.bounded else (one.ratio.value, one.ratio.value)


def _label(one: Finding) -> str:
    bounds = interval(one.ratio)
    return f"{times(one.ratio.value)} ({bounds}) {one.call}" if bounds else times(one.ratio.value)
