"""The whole report: every file of it, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from paceline_lab.bench.report.blocks import Block, Part, Section, Warnings
from paceline_lab.bench.report.comparison import comparison
from paceline_lab.bench.report.forms import report_markdown, report_page, texts_page
from paceline_lab.bench.report.provenance import provenance
from paceline_lab.bench.report.rounds import by_position, energy, latency, per_round, time_split
from paceline_lab.bench.report.speed import fit, glance, heat, speed
from paceline_lab.bench.report.texts import equality, examples, in_order, prompts_to_show, quoted, shown
from paceline_lab.bench.report.words import headline, second_sentences
from paceline_lab.bench.summary import Summary
from paceline_lab.bench.warnings import warnings

TEXTS = "texts"
PAGE, MARKDOWN = "report.html", "report.md"
MARK = "written by paceline bench report"
SECTIONS: dict[str, tuple[str, Callable[[Summary], Iterable[Block]]]] = {
    "speed": ("Speed-up by task", speed),
    "heat": ("Where it helps", heat),
    "rounds": ("Tokens per round", per_round),
    "positions": ("Acceptance by position", by_position),
    "time": ("Where the time goes", time_split),
    "fit": ("Speed-up against acceptance", fit),
    "latency": ("Waiting", latency),
    "energy": ("Energy and memory", energy),
    "equality": ("The same text?", equality),
}
"""Of a run that has texts. Those without a block are left out."""


@dataclass(frozen=True)
class TextPage:
    """The page with the texts of one prompt of a run."""

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
    opening = Section("glance", "", [glance(summary), Warnings(warnings(summary))])
    sections = [opening, Section("provenance", "How it was made", list(provenance(summary)))]
    if summary.run.records:
        found = [Section(key, title, list(blocks(summary))) for key, (title, blocks) in SECTIONS.items()]
        texts = examples(summary, {page.prompt: page.name for page in pages})
        found.append(Section("texts", "Texts, token by token", list(texts)))
        sections[1:1] = [section for section in found if section.blocks]
    sittings = summary.run.about.sittings
    when = str(sittings[0].get("started") or sittings[0].get("when") or "")[:10] if sittings else ""
    kicker = " · ".join(filter(None, ["Paceline benchmark", summary.run.name, when]))
    return Part(f"run{number}", kicker, headline(summary), second_sentences(summary), sections)


def _text_page(page: TextPage, beside: Mapping[str, TextPage]) -> str:
    """All texts of one prompt, turn by turn."""
    summary = page.summary
    texts = summary.texts[summary.texts.prompt == page.prompt]
    turns = texts[texts["repeat"] == texts["repeat"].min()].groupby("turn", sort=False).groups
    sections = [
        Section(
            f"turn{turn + 1}",
            f"Turn {turn + 1}" if len(turns) > 1 else "As each contestant wrote it",
            [*quoted(summary, page.prompt, turn), *(shown(summary, text) for text in in_order(summary, found))],
        )
        for turn, found in turns.items()
    ]
    first = texts.iloc[0]
    links = [
        ("report", f"../{PAGE}"),
        *((word, other.name.removeprefix(f"{TEXTS}/")) for word, other in beside.items()),
    ]
    return texts_page(f"{first.task}, {first.language}: {page.prompt}", MARK, links, sections)
