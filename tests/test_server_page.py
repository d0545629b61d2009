"""The server's page: what is sent with it, and what it does in a real browser."""

import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import pytest
from starlette.testclient import TestClient

import browser
from browser import Browser
from paceline.integrations.server.page import POLICY, page_routes
from page_server import Script, drafted, page_app, serving

PAGE = files("paceline.integrations.server.page")
NAMES = sorted(entry.name for entry in PAGE.iterdir() if not entry.name.startswith("__"))
SOURCES = {name: (PAGE / name).read_text(encoding="utf8") for name in NAMES}
DESK, PHONE = (1300, 850), (390, 844)
TEXT = "".join(piece["text"] for burst in drafted() for piece in burst)
HOSTILE = '<img src=x onerror="window.ran=1"><script>window.ran=1</script><b>&amp;\u202e\x1b[2J</b>'
SHOWN = HOSTILE.replace("\u202e", "\ufffd").replace("\x1b", "\u241b")

needs_browser = pytest.mark.skipif(browser.missing() is not None, reason=str(browser.missing()))


# --- what is sent -------------------------------------------------------------------------------------------


@pytest.fixture
def client() -> Iterator[TestClient]:
    with TestClient(page_app(Script())) as found:
        yield found


def test_all_files_of_the_page_are_served_and_no_other(client: TestClient) -> None:
    addresses = {route.path for route in page_routes()}
    assert addresses == {"/", "/page/tokens.css"} | {f"/page/{name}" for name in NAMES if name != "index.html"}
    assert not any("{" in address for address in addresses), "no part of an address becomes a path"
    assert client.get("/").text == SOURCES["index.html"]
    assert client.get("/page/page.js").text == SOURCES["page.js"]
    for elsewhere in ("__init__.py", "..%2f__init__.py", "%2e%2e/__init__.py", "../../__init__.py", "", "index.html"):
        assert client.get(f"/page/{elsewhere}").status_code == 404


def test_headers(client: TestClient) -> None:
    kinds = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
    for route in page_routes():
        answer = client.get(route.path)
        assert answer.headers["content-type"].partition(";")[0] == kinds.get(
            route.path[route.path.rfind(".") :], "text/html"
        )
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert client.head(route.path).status_code == 200
        assert client.post(route.path).status_code == 405
    assert "unsafe" not in POLICY
    assert POLICY.startswith("default-src 'none'")


def complaints(name: str, text: str) -> list[str]:
    """What the policy would forbid, what would make text markup, and what would be loaded from elsewhere."""
    rules = {
        r"<script(?![^>]*\bsrc=)": "a script within the page",
        r"<style|\sstyle=": "a style within the page",
        r"\son\w+=": "a handler within the page",
        r"\b(inner|outer)HTML\b|insertAdjacentHTML|document\.write|DOMParser|setHTML|srcdoc": "text as markup",
        r"\beval\b|new Function\b|setTimeout\(\s*[\"'`]": "text as a program",
        r"(?:https?:)?//[\w.-]+\.\w": "an address elsewhere",
        r"@import|url\(": "another file",
    }
    searched = re.sub(r'xmlns="[^"]*"', "", text)
    return [f"{name}: {why}" for rule, why in rules.items() if re.search(rule, searched)]


def test_the_sources_keep_to_the_policy() -> None:
    assert [complaint for name, text in SOURCES.items() for complaint in complaints(name, text)] == []


@pytest.mark.parametrize(
    "bad",
    [
        "<script>1</script>",
        '<p style="color: red">',
        "<style>p {}</style>",
        "<button onclick=run()>",
        "item.innerHTML = text",
        "eval(text)",
        '<link href="https://example.org/a.css">',
        "@import 'b.css'",
    ],
)
def test_a_source_that_does_not_is_seen(bad: str) -> None:
    assert len(complaints("bad", bad)) == 1


def test_files_are_of_a_length_that_can_be_read() -> None:
    assert {name: len(text.splitlines()) for name, text in SOURCES.items() if len(text.splitlines()) > 400} == {}


# --- in a browser -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    folder = tmp_path_factory.mktemp("browser")
    with browser.opened(folder) as found:
        yield found
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def window(started: Browser) -> Iterator[Browser]:
    """A browser that has seen no page of ours; each test's server has an origin of its own."""
    started.size(*DESK)
    started.scheme("light")
    started.log("browser"), started.log("performance")
    yield started
    started.open("about:blank")


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def address(script: Script) -> Iterator[str]:
    with serving(script) as found:
        yield found


