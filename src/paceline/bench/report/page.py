"""The report as one page: it needs nothing from elsewhere, runs nothing, and stands alone when it is mailed.

Everything from a run goes through `said`. Tables scroll in boxes of their own, so the page never does sideways.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paceline.api.pictures.page import document, said, token_text
from paceline.bench.report.blocks import (
    Beside,
    Block,
    Cell,
    Charts,
    Code,
    Columns,
    Heat,
    Part,
    Quote,
    Row,
    Section,
    Table,
    Text,
    Tiles,
    Tokens,
    Warnings,
)
from paceline.bench.report.charts import key
from paceline.bench.report.style import HEAT, REPORT_STYLE

STEPS = (0.5, 0.67, 0.8, 0.91, 0.98, 1.02, 1.1, 1.25, 1.5, 2.0)
"""Between these bounds of speed-ups lie the colours of the heat map."""
MIDDLE = len(STEPS) // 2


def report_page(title: str, parts: Sequence[Part], mark: str) -> str:
    """The whole page. ``mark`` stands in its head, and is not seen."""
    return document(title, "".join(line for part in parts for line in _part(part)), REPORT_STYLE, mark)


def texts_page(
    title: str, mark: str, back: str, neighbours: Sequence[tuple[str, str]], sections: Sequence[Section]
) -> str:
    """A page of texts, with ways to the report and to the pages beside it."""
    links = "".join(f'<a href="{said(place)}">{said(name)}</a>' for name, place in (("report", back), *neighbours))
    main = f"<nav>{links}</nav>\n<h1>{said(title)}</h1>\n{''.join(map(_section, sections))}"
    return document(title, main, REPORT_STYLE, mark)


def _part(part: Part) -> Iterator[str]:
    yield f'<article id="{part.key}">\n<header><p class="kicker">{said(part.kicker)}</p>\n'
    yield f"<h1>{said(part.headline)}</h1>\n"
    if part.more:
        yield f'<p class="lead">{said(part.more)}</p>\n'
    yield "</header>\n"
    opening = [section for section in part.sections if not section.title]
    yield from ("".join(map(_block, section.blocks)) for section in opening)
    titled = [section for section in part.sections if section.title]
    if len(titled) > 4:
        links = "".join(f'<a href="#{part.key}-{s.key}">{said(s.title)}</a>' for s in titled)
        yield f'<nav aria-label="sections">{links}</nav>\n'
    yield from (_section(section, part.key) for section in titled)
    yield "</article>\n"


def _section(section: Section, part: str = "") -> str:
    name = f"{part}-{section.key}" if part else section.key
    blocks = "".join(map(_block, section.blocks))
    return f'<section id="{name}">\n<h2>{said(section.title)}</h2>\n{blocks}</section>\n'


def _block(block: Block) -> str:
    match block:
        case Text(words):
            return f"<p>{said(words)}</p>\n"
        case Table():
            return _table(block)
        case Charts():
            return _charts(block)
        case Heat():
            return _heat_legend()
        case Tiles(figures):
            tiles = "".join(
                f"<div><dt>{said(name)}</dt><dd>{said(value)}</dd><dd class=under>{said(under)}</dd></div>"
                for name, value, under in figures
            )
            return f'<dl class="tiles">{tiles}</dl>\n'
        case Warnings(sentences):
            return _warnings(sentences)
        case Code(words):
            return f"<pre><code>{said(words)}</code></pre>\n"
        case Quote(words):
            return f'<blockquote dir="auto">{said(words)}</blockquote>\n'
        case Tokens():
            return _tokens(block)
        case Beside(left, right):
            return f'<div class="beside"><div>{_charts(left)}</div>\n<div>{"".join(map(_block, right))}</div></div>\n'
        case Columns(tables):
            return f'<div class="columns">{"".join(map(_table, tables))}</div>\n'


def _warnings(sentences: Sequence[str]) -> str:
    if not sentences:
        calm = "<b>No warnings.</b> Nothing in the records speaks against these numbers."
        return f'<aside class="calm"><p>{calm}</p></aside>\n'
    items = "".join(f"<li>{said(sentence)}</li>" for sentence in sentences)
    count = "A warning" if len(sentences) == 1 else f"{len(sentences)} warnings"
    return f'<aside class="warn"><h2>{count} before you read on</h2>\n<ul>{items}</ul></aside>\n'


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col"><bdi>{said(name)}</bdi></th>' for name in table.head)
    body = "".join(map(_row, table.rows))
    label = said(table.caption)
    kind = "words" if table.words else "heat" if _heated(table) else "numbers"
    top = f"<thead><tr>{head}</tr></thead>" if any(table.head) else ""
    drawn = f'<table class="{kind}" aria-label="{label}">{top}<tbody>\n{body}</tbody></table>'
    box = f'<div class="wide" role="region" aria-label="{label}" tabindex="0">{drawn}</div>\n'
    if not table.folded:
        return f'<div class="tabled"><p class="caption">{label}</p>\n{box}</div>\n'
    return f"<details><summary>{label} ({len(table.rows)} rows)</summary>\n{box}</details>\n"


def _heated(table: Table) -> bool:
    return any(isinstance(cell, Cell) and cell.heat is not None for row in table.rows for cell in row.cells)


def _row(row: Row) -> str:
    mark = "" if row.number is None else key(row.number)
    cells = "".join(map(_cell, row.cells))
    return f'<tr><th scope="row">{mark}<bdi>{said(row.name)}</bdi></th>{cells}</tr>\n'


def _cell(cell: Cell | str) -> str:
    if isinstance(cell, str):
        return f"<td>{said(cell)}</td>"
    looks = [*(["best"] if cell.best else []), *([f"h{step_of(cell.heat)}"] if cell.heat is not None else [])]
    kind = f' class="{" ".join(looks)}"' if looks else ""
    words = f'<a href="{said(cell.link)}">{said(cell.said)}</a>' if cell.link else said(cell.said)
    star = '<span class="star" title="the fastest here">★</span>' if cell.best else ""
    if cell.heat is not None:
        chance = '<span title="the interval holds 1">≈</span>' if cell.small else ""
        return f"<td{kind}>{chance}{words}{star}</td>"
    small = f"<small>{said(cell.small)}</small>" if cell.small else ""
    return f"<td{kind}>{star}{words}{small}</td>"


def step_of(speed_up: float) -> int:
    """Which colour a speed-up has: 0 for the slowest, the middle one for no difference."""
    return sum(speed_up >= bound for bound in STEPS)


def _heat_legend() -> str:
    assert len(HEAT) == len(STEPS) + 1, "a colour between every two bounds, and at both ends"
    swatches = []
    for step in range(len(HEAT)):
        low = f"{STEPS[step - 1]:g}" if step else "0"
        high = f"{STEPS[step]:g}" if step < len(STEPS) else "more"
        shown = "1" if step == MIDDLE else low if step else f"&lt;{high}"
        swatches.append(f'<li class="h{step}" title="from {low} to {high}">{shown}</li>')
    return (
        f'<div class="heatkey"><span>slower</span><ol>{"".join(swatches)}</ol><span>faster</span>'
        "<span>≈ the interval holds 1</span><span>★ fastest of the row, beyond chance</span></div>\n"
    )


def _charts(block: Charts) -> str:
    figures = "".join(
        f"<figure>{_named(chart.number, chart.name)}{chart.svg}"
        f"{f'<figcaption>{said(chart.caption)}</figcaption>' if chart.caption else ''}</figure>\n"
        for chart in block.charts
    )
    entries = "".join(f"<li>{key(number)}<bdi>{said(name)}</bdi></li>" for number, name in block.entries)
    parts = "".join(f'<li><i class="swatch {kind}"></i>{said(name)}</li>' for kind, name in block.parts)
    legend = f'<ul class="keys">{entries}{parts}</ul>\n' if entries or parts else ""
    many = " many" if any(chart.name for chart in block.charts) else ""
    return f'<div class="charts{many}">{figures}</div>\n{legend}'


def _named(number: int | None, name: str) -> str:
    return f'<p class="whose">{key(number)}<bdi>{said(name)}</bdi></p>' if name and number is not None else ""


def _tokens(block: Tokens) -> str:
    more = f' · <a href="{said(block.link)}">all of it, by all methods</a>' if block.link else ""
    if block.plain:
        drawn = f'<div class="text" dir="auto"><span class="t">{said(block.plain)}</span></div>\n'
        drawn = f"<p>It does not tell where its tokens come from.</p>\n{drawn}"
    else:
        drawn = token_text(block.picture, block.numbers)
    return (
        f'<div class="tokens"><h3>{key(block.number)}<bdi>{said(block.name)}</bdi></h3>'
        f'<p class="facts">{said(block.figures)}{more}</p>\n{drawn}</div>\n'
    )
