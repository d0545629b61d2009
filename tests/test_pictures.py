"""Pictures of a text: nothing of it is lost, nothing of it is obeyed, and every token is there once."""

import random
import re
import unicodedata
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

import paceline
from paceline.api.model import LanguageModel
from paceline.api.pictures import TokenPicture, cells
from paceline.api.pictures.notebook import fragment
from paceline.api.pictures.page import COLORS, PAGE_STYLE, page, table_section, token_section
from paceline.api.pictures.terminal import END, MARKS, OWN, Painter, paint
from paceline.api.pictures.tokens import HALVES, Kind
from paceline.api.piece import Piece
from paceline.engine.counters import Totals
from paceline.files.visible import CONTROLS
from paceline.vocabulary import Detokenizer
from tokenizer_kinds import STREAMABLE, vocabulary_of


def spelled(text: str, token: int | None = 1, source: str = "", round: int = 0, *more: Any) -> Piece:
    return Piece(text, token, source, None, round, *more)


NO_TOTALS = Totals()
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</style><b>",
    "&lt;&amp;&#13;",
    "]]>-->",
    "a\r\nb\rc\n\n d  \t e ",
    "\u202egnp.exe",
    "javascript:alert(1)",
    "\x00",
    "a\x1b[2J\x17\x07\x7f\x9b31m",
    "é́ नमस्ते 👩‍🚀 שלום",
]


def picture(texts: list[str], prompt: str = "", sources: tuple[str, ...] = ("", "lookup")) -> TokenPicture:
    pieces = [spelled(text, number, sources[number % len(sources)], number // 3) for number, text in enumerate(texts)]
    return TokenPicture(prompt, tuple(pieces), NO_TOTALS)


@pytest.fixture(scope="module")
def lm(model: str) -> LanguageModel:
    return paceline.load(model, dtype="float32")


# --- cells --------------------------------------------------------------------------------------------------


def test_a_character_of_several_tokens_is_one_cell() -> None:
    pieces = [spelled("a"), spelled("", 2), spelled("", 3, "lookup"), spelled("ż", 4, "lookup"), spelled("b")]
    found = list(cells(pieces))
    assert [cell.text for cell in found] == ["a", "ż", "b"]
    assert [piece.token for piece in found[1].pieces] == [2, 3, 4]
    assert found[1].sources == ("", "lookup")


@pytest.mark.parametrize(
    ("tokens", "drawn"),
    [
        ("e|\u0301|x", "e\u0301|x"),
        ("न|म|स्|ते|x", "न|म|स्ते|x"),
        ("नमस|\u094d|त|\u0947", "नमस्ते"),
        ("👩|\u200d|🚀|!", "👩\u200d🚀|!"),
        ("☺|\ufe0f|a", "☺\ufe0f|a"),
        ("ab|cd", "ab|cd"),
    ],
)
def test_what_is_drawn_together_shares_a_cell(tokens: str, drawn: str) -> None:
    assert [cell.text for cell in cells(map(spelled, tokens.split("|")))] == drawn.split("|")


def test_a_mark_whose_bytes_come_in_two_tokens_joins_too() -> None:
    found = list(cells([spelled("e", 1), spelled("", 2), spelled("\u0301", 3), spelled("x", 4)]))
    assert [(cell.text, len(cell.pieces)) for cell in found] == [("e\u0301", 3), ("x", 1)]


def test_what_ends_a_text_without_a_word_is_a_cell_of_its_own() -> None:
    found = list(cells([spelled("a", 1), spelled("", 2, "lookup")]))
    assert [cell.text for cell in found] == ["a", ""]
    late = list(cells([spelled("a", 1), spelled("", 2), spelled("\ufffd", None)]))
    assert [(cell.text, len(cell.pieces)) for cell in late] == [("a", 1), ("\ufffd", 1)]
    assert list(cells([])) == []


@pytest.mark.parametrize("kind", STREAMABLE)
def test_cells_hold_every_token_once_and_the_whole_text(kind: str) -> None:
    vocabulary = vocabulary_of(kind)
    for seed in range(20):
        ids = random.Random(seed).choices(range(vocabulary.size), k=40)
        stream = Detokenizer(vocabulary)
        pieces = [spelled(stream.push(token), token) for token in ids] + [spelled(stream.finish(), None)]
        found = list(cells(pieces))
        assert [piece.token for cell in found for piece in cell.pieces] == ids
        assert "".join(cell.text for cell in found) == vocabulary.text(ids)
        assert all(cell.text for cell in found[:-1])


# --- a real text --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"stop": ["e", "the"]},
        {"eos": [ord("e") % 300, 40, 41, 42]},
        {"max_new_tokens": 1},
        {"method": "plain"},
    ],
    ids=str,
)
def test_sources_add_up_to_the_totals(lm: LanguageModel, settings: dict[str, Any]) -> None:
    prompt = "the rider, the rider, the "
    common = {"temperature": 0.7, "max_new_tokens": 80, "method": "lookup+lookup:max_ngram=1"}
    text = lm.generate(prompt, **(common | settings))
    drawn = TokenPicture(prompt, tuple(text.pieces), text.totals)
    assert sum(drawn.counts.values()) == text.totals.tokens == len(text.tokens)
    assert sum(count for source, count in drawn.counts.items() if source) == text.totals.accepted
    assert [piece.token for cell in drawn.cells for piece in cell.pieces] == text.tokens
    assert "".join(cell.text for cell in drawn.cells) == text.text
    by_round = [
        sum(p.round == number and p.token is not None for p in text.pieces) for number in range(len(text.rounds))
    ]
    assert by_round == [r.emitted for r in text.rounds]
    for number, found in enumerate(text.rounds):
        own = [p.kind for p in text.pieces if p.round == number and p.token is not None and not p.source]
        assert own == ([Kind.of("", found.drafted, found.refused)] if found.emitted > found.accepted else [])
    assert {p.kind for p in text.pieces if p.source} <= {Kind.ACCEPTED}
    assert sum(drawn.own.values()) == drawn.counts[""]
    assert Kind.UNTOLD not in drawn.own


