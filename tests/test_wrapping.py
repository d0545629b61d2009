"""Words are whole at the edge of a terminal, however the text arrives."""

import random
import re
import sys

import pytest
from rich.cells import cell_len
from rich.text import Text

from paceline.api.piece import Piece
from paceline.cli.output import draw, writing
from paceline.cli.wrapping import Wrapping, wrapped

TEXT = "It was the best of times, it was the worst of times,\nit was the age of wisdom;  żółw, Їжак — dampfschiff. "
WIDE = "老人はゆっくりと火のそばに座って話し始めた。Once 👩\u200d👩\u200d👧 upon e\u0301"


def in_pieces(text: str, width: int, seed: int) -> str:
    """A text that arrives in pieces of any length."""
    random_ = random.Random(seed)
    wrapping, out, at = Wrapping(width), "", 0
    while at < len(text):
        size = random_.randint(1, 7)
        out += "".join(run for run, _ in wrapping.feed(text[at : at + size]))
        at += size
    return out + "".join(run for run, _ in wrapping.end())


@pytest.mark.parametrize("width", [12, 20, 33, 80, 120])
@pytest.mark.parametrize("seed", range(5))
def test_no_line_is_too_long_and_no_word_is_cut(width: int, seed: int) -> None:
    text = TEXT * 5
    shown = in_pieces(text, width, seed)
    assert max(map(cell_len, shown.split("\n"))) <= width
    longest = max(map(len, text.split()))
    if longest <= width:
        assert shown.split() == text.split()
    assert "".join(shown.split()) == "".join(text.split())
    assert in_pieces(text, width, seed + 100) == shown, "how the text arrives does not matter"


@pytest.mark.parametrize("width", [2, 5, 8, 20])
def test_long_words_and_wide_characters_are_cut_between_characters(width: int) -> None:
    for text in ("x" * 50, WIDE, f"a {'y' * 30} b", WIDE * 3):
        shown = in_pieces(text, width, 1)
        assert "".join(shown.split()) == "".join(text.split())
        if "\u200d" not in text:
            assert max(map(cell_len, shown.split("\n"))) <= width
    assert not re.search("\u200d\n|\n[\u200d\u0301]", in_pieces(WIDE * 3, 20, 1)), "no character loses its mark"


def test_a_line_that_is_full_takes_no_space_and_keeps_its_line_ends() -> None:
    assert in_pieces("abcd efgh\n\nij", 4, 0) == "abcd\nefgh\n\nij"
    assert in_pieces("ab  cd", 3, 0) == "ab\ncd"
    assert in_pieces("a\tb", 20, 0) == "a\tb"


def test_at_a_terminal_text_and_pictures_keep_words_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "30")
    parts = re.findall(r".{1,3}", TEXT, re.DOTALL)
    pieces = [Piece(part, 1, "lookup" if place % 3 else "", round=place // 3) for place, part in enumerate(parts)]
    with writing() as write:
        for piece in pieces:
            write(piece.text)
    said = capsys.readouterr().out
    assert max(map(cell_len, said.splitlines())) <= 30
    assert said.split() == TEXT.split()
    draw(pieces, True)
    bare = re.sub("\x1b\\[[0-9;]*m", "", capsys.readouterr().out)
    assert max(map(cell_len, bare.splitlines())) <= 30
    assert bare.replace("\u21b5", "").split() == TEXT.split()


def test_a_pipe_gets_the_text_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with writing() as write:
        for word in TEXT.split(" "):
            write(f"{word} ")
    assert capsys.readouterr().out == f"{TEXT} "


def test_a_finished_picture_is_the_streamed_one() -> None:
    styles = ["", "bold", "black on #56b4e9"]
    parts = [(part, styles[place % 3]) for place, part in enumerate(re.findall(r".{1,3}", TEXT, re.DOTALL))]
    wrapping = Wrapping(25)
    streamed = [run for part, style in parts for run in wrapping.feed(part, style)] + wrapping.end()
    assert wrapped(Text.assemble(*parts), 25) == Text.assemble(*streamed)
    assert wrapped(Text("a b", "dim"), 1).plain == "a\nb"
