"""The picture of a text as a page of its own: one file without scripts, fonts or anything else from elsewhere.

What is left of an element ``.text`` when tags are taken away is prompt and text, character for character, but for
control characters: a browser shows nothing in their place, so their signs stand there, as in a terminal. Each token's
``title`` and ``data-ids`` tell which it was. Signs for line ends and for the end are drawn by the style sheet and not
part of the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from paceline.api.pictures.style import COLORS, STYLE
from paceline.api.pictures.tokens import HALVES, WHY_OWN, Cell, Spelled, TokenPicture
from paceline.files.visible import CONTROLS
from paceline.verify import Kind

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
GENERATOR = "Paceline"
SHOWN_BYTES = 40
SHOWN = {code: sign for code, sign in CONTROLS.items() if chr(code) not in "\t\n"} | HALVES


def page(title: str, sections: Iterable[str]) -> str:
    """A whole document of sections that the other functions here made."""
    return document(title, f"<h1>{said(title)}</h1>\n{''.join(sections)}")


def document(title: str, main: str, style: str = "", mark: str = GENERATOR) -> str:
    """A whole document of what is already HTML, with rules for its looks besides those that all pages share.
    ``mark`` says in its head what made it."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f'<meta name="generator" content="{mark}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{said(title)}</title>\n<style>\n{STYLE}{style}</style>\n</head>\n<body>\n<main>\n"
        f"{main}</main>\n</body>\n</html>\n"
    )


def token_section(picture: TokenPicture) -> str:
    """Facts, totals, legend and text of one picture."""
    heading = f"<h2>{said(picture.title)}</h2>\n" if picture.title else ""
    return f"<section>\n{heading}{facts(picture.facts)}{_totals(picture)}{token_text(picture)}</section>\n"


def token_text(picture: TokenPicture, numbers: Mapping[str, int] | None = None) -> str:
    """Legend and text alone. ``numbers`` gives sources their colours, where several pictures are to agree on them."""
    number = {source: index for index, source in enumerate(picture.counts)}
    if numbers is not None:
        number = {source: numbers[source] for source in number}
    prompt = f'<span class="prompt" title="the prompt">{said(picture.prompt)}</span>' if picture.prompt else ""
    return f'{_legend(picture, number)}<div class="text" dir="auto">{prompt}{_cells(picture.cells, number)}</div>\n'


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


def _totals(picture: TokenPicture) -> str:
    told = picture.totals.as_dict()
    figures = {
        "tokens": str(picture.totals.tokens),
        "rounds": str(picture.totals.rounds),
        "tokens per round": f"{told['tokens_per_round']:.2f}",
        "mean accepted": f"{told['mean_accepted']:.2f}",
        "of drafted tokens accepted": f"{told['acceptance_rate']:.0%}",
        "tokens per second": f"{told['tokens_per_second']:.1f}",
    }
    parts = (f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in figures.items())
    return f'<dl class="totals">{"".join(parts)}</dl>\n'


def _legend(picture: TokenPicture, number: Mapping[str, int]) -> str:
    drafters = ((_look(number[source], Kind.ACCEPTED), _proposed(picture, source)) for source in number if source)
    own = ((_look(0, kind), (WHY_OWN[kind], count)) for kind, count in picture.own.items())
    entries = (
        f'<li><span class="{look}">{said(name)}</span> {count}</li>' for look, (name, count) in (*drafters, *own)
    )
    note = '<li class="note">a thin bar begins a round; point at a token to read about it</li>'
    return f'<ul class="legend">{"".join(entries)}{note}</ul>\n'


def _proposed(picture: TokenPicture, source: str) -> tuple[str, int]:
    return f"accepted from {source}", picture.counts[source]


def _cells(cells: Sequence[Cell], number: Mapping[str, int]) -> str:
    drawn, last = [], -1
    for cell in cells:
        looks = [_look(number[cell.source], cell.kind), *(["begin"] if cell.round != last else [])]
        last = cell.pieces[-1].round
        mixed = _mixture([number[source] for source in cell.sources])
        title = said("\n".join(map(_about, cell.pieces)))
        ids = " ".join(str(piece.token) for piece in cell.pieces)
        end = "" if cell.text else " end"
        text = said(cell.text).replace("\n", '<i class="nl">\n</i>')
        drawn.append(f'<span class="{" ".join(looks)}{end}" data-ids="{ids}" title="{title}"{mixed}>{text}</span>')
    return "".join(drawn)


def _about(piece: Spelled) -> str:
    """What is known of one token, in one line."""
    shown = piece.text if len(piece.text) <= SHOWN_BYTES else piece.text[:SHOWN_BYTES] + "…"
    spelled = repr(shown) if shown else "no text by itself"
    whose = f"accepted from {piece.source}" if piece.source else WHY_OWN[Kind(piece.kind)]
    number = f"{piece.score:.2f}".replace("-", "−")
    score = f" · log-probability {number}" if piece.source and piece.score else ""
    return f"{spelled} · token {piece.token} · {whose}{score} · round {piece.round + 1}"


def _look(number: int, kind: Kind) -> str:
    """The class of a source: 0 is the model itself; colours come round again if sources are many."""
    if number:
        return f"t s{(number - 1) % len(COLORS) + 1}"
    return "t own" if kind is Kind.UNTOLD else f"t {kind}"


def _mixture(numbers: Sequence[int]) -> str:
    """A cell that several sources share shows the colour of each."""
    if len(numbers) < 2:
        return ""
    colors = ["transparent" if n == 0 else f"var(--s{(n - 1) % len(COLORS) + 1})" for n in numbers]
    share = 100 / len(colors)
    stops = (f"{color} {share * i:.0f}% {share * (i + 1):.0f}%" for i, color in enumerate(colors))
    return f' style="background:linear-gradient(90deg,{",".join(stops)})"'


def said(text: str) -> str:
    """Text as HTML: nothing of it is markup, and control characters are signs."""
    return escape(text.translate(SHOWN))
