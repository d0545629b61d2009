"""Reports: pages and Markdown say what the records say, in honest words, and nothing of a run is obeyed."""

import html
import json
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
from rich.cells import cell_len

from paceline.cli import main
from paceline.verify import Kind
from paceline_lab.bench.report import charts, texts
from paceline_lab.bench.report.forms import STEPS, TEMPLATES, step_of
from paceline_lab.bench.report.whole import MARK, MARKDOWN, PAGE, files
from paceline_lab.bench.report.words import headline, second_sentences, short, times
from paceline_lab.bench.run.directory import Run
from paceline_lab.bench.run.record import TextVerdict
from paceline_lab.bench.statistics import Estimate
from paceline_lab.bench.summary import Summary
from paceline_lab.bench.warnings import warnings
from paceline_lab.commands.bench.report import write_report
from runs import made_run
from test_pictures import HOSTILE, contrast, shades
from thinning import thinned

SECTIONS = (
    *("speed", "heat", "rounds", "positions", "time", "fit", "latency", "energy", "equality", "texts", "provenance"),
)
LEFT_OUT = {"heat", "fit"}
"""Sections that are left out where there is nothing to say in them."""
STYLE = (TEMPLATES / "report.css").read_text(encoding="utf8")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return made_run(tmp_path_factory.mktemp("runs") / "made")


@pytest.fixture(scope="module")
def pages(run: Run) -> dict[str, str]:
    return report(run)


def report(*runs: Run, texts: int = 50) -> dict[str, str]:
    return dict(files([Summary(run) for run in runs], texts=texts))


# --- charts and colours -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["lookup", "assistant:draft_model=some/where,beams=4" * 3, "日本語" * 20, "", "😀" * 30]
)
def test_a_name_is_made_to_fit(text: str) -> None:
    shown = short(text, 18)
    assert cell_len(shown) <= 18
    assert shown == text or "…" in shown
    assert shown[:1] == text[:1]


ODD = "<b>&\"'$x$\ud83d老\x00"


def drawn() -> Iterator[charts.Chart]:
    for count in (0, 1, 9):
        found = [Estimate(1.0 + n, 0.9, 9.0 * (n + 1)) for n in range(count)]
        rows = [charts.Interval(n, f"{ODD}{n}" * 9, one, "1.00×") for n, one in enumerate(found)]
        yield charts.intervals(ODD, ODD, rows, ODD)
        bar = charts.Bar(ODD, [("draft", 0.0, ODD), ("rest", 2.0, ODD)], "2")
        yield charts.bars(ODD, ODD, [bar] * count, " ms", ODD)
        points = [(1.0 + n, 0.1 * n) for n in range(count)]
        series = [charts.Series(n, ODD, [point], [ODD]) for n, point in enumerate(points)]
        scales = charts.Scales(("x", "y"), level=1.0, upright=2.0, line=points, zero=True)
        yield charts.plot(ODD, ODD, series, scales, 300)
    series = [charts.Series(n, ODD, [(1, 0.9), (2, 0.2)], [ODD] * 2, [100.0, 30.0], joined=True) for n in range(3)]
    yield charts.plot("t", "d", series, charts.Scales(("x", "y"), places=[1, 2], percent=True), 260)
    for heights, more in (([0.5, 0.25, *[0.0] * 9, 0.25], True), ([1.0, 0.0], False)):
        yield charts.Chart(charts.histogram("t", "d", heights, 1.5, 0.5, 3, more))


