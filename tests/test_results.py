"""Results that one can look at: text, one line, a picture, and log-probabilities as others expect them."""

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline
from browser import missing, opened
from engine import tabled
from paceline.api.model import LanguageModel
from paceline.api.pictures.notebook import ROOT, style
from paceline.api.pictures.tokens import last_line, summary
from paceline.api.piece import Logprobs, Piece, TokenLogprob
from paceline.api.writing import Generation
from paceline.drafters import make_drafter
from paceline.engine.counters import Totals
from paceline.errors import InputError
from paceline.targets.table import TableTarget
from test_text_batch import speaking

LINE = 160


def written(**settings: Any) -> Generation:
    return speaking().generate("the rider", max_new_tokens=20, temperature=1.0, **settings)


def test_a_generation_prints_as_its_text_and_shows_as_one_line() -> None:
    text = written()
    assert str(text) == f"{text}" == text.text
    line = repr(text)
    assert "\n" not in line
    assert len(line) < LINE
    for part in (
        f"{len(text.tokens)} tokens",
        f"{text.totals.rounds} rounds",
        "tokens/s",
        f"finish: {text.finish}",
    ):
        assert part in line


def test_what_is_printed_of_tokens_and_rounds_divides_to_what_is_printed(model: str) -> None:
    """Also of texts whose first token came in a round, since their prompts had been read."""
    lm, totals = paceline.load(model), list[Totals]()
    for prompt in ("Hello", "Hello", "again and again"):
        totals.append(lm.generate(prompt, max_new_tokens=12, ignore_eos=True, method="lookup").totals)
    assert [one.tokens_of_prefill for one in totals] == [1, 0, 1]
    for one in (*totals, sum(totals, Totals())):
        for line, digits in ((summary(one), 2), (last_line(one), 1)):
            tokens, rounds = map(int, re.findall(r"(\d+)(?: of them| tokens) in (\d+) rounds", line)[0])
            assert f"{tokens / rounds:.{digits}f}" == re.findall(r"\d+\.\d+", line)[0]
            assert tokens == one.tokens - one.tokens_of_prefill


def test_a_text_without_a_tokenizer_shows_its_first_tokens() -> None:
    text = LanguageModel(tabled()).generate([1, 2], max_new_tokens=12, ignore_eos=True)
    assert str(text) == ""
    assert repr(text).startswith(f"Generation([{', '.join(map(str, text.tokens[:8]))}, …], 12 tokens")


def test_what_is_met_at_a_prompt_says_what_it_is(model: str) -> None:
    lm = paceline.load(model)
    writing = lm.write("Hello", max_new_tokens=2)
    shown = [lm, lm.target, writing, lm.batch(), lm.conversation(), make_drafter("lookup:max_ngram=3,auto"), tabled()]
    shown += [make_drafter("plain"), *lm.stream("Hello", max_new_tokens=2), *make_drafter("hybrid").parts]
    for one in shown:
        assert " object at 0x" not in repr(one)
        assert "\n" not in repr(one)
        assert len(repr(one)) < LINE
    assert all(part in repr(lm) for part in (lm.target.name, "float32", "cpu", str(lm.target.vocab_size)))
    assert "no tokenizer" in repr(LanguageModel(tabled()))
    assert re.fullmatch(r"<vocabulary of .+, \d+ tokens>", repr(lm.vocabulary))
    assert dir(paceline) == sorted(["__version__", *paceline.__all__])
    assert "lookup:max_ngram=3" in repr(make_drafter("lookup:max_ngram=3"))
    assert "not begun" in repr(writing)
    list(writing.pieces())
    assert "2 tokens, length" in repr(writing)
    assert (
        repr(Piece("a", 3, "lookup", kind="accepted", round=1))
        == "Piece('a', token 3, accepted from lookup, rounds[1])"
    )


# --- the picture --------------------------------------------------------------------------------------------


class Text(HTMLParser):
    """What an element of the class ``text`` says, and every tag."""

    def __init__(self) -> None:
        super().__init__()
        self.said, self.tags, self._inside = "", list[str](), False

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self._inside = self._inside or dict(attrs).get("class") == "text"

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.said += data


def test_a_notebook_shows_the_text_in_its_tokens() -> None:
    text = written(method="lookup")
    reader = Text()
    reader.feed(text._repr_html_())
    assert reader.said.strip("\n") == re.sub("[\x00-\x08\x0b-\x1f\x7f]", lambda c: chr(0x2400 + ord(c[0])), text.text)
    assert not {"script", "html", "body", "head", "link", "img", "iframe"} & set(reader.tags)


def test_every_rule_of_the_picture_stays_within_it() -> None:
    """At the outermost level each selector names our own element."""
    depth, outer, selector = 0, list[str](), ""
    for sign in re.sub(r"/\*.*?\*/", "", style(), flags=re.DOTALL):
        if sign == "{" and depth == 0:
            outer, selector = [*outer, selector.strip()], ""
        elif depth == 0 and sign != "}":
            selector += sign
        depth += (sign == "{") - (sign == "}")
    assert depth == 0
    assert len(outer) == 3
    assert all(ROOT in one for selectors in outer for one in selectors.split(","))
    assert ":root" not in style()
    assert not re.search(r"\bbody\b", style())


