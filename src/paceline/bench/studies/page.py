"""A study as a page: the table, what went as in the paper and what did not, and pictures."""

from __future__ import annotations

from paceline.bench.report.blocks import Block, Chart, Part, Row, Section, Table, Text
from paceline.bench.report.charts import Scales, Series, plot
from paceline.bench.report.forms import report_page
from paceline.bench.studies.base import Drawing, Findings, Study

MARK = "written by paceline bench study"


def study_page(study: Study, findings: Findings, facts: dict[str, str]) -> str:
    """The whole page. ``facts`` say what it was measured on."""
    agreed = sum(bool(sign.agrees) for sign in findings.signs)
    headline = f"{study.summary[0].upper()}{study.summary[1:]}"
    more = f"{agreed} of {len(findings.signs)} went as in the paper." if findings.signs else ""
    sections = [
        Section("glance", "", [Text(", ".join(f"{name} {value}" for name, value in facts.items()))]),
        Section("signs", "The paper and here", _signs(findings)),
    ]
    if findings.drawings:
        sections.append(Section("pictures", "Pictures", [_charts(drawing) for drawing in findings.drawings]))
    sections.append(Section("table", "Table", [_table(findings)]))
    part = Part("study", f"UniSpec, {study.source}", headline, more, sections)
    return report_page(f"Study: {study.name}", [part], MARK)


def _signs(findings: Findings) -> list[Block]:
    return [Text(f"{said[0].upper()}{said[1:]}.") for said in (*(s.sentence for s in findings.signs), *findings.notes)]


def _charts(drawing: Drawing) -> Chart:
    lines = [line for line in drawing.lines if line.points]
    across, up = drawing.words
    told = f"{up} by {across}, a line for each of {', '.join(line.name for line in lines)}"
    series = [
        Series(one.number, one.name, one.points, [f"{one.name}: {y:.3g} at {x:g}" for x, y in one.points], joined=True)
        for one in lines
    ]
    return plot(drawing.title, told, series, Scales(drawing.words), 280, drawing.title)


def _table(findings: Findings) -> Table:
    last = -1 if not findings.head[-1] else None
    rows = [Row(name, tuple(cells[:last])) for name, *cells in findings.rows]
    return Table("As measured here", findings.head[:last], rows)