@pytest.mark.parametrize("chart", list(drawn()))
def test_a_chart_is_whole_named_within_its_frame_and_in_the_colours_of_the_page(chart: charts.Chart) -> None:
    root = ET.fromstring(chart.svg)
    width, height = (float(value) for value in root.attrib["viewBox"].split()[2:])
    assert root.attrib["role"] == "img"
    assert [child.tag for child in root][:2] == ["title", "desc"]
    assert not re.search(r"url\(|xmlns|<style|font-family", chart.svg)
    assert set(re.findall(r"(?:fill|stroke): ([^;\"]+)", chart.svg)) <= {"none"} | {f"var(--{r})" for r in charts.ROLES}
    for element in root.iter():
        assert set(element.attrib) <= {"class", "viewBox", "role", "style", "d", "x", "y", "id", "href"}
        assert 0 <= float(element.get("x", 0)) <= width
        assert -1 <= float(element.get("y", 0)) <= height
        if element.tag == "path" and element.get("style", "").startswith("fill: var(--p-"):
            places = [float(number) for number in re.findall(r"[\d.]+", element.attrib["d"])]
            assert max(places[::2]) <= width
        assert element.tag != "text" or element.text


def test_every_mark_says_its_numbers() -> None:
    tips = [f"point {n}" for n in range(40)]
    series = charts.Series(1, "one", [(n, n % 7) for n in range(40)], tips)
    root = ET.fromstring(charts.plot("t", "d", [series], charts.Scales(("x", "y")), 300).svg)
    assert [mark.findtext("title") for mark in root.iter("use") if mark.find("title") is not None] == tips


def test_entries_differ_in_color_or_in_shape() -> None:
    assert len({(charts.look(n), charts.MARKERS[n % len(charts.MARKERS)]) for n in range(24)}) == 24


def test_the_heat_map_can_be_read_and_is_even_around_one() -> None:
    grounds = re.findall(r"\.h\d+ { background: light-dark\((.*?)\); color: light-dark\((.*?)\) }", STYLE)
    assert len(grounds) == len(STEPS) + 1
    for ground, ink in grounds:
        assert all(contrast(*pair) >= 4.5 for pair in zip(ground.split(", "), ink.split(", "), strict=True))
    assert step_of(1.0) == len(STEPS) // 2
    steps = [step_of(value) for value in np.geomspace(0.2, 5, 200)]
    assert steps == sorted(steps)
    assert {steps[0], steps[-1]} == {0, len(STEPS)}
    assert all(step_of(value) + step_of(1 / value) == len(STEPS) for value in (1.05, 1.15, 1.3, 1.7, 2.5))


def test_every_entry_stands_out_from_the_page() -> None:
    paper = shades()["paper"]
    entries = [colors for name, colors in shades(STYLE).items() if re.fullmatch(r"e\d", name)]
    assert len(entries) == charts.COLORS
    assert all(contrast(color, ground) >= 3 for colors in entries for color, ground in zip(colors, paper, strict=True))
    assert set(charts.ROLES) <= {*shades(STYLE), *shades()}


# --- honest words -------------------------------------------------------------------------------------------


def told(path: Path, **made: Any) -> str:
    summary = Summary(made_run(path / "run", **{"tasks": ["qa"], "languages": ["en"], "joules": False} | made))
    return headline(summary) + " " + second_sentences(summary)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"prompts": 40}, r"On pocket, lookup writes \d\.\d\d× as fast as plain decoding \(95% interval \d\.\d\d–\d"),
        ({"prompts": 8}, r".*\)\. The fastest of 2 methods was assistant, at \d\.\d\d× \(95% interval"),
        ({"prompts": 8, "methods": ("plain", "lookup", "auto")}, "On pocket, auto "),
        ({"prompts": 8, "methods": ("plain", "assistant", "lookup")}, ".*It was the fastest of 2 methods"),
        (
            {"prompts": 8, "slow": {"lookup": 4.0, "assistant": 5.0}},
            r"On pocket, lookup was not faster than plain decoding: it ran at 0\.\d\d× \(95%",
        ),
        (
            {"prompts": 4, "methods": ("plain", "lookup"), "slow": {"lookup": 1.15}, "noise": 0.6, "seed": 3},
            r"On pocket, lookup was not faster than plain decoding beyond chance: it ran at (?!.*methods)",
        ),
        (
            {"prompts": 2, "methods": ("plain", "lookup"), "slow": {"lookup": 1.15}, "noise": 2.5},
            "On pocket, so few prompts do not show whether lookup is faster than plain decoding: it ran at",
        ),
        (
            {"prompts": 3, "methods": ("plain", *"abcde"), "noise": 0.6, "degenerate": False},
            r"On pocket, a .*These are too few prompts to name a best of 5 methods\.",
        ),
        (
            {"prompts": 12, "methods": ("plain", "a", "b"), "noise": 0.6, "degenerate": False},
            r"On pocket, a .*None of 2 methods was faster than all others beyond chance\.",
        ),
        (
            {"prompts": 1, "degenerate": False},
            "On pocket, one prompt was measured, so there is no interval: lookup ran",
        ),
        (
            {"prompts": 6, "slow": {"lookup": 9.0, "assistant": 9.0}},
            ".*Another library was faster: transformers ran at",
        ),
        ({"methods": ["plain"]}, ".*no method was held against it"),
    ],
)
def test_news_is_told_as_it_is(how: dict[str, Any], words: str, tmp_path: Path) -> None:
    """Good news comes with its interval, bad news as plainly, and chance is called so."""
    assert re.match(words, told(tmp_path, **how))


