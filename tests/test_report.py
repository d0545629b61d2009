"""Reports: pages and Markdown say what the records say, in honest words, and nothing of a run is obeyed."""

import html
import json
import math
import re
import unicodedata
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.api.pictures.tokens import Kind
from paceline.bench.warnings import warnings
from paceline.bench.report import charts, texts
from paceline.bench.report.axes import fitted, nearest_line, round_steps, width_of
from paceline.bench.report.page import STEPS, step_of
from paceline.bench.report.style import ENTRIES, HEAT
from paceline.bench.report.whole import MARK, MARKDOWN, PAGE, files
from paceline.bench.report.words import headline, second_sentences, times
from paceline.bench.run.directory import Run
from paceline.bench.run.record import Verdict
from paceline.bench.summary import Summary
from paceline.cli import main
from paceline.cli.folders import write_folder
from runs import made_run
from test_pictures import HOSTILE, contrast

PAPER = ("#ffffff", "#0d1117")
SECTIONS = (
    *("speed", "heat", "rounds", "positions", "time", "fit", "latency", "energy", "equality", "texts", "provenance"),
)
NOT_TOLD = {"heat", "fit"}
"""Sections that are left out where there is nothing to say in them."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return made_run(tmp_path_factory.mktemp("runs") / "made")


def report(*runs: Run, texts: int = 50) -> dict[str, str]:
    return dict(files([Summary(run) for run in runs], texts=texts))


# --- numbers and their places -------------------------------------------------------------------------------


def test_round_steps_hold_what_they_are_for() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        low = float(rng.normal() * 10.0 ** rng.integers(-3, 4))
        high = low + float(abs(rng.normal()) * 10.0 ** rng.integers(-3, 4))
        steps = round_steps(low, high, 5)
        widths = np.diff(steps)
        assert steps[0] <= low + 1e-6 * abs(low)
        assert steps[-1] >= high - 1e-6 * abs(high)
        assert np.allclose(widths, widths[0])
        assert 2 <= len(steps) <= 9
    assert round_steps(0.9, 2.1, 4) == [0.5, 1.0, 1.5, 2.0, 2.5]


@pytest.mark.parametrize(
    "text", ["lookup", "assistant:draft_model=some/where,beams=4" * 3, "日本語" * 20, "", "😀" * 30]
)
def test_a_name_is_made_to_fit(text: str) -> None:
    shown = fitted(text, 120, 12)
    assert width_of(shown, 12) <= 120 or len(shown) <= 3
    assert shown == text or "…" in shown
    assert shown[:1] == text[:1]


def test_the_line_is_the_one_of_least_squares() -> None:
    rng = np.random.default_rng(1)
    x = rng.uniform(1, 4, 50)
    y = 0.6 * x + 0.3 + rng.normal(0, 0.2, 50)
    found = nearest_line(list(zip(x.tolist(), y.tolist(), strict=True)))
    assert found is not None
    assert np.allclose((found.slope, found.height), np.polyfit(x, y, 1))
    assert math.isclose(found.r2, np.corrcoef(x, y)[0, 1] ** 2)
    assert str(nearest_line([(0, -1), (1, 1), (2, 3)])) == "y = 2.00 x − 1.00"
    assert nearest_line([(1, 1), (2, 2)]) is None, "two points lie on every line"
    assert nearest_line([(1, 1), (1, 2), (1, 3)]) is None


def drawn() -> Iterator[str]:
    odd = "<b>&\"'"
    for count in (0, 1, 9):
        rows = [charts.Interval(f"{odd}{n}" * 9, 1 + n, 0.9, 2.0 + n, n, "1.00×") for n in range(count)]
        yield charts.intervals(odd, odd, rows, 1.0)
        yield charts.bars(odd, odd, [charts.Bar(odd, [("p-draft", 0.0, odd), ("p-rest", 2.0, odd)], "2")] * count, "ms")
        yield charts.lines(odd, odd, [charts.Series(odd, n, [0.9, 0.2], [1.0, 0.5]) for n in range(count)], (odd, odd))
        dots = [charts.Dot(1 + n, 0.1 * n, n, odd) for n in range(count)]
        yield charts.curve(odd, odd, dots, [(d.x, d.y / 2) for d in dots], 1.0, (odd, odd))
        yield charts.scatter(odd, odd, dots, nearest_line([(d.x, d.y) for d in dots]), 1.0, (odd, odd))
    yield charts.lines("t", "d", [charts.Series("one", 1, [0.5], [1.0])], ("x", "y"))
    yield charts.histogram("t", "d", {1: 0.5, 2: 0.25, 40: 0.25}, 11.0, 0.5, 12, 3)
    yield charts.histogram("t", "d", {1: 1.0}, 1.0, 1.0, 2, 0)


@pytest.mark.parametrize("svg", list(drawn()))
def test_a_picture_is_whole_named_and_within_its_frame(svg: str) -> None:
    root = ET.fromstring(svg)
    width, height = (float(value) for value in root.attrib["viewBox"].split()[2:])
    assert root.attrib["role"] == "img"
    assert [child.tag for child in root][:2] == ["title", "desc"]
    numbers = {"x", "x1", "x2", "cx", "y", "y1", "y2", "cy"}
    for element in root.iter():
        for name, value in element.attrib.items():
            if name in numbers:
                assert 0 <= float(value) <= (width if "x" in name else height), (element.tag, name, value)
        if element.tag == "rect":
            assert float(element.attrib["x"]) + float(element.attrib["width"]) <= width + 0.1
        if element.tag == "text":
            half = {"start": 0.0, "middle": 0.5, "end": 1.0}[element.attrib["text-anchor"]]
            left = float(element.attrib["x"]) - half * width_of(element.text or "", charts.SMALL)
            assert left >= -0.6
            assert left + width_of(element.text or "", charts.SMALL) <= width + 0.6


def test_entries_differ_in_color_or_in_shape() -> None:
    looks = {(charts.look(n), charts.shape(n, 0, 0, 1)) for n in range(24)}
    assert len(looks) == 24


# --- colours ------------------------------------------------------------------------------------------------


def test_the_heat_map_can_be_read_and_is_even_around_one() -> None:
    for background, ink, dark, dark_ink in HEAT:
        assert contrast(background, ink) >= 4.5
        assert contrast(dark, dark_ink) >= 4.5
    assert len(HEAT) == len(STEPS) + 1
    assert step_of(1.0) == len(STEPS) // 2
    values = np.geomspace(0.2, 5, 200)
    steps = [step_of(value) for value in values]
    assert steps == sorted(steps)
    assert {steps[0], steps[-1]} == {0, len(STEPS)}
    for value in (1.05, 1.15, 1.3, 1.7, 2.5):
        assert abs(step_of(value) + step_of(1 / value) - len(STEPS)) <= 0, value


def test_every_entry_stands_out_from_the_page() -> None:
    for shade, paper in enumerate(PAPER):
        assert all(contrast(colors[shade], paper) >= 3 for colors in ENTRIES)


# --- honest words -------------------------------------------------------------------------------------------


def told(path: Path, **made: Any) -> str:
    summary = Summary(made_run(path / "run", **{"tasks": ["qa"], "languages": ["en"], "joules": False} | made))
    return headline(summary) + " " + second_sentences(summary)


def test_good_news_comes_with_its_interval(tmp_path: Path) -> None:
    assert re.match(
        r"On pocket, assistant writes \d\.\d\d× as fast as plain decoding \(95% interval \d\.\d\d–\d\.\d\d\)\. ",
        told(tmp_path, prompts=8),
    )


def test_bad_news_is_told_as_plainly(tmp_path: Path) -> None:
    slow = {"lookup": 4.0, "assistant": 5.0}
    assert re.match(
        r"On pocket, no method was faster than plain decoding: the best, assistant, ran at 0\.\d\d× \(95%",
        told(tmp_path, prompts=8, slow=slow),
    )


def test_what_may_be_chance_is_called_so(tmp_path: Path) -> None:
    said = told(tmp_path, prompts=4, methods=("plain", "lookup"), slow={"lookup": 1.15}, noise=0.6, seed=3)
    assert "was not faster than plain decoding" in said or "as fast as" not in said


def test_one_prompt_has_no_interval(tmp_path: Path) -> None:
    assert "(one prompt: no interval)" in told(tmp_path, prompts=1, degenerate=False)


def test_a_faster_library_is_not_kept_quiet(tmp_path: Path) -> None:
    said = told(tmp_path, prompts=6, slow={"lookup": 9.0, "assistant": 9.0})
    assert "Another library was faster: transformers ran at" in said


def test_what_chance_may_do_wears_no_star(tmp_path: Path) -> None:
    wild = made_run(
        tmp_path / "wild", prompts=2, tasks=["qa"], languages=["en"], noise=1.2, methods=("plain", "lookup")
    )
    up = Summary(wild).figures("lookup")
    assert up is not None
    assert up.speed_up is not None
    assert not up.speed_up.excludes(1)
    assert '<td class="best' not in report(wild)[PAGE]
    clear = made_run(tmp_path / "clear", prompts=8, tasks=["qa"], languages=["en"])
    assert '<td class="best' in report(clear)[PAGE]


def test_without_methods_and_without_texts_there_is_no_claim(tmp_path: Path) -> None:
    assert "no method was held against it" in told(tmp_path / "a", methods=["plain"])
    empty = made_run(tmp_path / "b", prompts=0)
    assert headline(Summary(empty)) == "Nothing has been written yet on pocket."
    pages = report(empty)
    assert "Nothing has been written yet" in pages[PAGE]
    assert set(pages) == {PAGE, MARKDOWN}


def test_a_run_without_times_claims_no_speed(run: Run) -> None:
    """As a replayed text, of which rounds are counted and nothing else."""
    still = [
        replace(r, seconds=0.0, seconds_first=0.0, seconds_decode=0.0, split=r.split and dict.fromkeys(r.split, 0.0))
        for r in run.records
    ]
    pages = report(Run(run.path, run.about, still))
    assert "On pocket, rounds were counted and no speed was measured." in pages[PAGE]
    assert "2.71" in pages[PAGE], "tokens per round of the assistant"
    empty = [replace(r, tokens=[], pieces=[], text="", sources=[], scores=[], rounds=None, decoded=0) for r in still]
    assert PAGE in report(Run(run.path, run.about, empty))


def test_arrivals_have_percentiles(tmp_path: Path) -> None:
    pages = report(made_run(tmp_path / "run", recipe={"qps": 2.0}))
    assert "Prompts arrived on their own, 2 a second" in pages[PAGE]
    assert "first, p99" in pages[MARKDOWN]


# --- the page and the Markdown ------------------------------------------------------------------------------


class Reader(HTMLParser):
    """Elements, attributes, cells and links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags, self.attributes, self.links, self.sections = set[str](), set[str](), list[str](), list[str]()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.tags.add(tag)
        self.attributes |= set(named)
        self.links += [named["href"] or ""] if "href" in named else []
        self.sections += [named["id"] or ""] if tag == "section" else []
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, "elements are closed in order"

    def handle_data(self, data: str) -> None:
        self.text += data