def visit(window: Browser, address: str) -> None:
    window.open(address)
    window.until("return 'ready' in document.body.dataset")


def ask(window: Browser, text: str = "Once", wait: bool = True) -> None:
    window.run("document.getElementById('prompt').focus()")
    window.type(*text, "Enter")
    if wait:
        window.until("return !('running' in document.body.dataset)")


def shown(window: Browser, where: str = ".answer .text") -> list[str]:
    found: list[str] = window.run(f"return [...document.querySelectorAll('{where}')].map(one => one.textContent)")
    return found


def text_of(window: Browser, name: str) -> str:
    return str(window.run(f"return document.getElementById('{name}').textContent"))


@needs_browser
def test_tokens_are_coloured_by_their_source(window: Browser, address: str, script: Script) -> None:
    visit(window, address)
    ask(window)
    assert shown(window) == [TEXT]
    looks = window.run(
        "return [...document.querySelectorAll('.answer .text > .t')].map(one => "
        "[one.textContent, one.classList[1], getComputedStyle(one).backgroundColor, one.classList.contains('begin')])"
    )
    pieces = [piece for burst in script.drafted for piece in burst]
    assert [look[0] for look in looks] == [piece["text"] for piece in pieces]
    colors: dict[str, set[str]] = {}
    for (_, _, color, _), piece in zip(looks, pieces, strict=True):
        colors.setdefault(piece["source"], set()).add(color)
    assert all(len(found) == 1 for found in colors.values()), "one source, one colour"
    assert colors[""] == {"rgba(0, 0, 0, 0)"}, "the model's own tokens stand on none"
    assert len(set.union(*colors.values())) == len(colors) > 3
    assert [look[3] for look in looks] == [piece is burst[0] for burst in script.drafted for piece in burst]
    counted = Counter(piece["source"] for piece in pieces if piece["source"])
    rows = window.run(
        "return [...document.querySelectorAll('#legend li')].map(one => [...one.children].map(e => e.textContent))"
    )
    assert {name.removeprefix("accepted from "): int(count) for name, count, _ in rows if "from" in name} == counted
    assert sum(int(count) for _, count, _ in rows) == len(pieces) == int(text_of(window, "f-tokens"))
    assert int(text_of(window, "f-rounds")) == len(script.drafted) - 1, "the prompt's forward is no round"
    assert text_of(window, "f-each") == f"{(len(pieces) - 1) / (len(script.drafted) - 1):.2f}"
    assert text_of(window, "f-accepted") == f"{counted.total()} (50 %)"


@needs_browser
def test_a_token_tells_about_itself(window: Browser, address: str, script: Script) -> None:
    visit(window, address)
    ask(window)
    number = next(n for n, burst in enumerate(script.drafted) if len(burst) > 2)
    piece, size = script.drafted[number][1], len(script.drafted[number])
    place = sum(map(len, script.drafted[:number])) + 1
    window.run("document.querySelector('.answer .text').focus()")
    window.type(*["ArrowRight"] * (place + 1))
    told = text_of(window, "tip")
    assert told == text_of(window, "said")
    for fact in (f"accepted from {piece['source']}", f"round {number} of {size} tokens", f"token {piece['token']} "):
        assert fact in told
    window.type("Home")
    assert "with the prompt" in text_of(window, "tip")
    window.type("Escape")
    assert window.run("return document.getElementById('tip').hidden")


@needs_browser
def test_markup_in_a_text_is_text(window: Browser, address: str, script: Script) -> None:
    burst = [{"text": part, "token": 1, "source": HOSTILE, "round": 0, "kind": HOSTILE} for part in (HOSTILE, "!")]
    script.drafted = [burst]
    visit(window, address)
    window.run(
        f"document.getElementById('prompt').value = {json.dumps(HOSTILE)}; document.getElementById('prompt').focus()"
    )
    window.type("Enter")
    window.until("return !('running' in document.body.dataset)")
    window.run("document.querySelector('.answer .text').focus()")
    window.type("ArrowRight")
    assert shown(window) == [SHOWN + "!"]
    assert shown(window, ".bubble") == [HOSTILE]
    assert HOSTILE[:20] in text_of(window, "tip")
    visit(window, address)
    window.run("document.querySelector('#chat-list button').click()")
    assert shown(window) == [SHOWN + "!"]
    assert window.run("return window.ran ?? null") is None
    assert window.run("return document.querySelectorAll('main img, main script, nav img, main b').length") == 0
    assert window.log("browser") == []


