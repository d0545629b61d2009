"""A sweep as lines, as Markdown and as one page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from paceline.bench.dictionaries import paper
from paceline.bench.dictionaries.figures import fertility_figure, order_figure, size_figure
from paceline.bench.dictionaries.findings import Findings, Sentence, best_by_order, mean_by_size, paper_best
from paceline.bench.dictionaries.sweep.cells import Cell, Swept, ngrams
from paceline.bench.dictionaries.sweep.folder import Folder
from paceline.bench.dictionaries.sweep.settings import Settings
from paceline.bench.report.blocks import Cell as Entry
from paceline.bench.report.blocks import Part, Row, Section, Table, Text
from paceline.bench.report.forms import report_markdown, report_page

MARK = "written by paceline dict sweep"


def report(path: Path, settings: Settings, swept: Swept, findings: Findings) -> None:
    """Write results.jsonl, report.md and report.html."""
    folder = Folder(path, settings)
    folder.write("results.jsonl", "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in swept.rows()))
    part = _part(settings, swept, findings)
    folder.write("report.md", report_markdown([part], MARK))
    every = replace(part, sections=[*part.sections, Section("cells", "All dictionaries", [_cells(swept)])])
    folder.write("report.html", report_page("Dictionaries", [every], MARK))


def _part(settings: Settings, swept: Swept, findings: Findings) -> Part:
    top = max(findings.best.values(), key=lambda cell: cell.tally.speed_up)
    headline = (
        f"With a dictionary a step writes up to {top.tally.speed_up:.2f} tokens: {top.tokenizer} in {top.language}"
    )
    judged = [one for one in findings.told if one.holds is not None]
    more = (
        f"{len(swept.cells)} dictionaries were emulated on text that they were not built from, with drafts of up to "
        f"{settings.budget} tokens. {sum(bool(one.holds) for one in judged)} of {len(judged)} findings are as in the "
        "DictSpec paper."
    )
    sections = [
        Section("findings", "Findings", [_findings(findings)]),
        Section("best", "The best dictionary of each tokenizer and language (Table 4)", [_best(swept, findings)]),
        Section(
            "fertility",
            "Fertility and speed-up (Figure 1)",
            [fertility_figure(swept, findings), _fertilities(swept, findings)],
        ),
        Section("sizes", "Size and least probability (Figure 2)", [size_figure(swept), _sizes(swept)]),
        Section("orders", "Longer n-grams (Figure 3)", [*order_figure(swept), _orders(swept)]),
        Section("words", "Steps per word", [Text(STEPS), _steps(swept, findings)]),
        Section("texts", "Texts", [Text(TEXTS), _texts(swept)]),
    ]
    return Part("sweep", "DictSpec, section 4.5", headline, more, sections)


STEPS = (
    "Tokenizers cut words differently, so their speed-ups say nothing of who is faster for the same text; steps per "
    "word do, as far as a step of their models takes equally long."
)
TEXTS = (
    "Corpora of the paper (its Table 2, in words) beside those here. Test text is whole documents, or the end of a "
    "plain file, and no line of it was counted."
)


def _findings(findings: Findings) -> Table:
    rows = [Row(_verdict(one), [one.said]) for one in findings.told]
    return Table("Whether each is as in the paper, where that says anything of it", ["as there", ""], rows, "words")


def _verdict(one: Sentence) -> str:
    return "–" if one.holds is None else "yes" if one.holds else "no"


def _best(swept: Swept, findings: Findings) -> Table:
    """A row beside the paper's, where it has one."""
    rows = [
        Row(f"{pair[0]} {pair[1]}", [*_beside(cell), _which(cell), *_words(swept, cell)])
        for pair, cell in findings.best.items()
    ]
    head = ["", "speed-up", "coverage", "accepted/draft", "acceptance", "dictionary", "words counted"]
    return Table("What the paper has stands beneath", head, rows)


