"""The picture of a text as a self-contained page: one file that loads no scripts, fonts or anything else.

Without its tags an element ``.text`` is the prompt and the text, character for character, except for control
characters: a browser shows nothing for them, so their signs stand there, as in a terminal. Each token's ``title`` and
``data-ids`` say which it was. Signs for line ends and for the end belong to the style sheet, not to the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.api.pictures.tokens import HALVES, WHY_OWN, Cell, TokenPicture
from paceline.files.visible import CONTROLS
from paceline.verify import Kind

if TYPE_CHECKING:
    from paceline.api.piece import Piece
    from paceline.engine.counters import Totals

PAGE_STYLE = Path(__file__).with_name("page.css")
COLORS = 5
"""Of drafters, in the style sheet."""
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""The permissions of a page in a browser. No HTML here needs more, the picture in a notebook included."""
GENERATOR = "Paceline"
SHOWN_BYTES = 40
VISIBLE_SIGNS = {code: sign for code, sign in CONTROLS.items() if chr(code) not in "\t\n"} | HALVES


def page(title: str, sections: Iterable[str]) -> str:
    """A whole document of sections that the other functions here made."""
    return document(title, f"<h1>{said(title)}</h1>\n{''.join(sections)}")


def document(title: str, main: str, style: str = "", mark: str = GENERATOR) -> str:
    """A whole document of what is already HTML. ``style`` adds to the rules that all pages share; ``mark`` says in the
    head what made it."""
    styles = PAGE_STYLE.read_text(encoding="utf8") + style
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f'<meta name="generator" content="{mark}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{said(title)}</title>\n<style>\n{styles}</style>\n</head>\n<body>\n<main>\n"
        f"{main}</main>\n</body>\n</html>\n"
    )


def token_section(picture: TokenPicture) -> str:
    """Facts, totals, legend and text of one picture."""
    heading = f"<h2>{said(picture.title)}</h2>\n" if picture.title else ""
    return f"<section>\n{heading}{facts(picture.facts)}{_totals(picture.totals)}{token_text(picture)}</section>\n"


def token_text(picture: TokenPicture, numbers: Mapping[str, int] | None = None) -> str:
    """Legend and text alone. ``numbers`` gives sources their colours, where several pictures are to agree on them."""
    number = {source: index for index, source in enumerate(picture.counts)}
    if numbers is not None:
        number = {source: numbers[source] for source in number}
    prompt = f'<span class="prompt" title="the prompt">{said(picture.prompt)}</span>' if picture.prompt else ""
    before = 0 if picture.totals is None else picture.totals.tokens_of_prefill
    drawn = _cells(picture.cells, number, before)
    return f'{_legend(picture, number)}<div class="text" dir="auto">{prompt}{drawn}</div>\n'


def table_section(title: str, head: Sequence[str], rows: Iterable[Sequence[str]], notes: Iterable[str] = ()) -> str:
    """A table whose first column names its rows."""
    headings = "".join(f'<th scope="col">{said(cell)}</th>' for cell in head)
    body = "".join(
        f'<tr><th scope="row">{said(row[0])}</th>{"".join(f"<td>{said(cell)}</td>" for cell in row[1:])}</tr>\n'
        for row in rows
    )
    under = "".join(f'<p class="facts">{said(note)}</p>\n' for note in notes)
    table = f"<table>\n<thead><tr>{headings}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>\n"
    return f'<section>\n<h2>{said(title)}</h2>\n<div class="wide">{table}</div>{under}</section>\n'


def facts(named: Mapping[str, Any]) -> str:
    """One line of names and values."""
    if not named:
        return ""
    parts = (f"<span>{said(key)} <b>{said(str(value))}</b></span>" for key, value in named.items())
    return f'<p class="facts">{" ".join(parts)}</p>\n'


def _totals(totals: Totals | None) -> str:
    if totals is None:
        return ""
    figures = {
        "tokens": str(totals.tokens),
        "tokens behind the first": str(totals.tokens_in_rounds),
        "rounds": str(totals.rounds),
        "tokens per round": f"{totals.tokens_per_round:.2f}",
        "mean accepted": f"{totals.mean_accepted:.2f}",
        "of drafted tokens accepted": f"{totals.as_dict()['acceptance_rate']:.0%}",
        "tokens per second": f"{totals.tokens_per_second:.1f}",
    }
    parts = (f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in figures.items())
    return f'<dl class="totals">{"".join(parts)}</dl>\n'


def _legend(picture: TokenPicture, number: Mapping[str, int]) -> str:
    entries = [
        *((_look(number[s], Kind.ACCEPTED), f"accepted from {s}", picture.counts[s]) for s in number if s),
        *((_look(0, kind), WHY_OWN[kind], count) for kind, count in picture.own.items()),
    ]
    items = (f'<li><span class="{look}">{said(name)}</span> {count}</li>' for look, name, count in entries)
    note = '<li class="note">a thin bar begins a round; point at a token to read about it</li>'
    return f'<ul class="legend">{"".join(items)}{note}</ul>\n'


def _cells(cells: Sequence[Cell], number: Mapping[str, int], before: int) -> str:
    """The text in colours. ``before`` counts the records before the first round, of the forward over the prompt."""
    drawn, last = [], -1
    for cell in cells:
        looks = [_look(number[cell.source], cell.kind), *(["begin"] if cell.round != last else [])]
        last = cell.pieces[-1].round
        mixed = _mixture([number[source] for source in cell.sources])
        title = said("\n".join(_about(piece, before) for piece in cell.pieces))
        ids = " ".join(str(piece.token) for piece in cell.pieces)
        end = "" if cell.text else " end"
        text = said(cell.text).replace("\n", '<i class="nl">\n</i>')
        drawn.append(f'<span class="{" ".join(looks)}{end}" data-ids="{ids}" title="{title}"{mixed}>{text}</span>')
    return "".join(drawn)


def _about(piece: Piece, before: int) -> str:
    """The facts about one token, in one line."""
    shown = piece.text if len(piece.text) <= SHOWN_BYTES else piece.text[:SHOWN_BYTES] + "…"
    spelled = repr(shown) if shown else "no text by itself"
    whose = f"accepted from {piece.source}" if piece.source else WHY_OWN[Kind(piece.kind)]
    number = f"{piece.score:.2f}".replace("-", "−")
    score = f" · log-probability {number}" if piece.source and piece.score else ""
    place = piece.round + 1 - before
    return f"{spelled} · token {piece.token} · {whose}{score} · {f'round {place}' if place else 'with the prompt'}"


def _look(number: int, kind: Kind) -> str:
    """The class of a source: 0 is the model itself; colours come round again if sources are many."""
    if number:
        return f"t s{(number - 1) % COLORS + 1}"
    return "t own" if kind is Kind.UNTOLD else f"t {kind}"


def _mixture(numbers: Sequence[int]) -> str:
    """A cell that several sources share shows the colour of each."""
    if len(numbers) < 2:
        return ""
    colors = ["transparent" if n == 0 else f"var(--s{(n - 1) % COLORS + 1})" for n in numbers]
    share = 100 / len(colors)
    stops = (f"{color} {share * i:.0f}% {share * (i + 1):.0f}%" for i, color in enumerate(colors))
    return f' style="background:linear-gradient(90deg,{",".join(stops)})"'


def said(text: str) -> str:
    """Text as HTML: nothing of it is markup, and control characters are signs."""
    return escape(text.translate(VISIBLE_SIGNS))