@needs_browser
def test_nothing_is_loaded_from_elsewhere_and_the_policy_is_kept(window: Browser, address: str) -> None:
    visit(window, address)
    ask(window)
    window.run("document.getElementById('theme-button').click(); document.getElementById('settings-button').click()")
    assert window.log("browser") == []
    events = [json.loads(line["message"])["message"] for line in window.log("performance")]
    asked = {event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"}
    assert {f"{address}page/page.js", f"{address}v1/chat/completions"} <= asked
    assert {url for url in asked if not url.startswith((address, "about:"))} == set()
    window.run(
        "const bad = document.createElement('script'); bad.textContent = 'window.ran=1'; document.body.append(bad)"
    )
    assert "Content Security Policy" in window.log("browser")[0]["message"], "a violation would be seen"
    assert window.run("return window.ran ?? null") is None


@needs_browser
def test_stopping_closes_the_stream_and_keeps_the_text(window: Browser, address: str, script: Script) -> None:
    script.endless = True
    visit(window, address)
    for stop in (lambda: window.type("Escape"), lambda: window.run("document.getElementById('stop-button').click()")):
        before = script.closed
        ask(window, wait=False)
        window.until("return [...document.querySelectorAll('.answer')].at(-1)?.textContent.includes(' on on')")
        stop()
        window.until("return !('running' in document.body.dataset)")
        for _ in range(500):
            if script.closed > before:
                break
            window.run("return new Promise(done => setTimeout(done, 10))")
        assert script.closed == before + 1
        assert "stopped" in shown(window, ".answer footer")[-1]
    assert script.asked[1]["messages"][1]["content"] == shown(window)[0]
    assert window.run("return document.getElementById('error').hidden")


@needs_browser
def test_the_keyboard_is_enough(window: Browser, address: str, script: Script) -> None:
    script.endless = True
    visit(window, address)
    window.type(*"a", "Shift+Enter", *"b")
    assert script.asked == []
    window.type("Enter")
    window.until("return 'running' in document.body.dataset")
    window.type("Tab")
    assert window.run("return document.activeElement.id") == "stop-button"
    window.type("Enter")
    window.until("return !('running' in document.body.dataset)")
    assert script.asked[0]["messages"] == [{"role": "user", "content": "a\nb"}]
    assert window.run("return document.activeElement.id") == "prompt"
    script.endless = False

    assert "view" in walked(window, "settings-button")
    window.type("Enter")
    assert window.run("return document.getElementById('settings').open")
    assert window.run("return document.activeElement.id") == "s-model"
    window.type("Tab", *"su", "Tab", *"0.5")
    window.type("Escape")
    assert not window.run("return document.getElementById('settings').open")
    assert window.run("return document.activeElement.id") == "settings-button"

    assert {"new-button", "prompt"} <= {*walked(window, "view")}
    window.type("ArrowRight")
    walked(window, "prompt")
    window.type(*"race", "Enter")
    window.until("return document.getElementById('verdict').textContent.includes('×')")
    one, other = script.asked[1:]
    assert (one["method"], one["temperature"], one.get("speculative")) == ("suffix", 0.5, None)
    assert (other.get("method"), other["speculative"]) == (None, False)


def walked(window: Browser, name: str) -> list[str]:
    """The ids (or names) of what gets the focus until one with this name has it. Each shows that it has it."""
    seen: list[str] = []
    for _ in range(60):
        window.type("Tab")
        here, outline = window.run(
            "const it = document.activeElement;"
            "const around = [it, it.nextElementSibling ?? it, it.parentElement ?? it];"
            "const seen = around.some(one => getComputedStyle(one).outlineStyle !== 'none');"
            "return [it.id || it.name || it.tagName, seen]"
        )
        assert outline or here in ("prompt", "BODY"), f"{here} does not show that it has the focus"
        seen.append(here)
        if here == name:
            return seen
    raise AssertionError(f"{name} is not reached: {seen}")


@needs_browser
@pytest.mark.parametrize("together", [False, True])
def test_a_race_says_whether_the_texts_are_equal(window: Browser, address: str, script: Script, together: bool) -> None:
    script.seconds_a_round = 0.004
    visit(window, address)
    window.run("document.querySelector('input[value=race]').click()")
    if together:
        window.run("document.getElementById('together').click()")
    ask(window)
    assert shown(window, ".lane .text") == [TEXT, TEXT]
    verdict = text_of(window, "verdict")
    assert verdict.startswith("The texts are equal.")
    ratio = re.search(r"([\d.]+)× the tokens per second of plain decoding", verdict)
    assert ratio is not None
    assert float(ratio[1]) > 1
    assert ("run together" in verdict) == together
    assert script.together == (2 if together else 1)
    seeds = {request["seed"] for request in script.asked}
    assert len(script.asked) == 2
    assert len(seeds) == 1, "both have the same seed, also if none was chosen"
    assert {json.dumps(request["messages"]) for request in script.asked} == {'[{"role": "user", "content": "Once"}]'}


@needs_browser
def test_a_race_sees_a_difference_and_a_break(window: Browser, address: str, script: Script) -> None:
    script.plain[3][0] = script.plain[3][0] | {"text": " other"}
    place = len("".join(piece["text"] for burst in script.plain[:3] for piece in burst)) + 2
    visit(window, address)
    window.run("document.querySelector('input[value=race]').click()")
    ask(window)
    assert text_of(window, "verdict").startswith(f"The texts differ from character {place} on.")
    script.break_after = 2
    ask(window, "")
    assert "nothing to compare" in text_of(window, "verdict")
    assert text_of(window, "error") == "The model ran out of memory."


@needs_browser
def test_a_phone_needs_no_scrolling_sideways(window: Browser, address: str) -> None:
    window.size(*PHONE)
    visit(window, address)
    fits = "return Math.max(document.documentElement.scrollWidth, document.querySelector('main').scrollWidth)"
    assert window.run(fits) <= PHONE[0]
    ask(window)
    for act in ("panel').open=true", "settings-button').click()", "settings-close').click()", "chats-button').click()"):
        window.run(f"document.getElementById('{act}")
        assert window.run(fits) <= PHONE[0]
    window.type("Escape")
    window.run("document.querySelector('input[value=race]').click()")
    ask(window, "x" * 80)
    assert window.run(fits) <= PHONE[0]
    hidden = "return [...document.querySelectorAll('.top > *, .field > *')].filter(e => e.offsetParent && "
    hidden += "(e.getBoundingClientRect().right > innerWidth || e.getBoundingClientRect().left < 0)).length"
    assert window.run(hidden) == 0


@needs_browser
def test_a_missing_key_is_asked_for(window: Browser, address: str, script: Script) -> None:
    script.key = "secret"
    visit(window, address)
    assert window.run("return [document.getElementById('settings').open, document.activeElement.id]") == [True, "s-key"]
    assert "asks for an API key" in text_of(window, "error")
    window.type(*"secret", "Enter")
    window.until(
        "return document.getElementById('s-model').value === 'pocket' && document.getElementById('error').hidden"
    )
    assert not window.run("return document.getElementById('settings').open")
    ask(window)
    assert shown(window) == [TEXT]
    assert window.run("return JSON.stringify(localStorage).includes('secret')") is False
    assert window.run("return sessionStorage.getItem('paceline.key')") == '"secret"'
    script.key = "changed"
    ask(window, "more")
    assert window.run("return [document.activeElement.id, document.getElementById('prompt').value]") == [
        "s-key",
        "more",
    ]
    assert len(shown(window)) == 1


@needs_browser
def test_chats_stay_until_they_are_cleared(window: Browser, address: str, script: Script) -> None:
    visit(window, address)
    ask(window, "first chat")
    colors = "return [...document.querySelectorAll('.answer .t')].map(one => getComputedStyle(one).backgroundColor)"
    drawn = window.run(colors)
    figures = window.run("return document.querySelector('.panel-body').textContent")
    visit(window, address)
    assert shown(window, "#chat-list li > :first-child") == ["first chat"]
    window.run("document.querySelector('#chat-list button').click()")
    assert shown(window) == [TEXT]
    assert (window.run(colors), window.run("return document.querySelector('.panel-body').textContent")) == (
        drawn,
        figures,
    )
    ask(window, "and on")
    assert [one["role"] for one in script.asked[-1]["messages"]] == ["user", "assistant", "user"]
    assert script.asked[-1]["messages"][1]["content"] == TEXT
    script.endless = True
    ask(window, "more", wait=False)
    window.until("return [...document.querySelectorAll('.answer')].at(-1)?.textContent.includes(' on on')")
    window.run("document.getElementById('clear-button').click()")
    window.until("return !('running' in document.body.dataset)")
    visit(window, address)
    assert shown(window, "#chat-list li") == []
    assert window.run("return localStorage.getItem('paceline.chats')") is None


@needs_browser
def test_an_answer_belongs_to_the_chat_that_asked_for_it(window: Browser, address: str, script: Script) -> None:
    script.endless = True
    visit(window, address)
    ask(window, "one", wait=False)
    window.until("return document.querySelector('.answer')?.textContent.includes(' on on')")
    window.run("document.getElementById('new-button').click()")
    window.until("return !('running' in document.body.dataset)")
    script.endless = False
    assert shown(window) == []
    ask(window, "two")
    assert shown(window, "#chat-list li > :first-child") == ["two", "one"]
    assert [len(one["messages"]) for one in script.asked] == [1, 1]
    window.run("document.querySelectorAll('#chat-list li > :first-child')[1].click()")
    assert shown(window)[0].startswith(TEXT + " on on")


@needs_browser
def test_reasoning_is_folded_and_a_tool_call_has_its_box(window: Browser, address: str, script: Script) -> None:
    call: dict[str, Any] = {"index": 0, "id": "call_1", "type": "function"}
    script.deltas = [
        {"reasoning_content": "Let me "},
        {"reasoning_content": "see."},
        {"content": "I look."},
        {"tool_calls": [call | {"function": {"name": "weather", "arguments": '{"city":'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ' "Łódź"}'}}]},
    ]
    visit(window, address)
    ask(window)
    assert window.run("return document.querySelector('details.thoughts').open") is False
    assert shown(window, ".thoughts .text") == ["Let me see."]
    assert shown(window, ".answer > .text") == ["I look."]
    assert shown(window, ".tool h3") == ["weather"]
    assert shown(window, ".tool pre") == ['{\n  "city": "Łódź"\n}']


@needs_browser
def test_text_that_is_cut_otherwise_than_its_tokens_is_shown_whole(window: Browser, address: str) -> None:
    visit(window, address)
    told = window.run("""
      return import('./page/answer.js').then(({ Answer }) => {
        const answer = new Answer();
        const piece = (text, source = "") => ({ text, token: 1, source, round: 1, kind: "plain" });
        const say = (delta, ...pieces) => answer.take({ choices: [{ delta }], paceline: { pieces } });
        say({ reasoning_content: "Hm." }, piece("<think>"), piece("Hm.", "a"), piece("</think>"));
        say({}, piece("ne", "b"), piece("\\u0301", "c"));
        say({ content: "ne\\u0301w" }, piece("w"), piece(""), piece(" st"));
        say({ content: "" }, piece("op"));
        say({ content: " s" });
        answer.close("done");
        return answer.cells.map(cell => [cell.part, cell.text, cell.tokens.map(one => one.source).join()]);
      })""")
    assert "".join(text for part, text, _ in told if part == "content") == "ne\u0301w s"
    assert told[0] == ["reasoning", "Hm.", ",a"]
    assert ["content", "ne\u0301", ",b,c"] in told


@needs_browser
def test_an_error_is_one_sentence_and_the_text_before_it_stays(window: Browser, address: str, script: Script) -> None:
    script.break_after = 4
    visit(window, address)
    ask(window)
    assert text_of(window, "error") == "The model ran out of memory."
    assert shown(window) == ["".join(piece["text"] for burst in script.drafted[:4] for piece in burst)]
    script.break_after = 0
    ask(window, "again")
    assert len(shown(window)) == 1
    assert window.run("return document.getElementById('prompt').value") == "again"


@needs_browser
def test_light_and_dark(window: Browser, address: str) -> None:
    visit(window, address)
    ground = "return getComputedStyle(document.body).backgroundColor"
    light = window.run(ground)
    window.scheme("dark")
    dark = window.run(ground)
    assert light != dark
    window.run("document.getElementById('theme-button').click()")
    assert window.run(ground) == light
    visit(window, address)
    assert window.run(ground) == light, "a chosen theme stays"


def test_the_recorded_text_is_ours() -> None:
    sources = Counter(piece["source"] for burst in drafted() for piece in burst)
    assert len(sources) > 3
