"""The page before the server that it is for: what it shows is what the answers say."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

import browser
import paceline
from browser import Browser
from clock import comes_true
from paceline.api.model import LanguageModel
from paceline.integrations.server.app import make_app
from paceline.integrations.server.doors import Doors, digest_of
from paceline.integrations.server.models import Models, ServedModel
from paceline.integrations.server.run import bind, server_for, url_of

pytestmark = pytest.mark.skipif(browser.missing() is not None, reason=str(browser.missing()))

PROMPT, TOKENS = "The king said to the queen,", 60
DRAFTING = {"method": "recycling+suffix", "planner": "fixed:4"}
KEEP_ANSWERS = """
    const ask = window.fetch;
    window.answers = [];
    window.fetch = async (...given) => {
        const answer = await ask(...given);
        const kept = String(given[0]).endsWith('completions') ? answer.clone().text() : Promise.reject();
        kept.then(text => window.answers.push(text), () => 0);
        return answer;
    }"""


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    return paceline.load("pocket", probe=False)


@contextmanager
def listening(lm: LanguageModel, doors: Doors | None = None) -> Iterator[tuple[str, ServedModel]]:
    """The address of a server that runs in a thread, and its model. At its end it ends all texts."""
    served = ServedModel(name="pocket", lm=lm, serving=lm.serving(), defaults={**DRAFTING, "temperature": 0})
    bound = bind("127.0.0.1", 0)
    server = server_for(make_app(Models([served]), doors=doors))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            time.sleep(0.01)
        yield url_of(bound) + "/", served
    finally:
        server.should_exit = True
        thread.join(10)
        bound.close()


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    folder = tmp_path_factory.mktemp("browser")
    with browser.opened(folder) as found:
        found.size(1300, 850)
        yield found
    shutil.rmtree(folder, ignore_errors=True)


def visit(window: Browser, address: str) -> None:
    window.log("browser")
    window.open(address)
    window.until("return 'ready' in document.body.dataset")
    window.run(KEEP_ANSWERS)


def choose(window: Browser, **settings: Any) -> None:
    for name, value in settings.items():
        field = f"const field = document.getElementById('s-{name}'); field.value = {json.dumps(str(value))};"
        window.run(f"{field} field.dispatchEvent(new Event('input'))")


def ask(window: Browser, text: str, answers: int) -> None:
    window.run(
        f"document.getElementById('prompt').value = {json.dumps(text)}; document.getElementById('prompt').focus()"
    )
    window.type("Enter")
    window.until(f"return !('running' in document.body.dataset) && window.answers.length === {answers}")


def answers(window: Browser) -> list[tuple[list[dict[str, Any]], dict[str, Any]]]:
    """The pieces of every answer, and the numbers at its end."""
    found = []
    for stream in window.run("return window.answers"):
        chunks = [json.loads(line[6:]) for line in stream.split("\n") if line.startswith("data: {")]
        pieces = [piece for chunk in chunks for piece in chunk.get("paceline", {}).get("pieces", [])]
        found.append((pieces, chunks[-1]))
    return found


def figure(window: Browser, name: str) -> str:
    return str(window.run(f"return document.getElementById('f-{name}').textContent"))


def test_the_page_shows_what_the_answer_says(window: Browser, lm: LanguageModel) -> None:
    with listening(lm) as (address, _):
        visit(window, address)
        assert window.run("return document.getElementById('s-method').value") == DRAFTING["method"]
        choose(window, max_tokens=TOKENS)
        ask(window, PROMPT, 1)
        (pieces, told), *_ = answers(window)
        cells = window.run(
            "return [...document.querySelectorAll('.answer .text > .t')]"
            ".map(one => [one.textContent, getComputedStyle(one).backgroundColor])"
        )
        assert [text for text, _ in cells] == [piece["text"] for piece in pieces]
        colors = {(piece["source"], color) for (_, color), piece in zip(cells, pieces, strict=True)}
        sources = {source for source, _ in colors}
        assert len(colors) == len(sources) == len({color for _, color in colors}) > 2, "each source has its colour"
        rows = window.run(
            "return [...document.querySelectorAll('#legend li')].map(one => [...one.children].map(e => e.textContent))"
        )
        said = {name.removeprefix("accepted from "): int(count) for name, count, _ in rows if "from" in name}
        assert said == told["metrics"]["speculative_decoding"]["accepted_by_source"]
        assert said == Counter(piece["source"] for piece in pieces if piece["source"])
        check_figures(window, told)

        ask(window, "And then", 2)
        check_figures(window, answers(window)[1][1])
        assert answers(window)[1][1]["usage"]["prompt_tokens_details"]["cached_tokens"] > TOKENS, "the turn before it"
        assert window.log("browser") == [], "the policy is kept"


def check_figures(window: Browser, told: dict[str, Any]) -> None:
    """The panel's numbers are the server's."""
    timings, rounds = told["timings"], told["metrics"]["speculative_decoding"]
    share = round(100 * timings["draft_n_accepted"] / timings["draft_n"])
    assert figure(window, "tokens") == str(told["usage"]["completion_tokens"]) == str(TOKENS)
    assert figure(window, "rounds") == str(rounds["num_rounds"])
    assert figure(window, "each") == f"{rounds['tokens_per_round']:.2f}"
    assert figure(window, "drafted") == str(timings["draft_n"])
    assert figure(window, "accepted") == f"{timings['draft_n_accepted']} ({share} %)"
    assert float(figure(window, "speed")) == pytest.approx(timings["predicted_per_second"], abs=0.051)


def test_a_race_has_equal_texts(window: Browser, lm: LanguageModel) -> None:
    with listening(lm) as (address, _):
        visit(window, address)
        window.run("document.querySelector('input[value=race]').click()")
        choose(window, max_tokens=TOKENS, temperature=0.7)
        ask(window, PROMPT, 2)
        (drafted, _), (plain, told) = answers(window)
        assert [piece["token"] for piece in drafted] == [piece["token"] for piece in plain]
        assert {piece["source"] for piece in plain} == {""} != {piece["source"] for piece in drafted}
        assert told["timings"]["draft_n"] == 0
        texts = window.run("return [...document.querySelectorAll('.lane .text')].map(one => one.textContent)")
        assert texts == ["".join(piece["text"] for piece in plain)] * 2
        verdict = window.run("return document.getElementById('verdict').textContent")
        assert verdict.startswith("The texts are equal. ")
        assert window.log("browser") == []


def test_stopping_ends_the_text_in_the_server(window: Browser, lm: LanguageModel) -> None:
    with listening(lm) as (address, served):
        visit(window, address)
        choose(window, max_tokens=3000)
        window.run("document.getElementById('prompt').focus()")
        window.type("A", "Enter")
        window.until("return document.querySelectorAll('.answer .t').length > 5")
        assert served.admitted == 1
        window.type("Escape")
        assert comes_true(lambda: not served.admitted), "the server writes on"
        assert "stopped" in window.run("return document.querySelector('.answer footer').textContent")


def test_a_key_is_asked_for_by_the_page_itself(window: Browser, lm: LanguageModel) -> None:
    with listening(lm, Doors(keys=[digest_of("secret")])) as (address, _):
        assert httpx.head(address).status_code == 200, "proxies look whether a server lives"
        assert httpx.get(f"{address}v1/models").status_code == 401
        visit(window, address)
        assert window.run("return document.getElementById('error').textContent") == "The server asks for an API key."
        window.type(*"secret", "Enter")
        window.until("return document.getElementById('error').hidden && document.getElementById('s-model').value")
        choose(window, max_tokens=5)
        ask(window, PROMPT, 1)
        assert figure(window, "tokens") == "5"