@pytest.mark.slow
def test_runs_that_share_nothing_cannot_be_compared_and_one_prompt_is_no_sign_of_equality(tmp_path: Path) -> None:
    alone = {"languages": ["en"], "prompts": 1}
    one, other, third = (made_run(tmp_path / task, tasks=[task], **alone) for task in ("qa", "rag", "news"))
    apart = report(one, other, third)[PAGE]
    assert "These runs cannot be compared: they have no prompt in common." in apart
    lone = report(one, made_run(tmp_path / "again", tasks=["qa"], seed=1, **alone))[PAGE]
    assert "These runs cannot be compared: there is no interval around the ratio of one prompt." in lone
    for page in (apart, lone):
        assert "became faster" not in page
        assert 'title="the interval holds 1"' not in page
    both = {"tasks": ["qa"], "languages": ["en"], "prompts": 6}
    mixed = report(*(made_run(tmp_path / f"m{seed}", seed=seed, **both) for seed in range(2)), other)[PAGE]
    assert re.search(r"No method became faster or slower, .* rag cannot be compared: no prompt is in common", mixed)


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


def test_without_texts_there_is_no_claim(tmp_path: Path) -> None:
    pages = report(made_run(tmp_path / "b", prompts=0))
    assert "<h1>Nothing has been written yet on pocket.</h1>" in pages[PAGE]
    assert set(pages) == {PAGE, MARKDOWN}


def test_a_run_without_times_claims_no_speed(run: Run) -> None:
    """As a replayed text, of which rounds are counted and nothing else."""
    still = [
        replace(r, seconds=0.0, seconds_first=0.0, seconds_decode=0.0, split=r.split and dict.fromkeys(r.split, 0.0))
        for r in run.records
    ]
    pages = report(Run(run.path, run.about, still))
    assert "On pocket, rounds were counted and no speed was measured." in pages[PAGE]
    found = Summary(run).figures("assistant")
    assert found is not None
    assert f"{found.tokens_per_round:.2f}" in pages[PAGE]
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
        self.links += [named["href"] or ""] if tag == "a" else []
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


@pytest.mark.parametrize("shape", thinned(SHAPES))
def test_every_shape_of_a_run_has_its_sections(shape: str, tmp_path: Path) -> None:
    pages = report(made_run(tmp_path / "run", **SHAPES[shape]))
    found = read(pages[PAGE])
    told = [name.removeprefix("run1-") for name in found.sections]
    assert [name for name in SECTIONS if name in told] == told, "in their order"
    assert set(SECTIONS) - set(told) <= LEFT_OUT
    inner = {link for link in found.links if link.startswith("#")}
    assert {f"#{name}" for name in found.sections} == inner
    assert set(found.links) - inner <= set(pages)
    for name in set(pages) - {PAGE, MARKDOWN}:
        outer = {link.removeprefix("../") if link[:2] == ".." else f"texts/{link}" for link in read(pages[name]).links}
        assert outer <= set(pages)