def read(document: str) -> Reader:
    reader = Reader()
    reader.feed(document)
    reader.close()
    assert reader.open == []
    return reader


SHAPES: dict[str, dict[str, Any]] = {
    "usual": {},
    "one method": {"methods": ("plain", "lookup"), "peers": (), "tasks": ("qa",), "languages": ("en",)},
    "one prompt": {"tasks": ("qa",), "languages": ("en",), "prompts": 1, "repeats": 1, "joules": False},
    "no rounds": {"methods": ("plain",), "peers": ("transformers", "transformers-lookup")},
    "plain alone": {"methods": ("plain",), "peers": ()},
    "unfinished": {"finished": False, "missing": {"mlx-lm": "mlx is not installed"}},
    "long names": {"methods": ("plain", "assistant:" + "x" * 200), "tasks": ("t" * 80, "qa")},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_of_a_run_has_its_sections(shape: str, tmp_path: Path) -> None:
    pages = report(made_run(tmp_path / "run", **SHAPES[shape]))
    found = read(pages[PAGE])
    told = [name.removeprefix("run1-") for name in found.sections]
    assert [name for name in SECTIONS if name in told] == told, "in their order"
    assert set(SECTIONS) - set(told) <= NOT_TOLD
    inner = {link for link in found.links if link.startswith("#")}
    assert {f"#{name}" for name in found.sections} == inner
    assert set(found.links) - inner <= set(pages)
    for name in set(pages) - {PAGE, MARKDOWN}:
        outer = {link.removeprefix("../") if link[:2] == ".." else f"texts/{link}" for link in read(pages[name]).links}
        assert outer <= set(pages)


def test_numbers_of_both_forms_are_those_of_the_summary(run: Run) -> None:
    summary, pages = Summary(run), report(run)
    page = read(pages[PAGE]).text
    for entry in summary.entries[1:]:
        for task in (None, *summary.tasks):
            figures = summary.figures(entry, task)
            assert figures is not None
            assert figures.speed_up is not None
            assert times(figures.speed_up.value) in page
            assert times(figures.speed_up.value) in pages[MARKDOWN]
    for warning in warnings(summary):
        assert warning in page
    unescaped = html.unescape(pages[MARKDOWN].replace("\\", ""))
    assert all(f"> - {warning}\n" in unescaped for warning in warnings(summary))
    assert page.index(warnings(summary)[0]) < page.index("Speed-up by task")


def hostile(tmp_path: Path) -> Run:
    names = [text for text in HOSTILE if text.strip()]
    made = made_run(
        tmp_path / "run",
        methods=("plain", *names[:4], "lookup"),
        peers=(names[4],),
        tasks=tuple(names[:3]),
        languages=("en",),
        missing={names[0]: names[1]},
        model={"model": names[0], names[1]: names[2]},
        recipe={"suite": names[0], "note": ["|", "`", "a|b"]},
    )
    evil = [*HOSTILE, "\ud83d", "| a | b |\n|---|", "]]>", "\u2028"]
    records = [
        replace(
            record, pieces=[evil[i % len(evil)] for i in range(len(record.tokens))], prompt=f"{record.prompt}\udc00<i>"
        )
        for record in made.records
    ]
    made.about.workload["notes"] = [*names, "\ud800"]
    made.about.sittings[0]["command"] = f"paceline `{names[0]}`\n```"
    return Run(made.path, made.about, [replace(r, text="".join(r.pieces)) for r in records])


def test_nothing_of_a_run_is_obeyed(tmp_path: Path) -> None:
    pages = report(hostile(tmp_path))
    for name, text in pages.items():
        text.encode()
        assert {c for c in text if unicodedata.category(c) == "Cc"} <= {"\n", "\t"}
        if name == MARKDOWN:
            continue
        found = read(text)
        assert not found.tags & {"script", "img", "link", "iframe", "object", "form", "input", "b><i"}
        assert not any(attribute.startswith("on") for attribute in found.attributes)
        assert all(re.fullmatch(r"#[\w-]+|(\.\./)?(texts/)?[\w.]+", link) for link in found.links)
        assert "default-src 'none'" in text
        assert "src" not in found.attributes
        assert not re.search(r"url\(|@import", text)
    markdown = pages[MARKDOWN]
    outside = re.sub(r"^(`{3,})sh\n.*?^\1$", "", markdown, flags=re.MULTILINE | re.DOTALL)
    assert not re.search(r"<(?!br>|!-- written)", outside)
    assert not set("\u202e\u2066") & set(markdown)


def test_tables_of_the_markdown_are_tables(tmp_path: Path) -> None:
    lines = report(hostile(tmp_path))[MARKDOWN].splitlines()
    widths = [len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0 for line in lines]
    rules = [n for n, line in enumerate(lines) if re.fullmatch(r"\|( -+:? \|)+", line)]
    assert len(rules) >= 12
    for rule in rules:
        below = rule
        while below < len(lines) and widths[below]:
            assert widths[below] == widths[rule], lines[below]
            below += 1
        assert widths[rule - 1] == widths[rule]


def test_several_runs_are_compared_first(tmp_path: Path) -> None:
    old = made_run(tmp_path / "old", prompts=6)
    new = made_run(tmp_path / "new", prompts=6, slow={"lookup": 1.5}, seed=1)
    pages = report(old, new)
    text = read(pages[PAGE]).text
    assert re.search(r"In new, lookup is slower \(0\.\d\d×, 0\.\d\d–0\.\d\d\) than in old\.", text)
    assert text.index("In new, lookup is slower") < text.index("Suite made")
    assert text.count("On pocket, assistant writes") == 2
    ids = read(pages[PAGE]).sections
    assert len(ids) == len(set(ids))
    assert "nothing to compare" not in pages[MARKDOWN]
    assert (
        "Nothing can be compared: empty holds no text yet."
        in report(old, made_run(tmp_path / "empty", prompts=0))[PAGE]
    )


# --- texts --------------------------------------------------------------------------------------------------


def test_a_pictured_record_has_each_token_once_and_says_what_it_is(run: Run) -> None:
    for record in run.records:
        picture = texts.pictured(record)
        assert [p.token for p in picture.pieces] == record.tokens
        assert "".join(cell.text for cell in picture.cells) == record.text
        if record.rounds is None:
            assert {p.kind for p in picture.pieces} == {Kind.UNTOLD}
            continue
        kinds = [p.kind for p in picture.pieces]
        drafted, refused = record.rounds["drafted"], record.rounds["refused"]
        assert kinds.count(Kind.ACCEPTED) == sum(record.rounds["accepted"]) == picture.totals.accepted
        assert kinds.count(Kind.PLAIN) == sum(not d for d in drafted)
        assert kinds.count(Kind.CORRECTED) == sum(bool(d and r) for d, r in zip(drafted, refused, strict=True))
        counts = np.bincount([p.round for p in picture.pieces], minlength=len(drafted))
        assert counts.tolist() == [int(count) for count in record.rounds["emitted"]]


def test_a_long_text_is_cut_where_a_round_ends(run: Run) -> None:
    record = next(r for r in run.records if r.entry == "assistant")
    assert record.rounds is not None
    ends = np.cumsum(record.rounds["emitted"]).tolist()
    for most in range(1, len(record.tokens)):
        kept = len(texts.pictured(record, most=most).pieces)
        assert kept in ends
        assert most <= kept < most + 5


def test_nobody_is_shown_at_their_best(run: Run) -> None:
    """The telling text is not a loop, it is the same for all, and of every method that drafts."""
    found = texts.telling(Summary(run))
    assert {r.entry for r in found} == {"lookup", "assistant"}
    assert len({(r.prompt, r.turn) for r in found}) == 1
    assert found[0].prompt != "mt_bench/en/0", "that one loops"


def test_a_source_has_one_color_on_all_pages(run: Run) -> None:
    records = [
        replace(r, sources=[{"draft": r.entry}.get(source, source) for source in r.sources]) for r in run.records
    ]
    pages = report(Run(run.path, run.about, records))
    looks: dict[str, set[str]] = {}
    for text in pages.values():
        for look, source in re.findall(r'<span class="(t s\d)">accepted from (\w+)</span>', text):
            looks.setdefault(source, set()).add(look)
    assert looks == {"lookup": {"t s1"}, "assistant": {"t s2"}}


def test_a_library_that_tells_nothing_is_not_given_sources(run: Run) -> None:
    page = report(run)["texts/1.html"]
    theirs = page[page.index("<bdi>transformers</bdi>") :]
    assert "It does not tell where its tokens come from." in theirs
    assert "the model itself" not in theirs


def test_prompts_are_quoted_turn_by_turn(run: Run) -> None:
    written = dict(files([Summary(run)], texts=50))
    page = next(text for name, text in written.items() if "mt_bench, pl: mt_bench/pl/0" in text and name != PAGE)
    quotes = [html.unescape(found) for found in re.findall(r"<blockquote[^>]*>(.*?)</blockquote>", page, re.S)]
    assert quotes == list(run.prompts["mt_bench/pl/0"].turns)
    assert "<blockquote" in written[PAGE]
    shown = texts.telling(Summary(run))[0]
    assert run.prompts[shown.prompt].turns[shown.turn].replace("<b>", "").split("?")[0] in written[MARKDOWN]
    unknown = replace(run, prompts={})
    assert "<blockquote" not in dict(files([Summary(unknown)], texts=50))[PAGE]


def test_pages_are_spread_over_the_run(tmp_path: Path) -> None:
    made = made_run(tmp_path / "run", prompts=10, repeats=1, languages=("en", "pl"))
    for most in (0, 1, 7, 40):
        shown = texts.prompts_to_show(Summary(made), most)
        assert len(shown) == min(most, 40)
        assert len(set(shown)) == len(shown)
    assert {prompt.split("/")[0] for prompt in texts.prompts_to_show(Summary(made), 7)} == {"mt_bench", "qa"}
    pages = report(made, texts=7)
    assert sum(name.startswith("texts/") for name in pages) == 7
    assert "7 of 40 prompts have a page; --texts 40 writes all." in pages[PAGE]


def test_verdicts_are_shown_as_they_are(run: Run) -> None:
    records = [
        replace(r, verdict=Verdict.BUG, parts_at=3) if r.entry == "lookup" and r.unit == 1 else r for r in run.records
    ]
    pages = report(Run(run.path, run.about, records))
    assert "parts for no reason that rounding gives: an error" in pages[PAGE]
    assert re.search(r"\d+ bug", read(pages[PAGE]).text)
    assert any("bug (parts at token 4)" in text for text in pages.values())


# --- writing ------------------------------------------------------------------------------------------------


def shown(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_a_folder_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    def breaking() -> Iterator[tuple[str, str]]:
        yield "a.html", "mark new"
        raise RuntimeError

    for folder in (tmp_path / "new", tmp_path / "old"):
        if folder.name == "old":
            folder.mkdir()
            (folder / "a.html").write_text("mark old")
            (folder / "theirs.txt").write_text("x")
        before = shown(folder)
        with pytest.raises(RuntimeError):
            write_folder(folder, breaking(), mark="mark", pages="texts")
        assert shown(folder) == before
        assert folder.exists() == (folder.name == "old")


def test_what_is_not_ours_is_not_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    (folder / "texts").mkdir(parents=True)
    (folder / "b.html").write_text("somebody's")
    with pytest.raises(ValueError, match=r"b\.html is there and is no earlier report"):
        write_folder(folder, [("a.html", "mark"), ("b.html", "mark")], mark="mark", pages="texts")
    assert shown(folder) == {"b.html": "somebody's"}
    (folder / "b.html").write_text("mark, an earlier one")
    (folder / "texts" / "7.html").write_text("mark")
    (folder / "texts" / "8.html").write_text("somebody's")
    names = write_folder(
        folder, [("a.html", "mark"), ("b.html", "mark"), ("texts/1.html", "mark")], mark="mark", pages="texts"
    )
    assert names == ["a.html", "b.html", "texts/1.html"]
    assert set(shown(folder)) == {"a.html", "b.html", "texts/1.html", "texts/8.html"}
    with pytest.raises(ValueError, match="it is a file; name a folder"):
        write_folder(folder / "a.html", [], mark="mark", pages="texts")


def test_the_command_writes_and_tells(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "deep" / "out"
    assert main(["bench", "report", str(run.path), "--out", str(out), "--texts", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["files"] == [PAGE, MARKDOWN, *(f"texts/{n}.html" for n in (1, 2, 3))]
    assert set(shown(out)) == set(found["files"])
    assert all(MARK in text for text in shown(out).values())
    assert found["runs"][0]["entries"] == Summary(run).entries
    assert main(["bench", "report", str(run.path), "--out", str(out), "--texts", "1"]) == 0
    assert set(shown(out)) == {PAGE, MARKDOWN, "texts/1.html"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere", "--out", "out"], "nowhere holds no run"),
        (["RUN", "--out", "out", "--texts", "-1"], "--texts must be at least 0, not -1"),
        (["RUN", "--out", "RUN/run.json"], "it is a file; name a folder"),
    ],
)
def test_mistakes_are_told_in_a_sentence(
    arguments: list[str], said: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "report", *(word.replace("RUN", str(run.path)) for word in arguments)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error
    assert not (tmp_path / "out").exists()