# --- the page -----------------------------------------------------------------------------------------------


class Reader(HTMLParser):
    """What a browser makes of a page: text of the picture, elements, attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.text, self.ids, self.titles = "", list[int](), list[str]()
        self.tags, self.attributes = set[str](), set[str]()
        self._open: list[str] = []
        self._inside = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.tags.add(tag)
        self.attributes |= set(named)
        if tag != "meta":
            self._open.append(tag)
        if named.get("class") == "text":
            self._inside = len(self._open)
        self.ids += [int(number) for number in (named.get("data-ids") or "").split()]
        self.titles += (named.get("title") or "").split("\n") if "data-ids" in named else []

    def handle_endtag(self, tag: str) -> None:
        assert self._open[-1] == tag, "elements are closed in order"
        if len(self._open) == self._inside:
            self._inside = 0
        self._open.pop()

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.text += data


DRAWINGS = {"page": lambda drawn: page("Title <b>", [token_section(drawn)]), "notebook": fragment}
"""What is shown of a picture as HTML: all of it is under one policy."""


def read(drawn: TokenPicture, where: str = "page") -> Reader:
    reader = Reader()
    reader.feed(DRAWINGS[where](drawn))
    reader.close()
    assert reader._open == []
    return reader


def shown(character: str) -> str:
    """A control character as the sign that Unicode has for it, or as the one for what cannot be shown."""
    if character in "\t\n" or unicodedata.category(character) != "Cc":
        return character
    return {0x7F: "␡"}.get(ord(character), chr(0x2400 + ord(character)) if ord(character) < 32 else "\ufffd")


@pytest.mark.parametrize("where", DRAWINGS)
@pytest.mark.parametrize("prompt", ["", "once <b>upon</b>\r\n", *HOSTILE[:2]])
def test_a_picture_without_its_tags_is_the_text(prompt: str, where: str) -> None:
    drawn = picture([*HOSTILE, "", "", "end", ""], prompt, ("", "lookup", "<i>drafter</i>"))
    reader = read(drawn, where)
    assert reader.text == "".join(map(shown, prompt + "".join(HOSTILE) + "end"))
    assert reader.ids == list(range(len(HOSTILE) + 4))
    assert len(reader.titles) == len(HOSTILE) + 4


def obeys(html: str) -> None:
    """The policy of our pages: nothing runs, nothing is loaded, and no text is markup."""
    reader = Reader()
    reader.feed(html)
    assert not reader.tags & {"script", "img", "link", "iframe", "object", "svg", "a", "form", "input", "base", "math"}
    known = {"class", "title", "data-ids", "style", "dir", "lang", "charset", "content", "name", "http-equiv", "scope"}
    assert reader.attributes <= known
    assert {c for c in html if unicodedata.category(c) == "Cc"} <= {"\n", "\t"}


def test_nothing_of_a_text_is_obeyed() -> None:
    hostile = picture(HOSTILE, HOSTILE[0], ("", *HOSTILE))
    hostile = TokenPicture(hostile.prompt, hostile.pieces, NO_TOTALS, dict.fromkeys(HOSTILE, HOSTILE[1]), HOSTILE[1])
    table = table_section(HOSTILE[0], HOSTILE, [HOSTILE], HOSTILE)
    document = page(HOSTILE[0], [token_section(hostile), table])
    obeys(document)
    assert "default-src 'none'" in document
    obeys(fragment(hostile))


def test_a_generation_of_hostile_tokens_is_shown_under_the_policy(lm: LanguageModel) -> None:
    """As a notebook asks for it. Formulas are not typeset either: MathJax follows the links in them."""
    text = lm.generate("the rider", max_new_tokens=8)
    pieces = [spelled(text, n, text) for n, text in enumerate([*HOSTILE, r"$\href{javascript:alert(1)}{x}$"])]
    html = replace(text, pieces=pieces)._repr_html_()
    obeys(html)
    assert "<script" not in html
    reader = Reader()
    reader.feed(html)
    assert r"$\href{javascript:alert(1)}{x}$" in reader.text
    assert re.match('<div class="paceline-picture tex2jax_ignore mathjax_ignore">', html)


@pytest.mark.parametrize("where", DRAWINGS)
def test_a_picture_needs_nothing_from_elsewhere(where: str) -> None:
    html = DRAWINGS[where](picture(["a", "b"]))
    assert not re.search(r"https?:|url\(|@import|src=|href=", html)
    assert "color-scheme: light dark" in html


def test_a_token_tells_its_id_source_round_and_text() -> None:
    pieces = (
        *(spelled("ab", 17, "lookup", 4, Kind.ACCEPTED, -0.405), spelled("", 3, "", 5)),
        *(spelled("c", 5, "", 6, Kind.CORRECTED), spelled("d", 6, "", 7, Kind.BONUS)),
        spelled("e", 7, "", 8, Kind.PLAIN),
    )
    assert read(TokenPicture("", pieces, NO_TOTALS)).titles == [
        "'ab' · token 17 · accepted from lookup · log-probability −0.41 · round 5",
        "no text by itself · token 3 · the model itself · round 6",
        "'c' · token 5 · corrected: the model refused a draft · round 7",
        "'d' · token 6 · bonus: after a whole draft was accepted · round 8",
        "'e' · token 7 · plain: no draft in that round · round 9",
    ]


def test_the_first_token_is_of_no_round_where_it_came_with_the_prompt() -> None:
    pieces = tuple(spelled(text, token, "", token, Kind.PLAIN) for token, text in enumerate("ab"))
    told = read(TokenPicture("", pieces, replace(NO_TOTALS, tokens_of_prefill=1))).titles
    assert [title.rpartition(" · ")[2] for title in told] == ["with the prompt", "round 1"]


def test_a_half_of_a_character_can_be_kept_in_a_file() -> None:
    drawn = picture(["\ud83d", "\udc00 end"], "\udfff")
    assert read(drawn).text == "\ufffd\ufffd\ufffd end"
    page("\ud800", [token_section(drawn)]).encode()
    paint(drawn, color=False).plain.encode()
    assert set(HALVES) == set(range(0xD800, 0xE000))


def luminance(color: str) -> float:
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def shades(style: str = PAGE_STYLE.read_text(encoding="utf8")) -> dict[str, tuple[str, str]]:
    """The colours of a style sheet in light and dark, by name."""
    found = re.findall(r"--([\w-]+): light-dark\((#\w+), (#\w+)\)", style)
    return {name: (full(light), full(dark)) for name, light, dark in found}


def full(color: str) -> str:
    """Three digits stand for six."""
    return color if len(color) == 7 else "#" + "".join(2 * digit for digit in color[1:])


def test_text_can_be_read_on_every_color() -> None:
    names = shades()
    sources = [shade for name, shade in names.items() if re.fullmatch(r"s\d", name)]
    assert len(sources) == COLORS
    for shade in (0, 1):
        ink, soft, card = (names[name][shade] for name in ("ink", "soft", "card"))
        assert contrast(soft, card) >= 4.5
        assert all(contrast(ink, source[shade]) >= 7 for source in sources)
    assert all(contrast("#000000", style[-7:]) >= 7 for mark in MARKS for style in mark.shades)


# --- the terminal -------------------------------------------------------------------------------------------


def test_without_colors_brackets_tell_the_source() -> None:
    pieces = (
        *(spelled("a", 1, "lookup", 0), spelled("b", 2, "lookup", 0), spelled("c", 3, "", 0)),
        *(spelled("d", 4, "", 1), spelled("e", 5, "other", 2), spelled("f", 6, "lookup", 2), spelled("", 7, "", 2)),
    )
    shown = paint(TokenPicture("p", pieces, NO_TOTALS), color=False).plain
    assert shown.startswith(f"p[ab]c·d{{e}}[f]{END}\n")
    assert "the model itself 3   [lookup] 3   {other} 1" in shown


def test_the_models_own_tokens_say_why_they_are_its_own() -> None:
    pieces = (
        *(spelled("a", 1, "lookup", 0, Kind.ACCEPTED), spelled("b", 2, "", 0, Kind.BONUS)),
        *(spelled("c", 3, "", 1, Kind.CORRECTED), spelled("d", 4, "", 2, Kind.PLAIN)),
    )
    drawn = TokenPicture("p", pieces, NO_TOTALS)
    assert drawn.own == {Kind.CORRECTED: 1, Kind.BONUS: 1, Kind.PLAIN: 1}
    shown = paint(drawn, color=False).plain
    assert shown.startswith("p[a]+b×c·d\n")
    assert "×corrected 1   +bonus 1   ·plain 1   [lookup] 1" in shown
    styles = [str(span.style) for span in paint(drawn, color=True).spans]
    assert len({OWN[kind].shades for kind in drawn.own}) == 3
    assert all(OWN[kind].shades[0] in styles for kind in drawn.own if OWN[kind].shades[0])
    assert not any("#" in shade for mark in OWN.values() for shade in mark.shades), "colours are for what was accepted"
    assert all(" on #" in shade for mark in MARKS for shade in mark.shades)
    document = page("t", [token_section(drawn)])
    assert [look in document for look in ('"t corrected', '"t bonus', '"t plain')] == [True] * 3


def test_streamed_cells_are_the_finished_picture() -> None:
    drawn = picture(["a", "b", "", "ż", "c\n", "d"], "prompt ")
    painter = Painter(color=False)
    streamed = painter.prompt("prompt ").plain + "".join(painter.cell(cell).plain for cell in cells(drawn.pieces))
    assert paint(drawn, color=False).plain.startswith(streamed + painter.end().plain + "\n")


@pytest.mark.parametrize("color", [True, False])
def test_a_terminal_is_shown_control_characters_and_not_sent_them(color: bool) -> None:
    drawn = picture(["\x1b[2J", "\x07", "\x9b31m", "\r", "ok\n"], "\x1b]0;title\x07")
    shown = paint(drawn, color).plain
    assert not set(map(chr, CONTROLS)) - {"\n", "\t"} & set(shown)
    assert "␛[2J" in shown
    assert "ok↵\n" in shown