def test_numbers_of_both_forms_are_those_of_the_summary(run: Run, pages: dict[str, str]) -> None:
    summary, page = Summary(run), read(pages[PAGE]).text
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
        replace(record, pieces=[evil[i % len(evil)] for i in range(len(record.tokens))], prompt=f"{record.prompt}<i>")
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
    assert len(re.findall("On pocket, lookup (?:writes|was not faster)", text)) == 2
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
        assert kinds.count(Kind.ACCEPTED) == sum(record.rounds["accepted"])
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


def test_no_method_is_shown_at_its_best(run: Run) -> None:
    """The typical text is not a loop, it is the same for all, and of every method that drafts."""
    found = [run.records[text] for text in texts.typical(Summary(run))]
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


def test_a_library_that_tells_nothing_is_not_given_sources(pages: dict[str, str]) -> None:
    page = pages["texts/1.html"]
    theirs = page[page.index("<bdi>transformers</bdi>") :]
    assert "It does not tell where its tokens come from." in theirs
    assert "the model itself" not in theirs


def test_prompts_are_quoted_turn_by_turn(run: Run, pages: dict[str, str]) -> None:
    page = next(text for name, text in pages.items() if "mt_bench, pl: mt_bench/pl/0" in text and name != PAGE)
    quotes = [html.unescape(found) for found in re.findall(r"<blockquote[^>]*>(.*?)</blockquote>", page, re.S)]
    assert quotes == list(run.prompts["mt_bench/pl/0"].turns)
    assert "<blockquote" in pages[PAGE]
    shown = run.records[texts.typical(Summary(run))[0]]
    assert run.prompts[shown.prompt].turns[shown.turn].replace("<b>", "").split("?")[0] in pages[MARKDOWN]
    assert "<blockquote" not in report(replace(run, prompts={}), texts=0)[PAGE]


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
        replace(r, verdict=TextVerdict.BUG, parts_at=3) if r.entry == "lookup" and r.unit == 1 else r
        for r in run.records
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
        yield "a.html", MARK
        raise RuntimeError

    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "a.html").write_text(f"{MARK}, an earlier one")
    (tmp_path / "old" / "theirs.txt").write_text("x")
    before = shown(tmp_path)
    for folder in (tmp_path / "new", tmp_path / "old"):
        with pytest.raises(RuntimeError):
            write_report(folder, breaking())
    assert shown(tmp_path) == before
    assert not (tmp_path / "new").exists()


def test_what_is_not_ours_is_not_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    (folder / "texts").mkdir(parents=True)
    (folder / "b.html").write_text("somebody's")
    with pytest.raises(ValueError, match=r"b\.html is there and is no earlier report"):
        write_report(folder, [("a.html", MARK), ("b.html", MARK)])
    assert shown(folder) == {"b.html": "somebody's"}
    (folder / "b.html").write_text(f"{MARK}, an earlier one")
    (folder / "texts" / "7.html").write_text(MARK)
    (folder / "texts" / "8.html").write_text("somebody's")
    names = ["a.html", "b.html", "texts/1.html"]
    assert write_report(folder, [(name, MARK) for name in names]) == names
    assert set(shown(folder)) == {*names, "texts/8.html"}


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


@pytest.mark.parametrize("command", [["report", "RUN", "--out", "out"], ["compare", "RUN"]])
def test_without_the_extra_the_command_says_what_to_install(
    command: list[str], run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("paceline.errors.find_spec", lambda package: None)
    assert main(["bench", *(word.replace("RUN", str(run.path)) for word in command)]) == 2
    assert capsys.readouterr().err.endswith("needs pandas: pip install 'paceline[bench]'\n")
    assert not (tmp_path / "out").exists()
