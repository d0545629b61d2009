"""The part that comes first where several runs are reported: what changed between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paceline_lab.bench.compare import DISTINCT, TOO_FEW, Between, Finding, RatioName, across
from paceline_lab.bench.report.blocks import Block, Group, Part, Section, Table, TableCell, Text, Warnings, by_method
from paceline_lab.bench.report.charts import Interval, intervals
from paceline_lab.bench.report.words import ALL, NOTHING, counted, interval, labelled, listed, short, times
from paceline_lab.bench.summary import Summary

ABOUT = (
    "What is compared is each method's speed-up over plain decoding, prompt by prompt, so that a machine that was "
    "slower on one day does not count. All intervals are judged together: where nothing differs, at most one "
    "comparison in twenty calls anything."
)
RATIO, EVEN = "Speed-up over that in the earlier run", "At 1 they are even."
RAW = "Tokens per second over those in the earlier run: machine or code, runs made apart cannot tell"


def comparison(summaries: Sequence[Summary]) -> Part:
    """Each run against the first. Runs that share nothing are said to."""
    first, *others = summaries
    empty = [summary.run.name for summary in summaries if not summary.run.records]
    if empty:
        said = f"Nothing can be compared: {listed(empty)} {'holds' if len(empty) == 1 else 'hold'} no text yet."
        return Part("compare", "Paceline benchmark · comparison", said, "", [])
    found = across([summary.run for summary in summaries])
    sections = [
        Section(f"against{number}", f"{other.run.name} against {first.run.name}", list(_blocks(between)))
        for number, (other, between) in enumerate(zip(others, found, strict=True), start=1)
    ]
    return Part("compare", "Paceline benchmark · comparison", _headline(found), ABOUT, sections)


def _headline(found: Sequence[Between]) -> str:
    findings = [one for between in found for one in between.findings]
    overall = [said for between in found if (said := _moved(between))]
    if overall:
        said = " ".join(overall)
    elif any(one.call in DISTINCT for one in findings):
        said = "Overall no method became faster or slower, but in single tasks some did."
    elif any(one.call is RatioName.SAME for one in findings):
        said = "No method became faster or slower, as far as these runs can tell."
        if not any(between.decided for between in found):
            said = f"These are {TOO_FEW} whether a method became faster or slower."
    else:
        return f"These runs cannot be compared: {_why(found)}."
    apart = [short(between.run.run.name) for between in found if not between.prompts]
    return f"{said} {listed(apart)} cannot be compared: no prompt is in common." if apart else said


def _why(found: Sequence[Between]) -> str:
    """Why there is nothing that could be called."""
    if not any(between.prompts for between in found):
        return "they have no prompt in common"
    if any(between.findings for between in found):
        return "there is no interval around the ratio of one prompt"
    return f"no method but {found[0].run.base} is in both"


def _moved(between: Between) -> str:
    """Entries with another speed-up than before, over all tasks, in a sentence; empty where there is none."""
    moved = [
        f"{short(one.entry)} is {one.call} ({times(one.ratio.value)}, {interval(one.ratio)})"
        for one in between.findings
        if one.task is None and one.call in DISTINCT
    ]
    return f"In {short(between.run.run.name)}, {listed(moved)} than in {short(between.base.run.name)}." if moved else ""


def _blocks(between: Between) -> Iterator[Block]:
    if between.notes:
        yield Warnings(between.notes)
    if not between.prompts:
        return
    yield Text(f"{counted(between.prompts, 'prompt')} in common.")
    overall = [one for one in between.findings if one.task is None]
    if overall:
        number = between.run.entries.index
        rows = [Interval(number(one.entry), one.entry, one.ratio, _label(one, between.decided)) for one in overall]
        chart = intervals("Speed-up against the earlier run", "Ratio of speed-ups", rows, f"{RATIO}, all tasks. {EVEN}")
        yield Group([chart, _table(between, RATIO, between.findings, calls=between.decided)])
    if between.raw:
        yield _table(between, RAW, between.raw, calls=False)


def _table(between: Between, caption: str, findings: Sequence[Finding], *, calls: bool) -> Table:
    found = {(one.entry, one.task): one for one in findings}
    tasks: list[str | None] = [None, *(between.tasks if len(between.tasks) > 1 else [])]

    def cells(entry: str, _: object) -> list[TableCell]:
        return [_cell(found.get((entry, task)), calls=calls) for task in tasks]

    entries = [
        (between.run.entries.index(entry), entry, None) for entry in dict.fromkeys(one.entry for one in findings)
    ]
    return by_method(caption, [task or ALL for task in tasks], entries, cells)


def _cell(one: Finding | None, *, calls: bool) -> TableCell:
    if one is None:
        return TableCell(NOTHING)
    small = [interval(one.ratio), str(one.call) if calls else ""]
    return TableCell(times(one.ratio.value), "\n".join(filter(None, small)))


def _label(one: Finding, decided: bool) -> str:
    return labelled(one.ratio) + (f" {one.call}" if decided and interval(one.ratio) else "")