PAGE = """<!doctype html><html><head><style>
p {{ color: rgb(1, 2, 3); font: 10px serif; margin: 7px }} table {{ border: 3px solid red }}
</style></head><body data-jp-theme-light="{light}"><p id="own" class="facts">theirs</p>
<div class="text t s1" id="theirs">theirs</div>{picture}</body></html>"""
COLORS = """
const look = one => {const s = getComputedStyle(one); return [s.color, s.backgroundColor, s.fontSize, s.margin]};
const picture = document.querySelector('.%s');
return [look(document.querySelector('#own')), look(document.querySelector('#theirs')),
  picture ? look(picture) : null, picture ? look(picture.querySelector('.text')) : null,
  getComputedStyle(document.body).backgroundColor]
"""


def brightness(color: str) -> float:
    return float(np.mean([float(part) for part in re.findall(r"[\d.]+", color)[:3]]))


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_a_browser_keeps_both_styles_apart_in_both_themes(tmp_path: Path) -> None:
    picture = written(method="lookup")._repr_html_()
    with opened(tmp_path) as browser:
        looks = {}
        for light in ("true", "false"):
            for drawn in ("", picture):
                file = tmp_path / "page.html"
                file.write_text(PAGE.format(light=light, picture=drawn), encoding="utf8")
                browser.open(file)
                looks[light, bool(drawn)] = browser.run(COLORS % ROOT)
    for light in ("true", "false"):
        bare, with_picture = looks[light, False], looks[light, True]
        assert (bare[0], bare[1], bare[4]) == (with_picture[0], with_picture[1], with_picture[4])
        ink, paper = brightness(with_picture[3][0]), brightness(with_picture[3][1])
        assert (ink < paper) == (light == "true")
        assert abs(ink - paper) > 120


# --- log-probabilities --------------------------------------------------------------------------------------


def test_log_probabilities_carry_id_string_and_bytes() -> None:
    text = written(logprobs=3)
    vocabulary = speaking().vocabulary
    assert vocabulary is not None
    assert [piece.token for piece in text.pieces] == text.tokens
    spelled = b""
    for piece in text.pieces:
        found = piece.logprobs
        assert found is not None
        assert (found.token, found.bytes) == (piece.token, piece.bytes)
        for one in (found, *found.top):
            assert one.bytes == vocabulary.token_bytes(one.token)
            assert one.text.encode() == one.bytes or "\\x" in one.text
        spelled += found.bytes
    assert spelled.decode(errors="replace") == vocabulary.text(text.tokens, skip_special=False)


SHAPE = {"token": str, "logprob": float, "bytes": list}


def test_openais_shape() -> None:
    text = written(logprobs=2)
    found = json.loads(json.dumps(text.openai_logprobs(), allow_nan=False))
    assert list(found) == ["content"]
    assert len(found["content"]) == len(text.tokens)
    for entry in found["content"]:
        top = entry.pop("top_logprobs")
        assert len(top) == 2
        for one in (entry, *top):
            assert {name: type(value) for name, value in one.items()} == SHAPE
            assert bytes(one["bytes"]).decode(errors="backslashreplace") == one["token"]
            assert one["logprob"] <= 0
    assert [entry["top_logprobs"] for entry in written(logprobs=0).openai_logprobs()["content"]] == [[]] * 20


def test_what_has_no_number_or_no_spelling_in_json() -> None:
    never = Logprobs(3, "", b"", -math.inf, (TokenLogprob(4, "\\xf0", b"\xf0", -math.inf),))
    assert never.openai() == {
        "token": "",
        "logprob": -9999.0,
        "bytes": None,
        "top_logprobs": [{"token": "\\xf0", "logprob": -9999.0, "bytes": [240]}],
    }
    lm = LanguageModel(TableTarget(lambda history: [0.0, -math.inf, 0.0], 3))
    found = lm.generate([0], max_new_tokens=2, logprobs=3).openai_logprobs()
    assert [min(one["logprob"] for one in entry["top_logprobs"]) for entry in found["content"]] == [-9999.0] * 2
    json.dumps(found, allow_nan=False)


def test_log_probabilities_that_were_not_asked_for_are_told() -> None:
    with pytest.raises(InputError, match=r"write generate\(..., logprobs=5\)"):
        written().openai_logprobs()


def test_json_has_the_spellings_too() -> None:
    text = written(logprobs=1)
    found = text.as_dict()["logprobs"]
    json.dumps(found)
    assert [entry["token"] for entry in found] == text.tokens
    assert all(set(entry["top"][0]) == {"token", "text", "bytes", "logprob"} for entry in found)
