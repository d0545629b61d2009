"""The whole report: every file of it, by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from paceline.bench.warnings import warnings
from paceline.bench.report.blocks import Part, Section, Warnings
from paceline.bench.report.comparison import comparison
from paceline.bench.report.costs import energy, latency
from paceline.bench.report.markdown import report_markdown
from paceline.bench.report.page import report_page, texts_page
from paceline.bench.report.provenance import provenance
from paceline.bench.report.rounds import by_position, per_round, time_split
from paceline.bench.report.speed import acceptance_and_speed, figures_at_a_glance, heat, speed
from paceline.bench.report.texts import equality, examples, in_order, prompts_to_show, quoted, shown
from paceline.bench.report.words import headline, second_sentences
from paceline.bench.run.record import Record
from paceline.bench.summary import Summary

TEXTS = "texts"
PAGE, MARKDOWN = "report.html", "report.md"
MARK = "written by paceline bench report"


@dataclass(frozen=True)
class TextPage:
    """Where the texts of one prompt of a run stand."""

    summary: Summary
    prompt: str
    name: str


def files(summaries: Sequence[Summary], *, texts: int) -> Iterator[tuple[str, str]]:
    """Names and contents. ``texts`` is how many prompts get a page, of all runs together."""
    pages = list(_text_pages(summaries, texts))
    parts = [
        _of_run(number, summary, [page for page in pages if page.summary is summary])
        for number, summary in enumerate(summaries, start=1)
    ]
    if len(summaries) > 1:
        parts.insert(0, comparison(summaries))
    yield PAGE, report_page(_title(summaries), parts, MARK)
    yield MARKDOWN, report_markdown(parts, MARK)
    for number, page in enumerate(pages):
        beside = {"previous": pages[number - 1 : number], "next": pages[number + 1 : number + 2]}
        yield page.name, _text_page(page, {word: found[0] for word, found in beside.items() if found})


def _title(summaries: Sequence[Summary]) -> str:
    return f"Benchmark: {', '.join(summary.run.name for summary in summaries)}"


def _text_pages(summaries: Sequence[Summary], most: int) -> Iterator[TextPage]:
    number, left = 0, most
    for place, summary in enumerate(summaries):
        prompts = prompts_to_show(summary, left // (len(summaries) - place))
        left -= len(prompts)
        for prompt in prompts:
            number += 1
            yield TextPage(summary, prompt, f"{TEXTS}/{number}.html")


def _of_run(number: int, summary: Summary, pages: Sequence[TextPage]) -> Part:
    """One run from headline to provenance."""
    opening = Section("glance", "", [figures_at_a_glance(summary), Warnings(warnings(summary))])
    if not summary.run.records:
        sections = [opening, provenance(summary)]
    else:
        total = len({record.prompt for record in summary.run.records})
        found = [
            *(opening, speed(summary), heat(summary), per_round(summary), by_position(summary), time_split(summary)),
            *(acceptance_and_speed(summary), latency(summary), energy(summary), equality(summary)),
            examples(summary, {page.prompt: page.name for page in pages}, [page.prompt for page in pages], total),
            provenance(summary),
        ]
        sections = [section for section in found if section is not None]
    sittings = summary.run.about.sittings
    when = str(sittings[0].get("started") or sittings[0].get("when") or "")[:10] if sittings else ""
    kicker = " · ".join(filter(None, ["Paceline benchmark", summary.run.name, when]))
    return Part(f"run{number}", kicker, headline(summary), second_sentences(summary), sections)


def _text_page(page: TextPage, beside: Mapping[str, TextPage]) -> str:
    """All texts of one prompt, turn by turn."""
    summary = page.summary
    records = [r for r in summary.run.records if r.prompt == page.prompt]
    first = min(record.repeat for record in records)
    turns: dict[int, list[Record]] = {}
    for record in records:
        if record.repeat == first:
            turns.setdefault(record.turn, []).append(record)
    sections = [
        Section(
            f"turn{turn + 1}",
            f"Turn {turn + 1}" if len(turns) > 1 else "As each contestant wrote it",
            [*quoted(summary, page.prompt, turn), *(shown(summary, r) for r in in_order(summary, found))],
        )
        for turn, found in turns.items()
    ]
    neighbours = [(word, other.name.removeprefix(f"{TEXTS}/")) for word, other in beside.items()]
    title = f"{records[0].task}, {records[0].language}: {page.prompt}"
    return texts_page(title, MARK, f"../{PAGE}", neighbours, sections)