def _beside(cell: Cell) -> Iterator[Entry]:
    tally, theirs = cell.tally, paper_best(cell.pair)
    ours = (tally.speed_up, tally.coverage, tally.accepted_per_draft, tally.acceptance)
    for number, value in enumerate(ours):
        yield Entry(f"{value:.2f}", f"paper {theirs[number]:.2f}" if theirs is not None else "")


def _which(cell: Cell) -> Entry:
    return Entry(f"{ngrams(cell.order)}, p {cell.min_probability:g}", f"{cell.entries:,} entries")


def _words(swept: Swept, cell: Cell) -> Iterator[Entry]:
    theirs = paper.CORPORA.get(cell.language) if paper_best(cell.pair) is not None else None
    yield Entry(f"{swept.about(cell.pair).train_words:,}", f"paper {theirs.train:,}" if theirs is not None else "")


def _fertilities(swept: Swept, findings: Findings) -> Table:
    ranked = sorted(findings.best.values(), key=lambda cell: -swept.about(cell.pair).fertility)
    rows = [
        Row(" ".join(cell.pair), [f"{swept.about(cell.pair).fertility:.2f}", f"{cell.tally.speed_up:.3f}"])
        for cell in ranked
    ]
    return Table("Tokens per word and best speed-up", ["", "tokens per word", "speed-up"], rows)


def _sizes(swept: Swept) -> Table:
    leasts = sorted({cell.min_probability for cell in swept.cells})
    means = {least: mean_by_size(swept, least) for least in leasts}
    sizes = sorted({cell.size for cell in swept.cells})
    rows = [Row(f"{size:,}", [f"{means[least][size]:.3f}" for least in leasts]) for size in sizes]
    return Table("Mean speed-up by entries and least probability", ["entries", *(f"{p:g}" for p in leasts)], rows)


def _orders(swept: Swept) -> Table:
    orders = sorted({cell.order for cell in swept.cells})
    rows = []
    for about in swept.abouts:
        by = best_by_order(swept, about.pair)
        rows.append(Row(" ".join(about.pair), [f"{by[order].tally.speed_up:.3f}" for order in orders]))
    return Table("Best speed-up by order", ["", *map(ngrams, orders)], rows)


def _steps(swept: Swept, findings: Findings) -> Table:
    rows = [
        Row(
            f"{about.language} {about.tokenizer}",
            [f"{about.fertility:.2f}", f"{about.steps_per_word:.2f}", f"{cell.tally.steps / about.test_words:.2f}"],
        )
        for language in swept.languages
        for about in swept.abouts
        if about.language == language and (cell := findings.best[about.pair])
    ]
    head = ["", "tokens per word, line by line", "steps without", "steps with the best"]
    return Table("Steps per word", head, rows)


def _texts(swept: Swept) -> Table:
    rows = []
    for language in swept.languages:
        about = next(one for one in swept.abouts if one.language == language)
        theirs = paper.CORPORA.get(language)
        told = (f"{theirs.train:,}", f"{theirs.valid:,}") if theirs is not None else ("", "")
        rows.append(Row(language, [f"{about.train_words:,}", f"{about.test_words:,}", *told]))
    return Table("Words", ["language", "counted", "tested", "paper, counted", "paper, tested"], rows)


def _cells(swept: Swept) -> Table:
    head = ["", "asked for", "entries", "speed-up", "coverage", "accepted/draft", "acceptance", "steps/word"]
    words = {about.pair: about.test_words for about in swept.abouts}
    rows = [
        Row(
            f"{cell.tokenizer} {cell.language} {ngrams(cell.order)} p {cell.min_probability:g}",
            [
                f"{cell.size:,}",
                f"{cell.entries:,}" if cell.filled else Entry(f"{cell.entries:,}", "no more"),
                *(f"{value:.3f}" for value in _ratios(cell)),
                f"{cell.tally.steps / words[cell.pair]:.3f}",
            ],
        )
        for cell in swept.cells
    ]
    return Table("Every dictionary", head, rows, folded=True)


def _ratios(cell: Cell) -> tuple[float, ...]:
    tally = cell.tally
    return tally.speed_up, tally.coverage, tally.accepted_per_draft, tally.acceptance
