"""The forms of a report: a page and GitHub Markdown, by templates that show the same blocks.

Nothing of a run is markup: text from it is escaped where a template shows it, and control characters are signs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, Template
from markupsafe import Markup

from paceline.api.pictures.page import VISIBLE_SIGNS, document, token_text
from paceline.api.pictures.tokens import HALVES
from paceline.files.visible import CONTROLS, DIRECTIONS
from paceline_lab.bench.report.blocks import Part, Section, TableCell, Tokens
from paceline_lab.bench.report.charts import look

TEMPLATES = Path(__file__).with_name("templates")
STEPS = (0.5, 0.67, 0.8, 0.91, 0.98, 1.02, 1.1, 1.25, 1.5, 2.0)
"""Between these bounds of speed-ups lie the colours of the heat map, the middle one for no difference."""
BAR = 8
EIGHTHS = " ▏▎▍▌▋▊▉█"
SIGNS = CONTROLS | HALVES | DIRECTIONS | dict.fromkeys([0x200E, 0x200F, 0x061C], 0xFFFD) | {0x2028: " ", 0x2029: " "}
"""In Markdown, characters that turn the direction of text are signs, too: nothing there ends their reach."""
MARKUP = re.compile(r"([\`*_\[\]#|~$@])")


def report_page(title: str, parts: Sequence[Part], mark: str) -> str:
    """The whole page. ``mark`` is in its head, and is not visible."""
    return _page(title, mark, parts=parts)


def texts_page(title: str, mark: str, links: Sequence[tuple[str, str]], sections: Sequence[Section]) -> str:
    """A page of texts, with links to the report and to its neighbours."""
    return _page(title, mark, links=links, sections=sections)


def report_markdown(parts: Sequence[Part], mark: str) -> str:
    """The whole text. ``mark`` begins it, and is not seen."""
    filters = {"cell": _cell, "fenced": _fenced, "longest": _longest}
    return _template("report.md", plain, **filters).render(parts=parts, mark=Markup(mark)).rstrip() + "\n"


def _page(title: str, mark: str, **shown: Any) -> str:
    bounds = [f"{bound:g}" for bound in STEPS]
    steps = list(zip(["0", *bounds], [*bounds, "more"], strict=True))
    main = _template("page.html", _shown, look=look, step=step_of, tokens=_tokens)
    style = (TEMPLATES / "report.css").read_text(encoding="utf8")
    return document(title, main.render(title=title, steps=steps, **shown), style, mark)


@cache
def _template(name: str, said: Callable[[str], str], **filters: Callable[..., Any]) -> Template:
    """``said`` is applied to all text from a run, before what is not yet `Markup` is escaped."""

    def finalize(value: Any) -> Any:
        return said(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    loader = FileSystemLoader(TEMPLATES)
    found = Environment(loader=loader, autoescape=True, finalize=finalize, trim_blocks=True, lstrip_blocks=True)
    found.filters |= filters
    return found.get_template(name)


def _shown(text: str) -> str:
    return text.translate(VISIBLE_SIGNS)


def _tokens(block: Tokens) -> Markup:
    return Markup(token_text(block.picture, block.numbers))


def step_of(speed_up: float) -> int:
    """Which colour a speed-up has: 0 for the slowest."""
    return sum(speed_up >= bound for bound in STEPS)


def plain(text: str) -> Markup:
    """Text that is no Markdown, on one line."""
    flat = " ".join(text.split()).translate(SIGNS)
    return Markup(MARKUP.sub(r"\\\1", flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")))


def _longest(cells: Sequence[TableCell | str]) -> float:
    return max((cell.bar for cell in cells if isinstance(cell, TableCell) and cell.bar is not None), default=0.0)


def _cell(cell: TableCell | str, longest: float) -> Markup:
    if isinstance(cell, str):
        return Markup(plain(cell) or " ")
    words: str = plain(cell.said)
    words = f"**{words}** ★" if cell.best and words else f"[{words}]({cell.link})" if cell.link else words
    small = "".join(f"<br>{plain(line)}" for line in cell.small.split("\n")) if cell.small else ""
    bar = _bar(cell.bar / longest) if cell.bar and longest else ""
    return Markup(f"{bar} {words}{small}".strip() or " ")


def _bar(share: float) -> str:
    eighths = max(1, round(share * BAR * 8))
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()


def _fenced(code: str) -> Markup:
    """Code between fences that it cannot end."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", code)), default=0))
    return Markup("\n".join([f"{fence}sh", *code.translate(SIGNS | {10: "\n"}).splitlines(), fence]))
