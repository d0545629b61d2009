"""The report in a real browser: it opens clean, fits a phone, heeds the dark, and what it shows is there to be seen."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import browser
from browser import Browser
from paceline.api.pictures import cells
from paceline.api.pictures.page import POLICY
from paceline_lab.bench.report import texts
from paceline_lab.bench.report.whole import PAGE, files
from paceline_lab.bench.run.directory import Run
from paceline_lab.bench.summary import Summary
from runs import made_run

pytestmark = pytest.mark.skipif(browser.missing() is not None, reason=str(browser.missing()))

PHONE, DESK = 360, 1200

LUMINANCE = """
const channel = v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
const light = color => { const [r, g, b] = color.match(/[\\d.]+/g).map(Number);
  return 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b); };
const contrast = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p);
  return (x + 0.05) / (y + 0.05); };
"""
HEATED = (
    LUMINANCE
    + """
return [...document.querySelectorAll('table.heat td, .heatkey li')].map(cell => {
  const style = getComputedStyle(cell);
  return [cell.textContent, style.backgroundColor, contrast(style.color, style.backgroundColor)]; });
"""
)
OVERLAPS = """
const found = [];
for (const svg of document.querySelectorAll('svg[role=img]')) {
  const frame = svg.getBoundingClientRect();
  const words = [...svg.querySelectorAll('text')].filter(word => word.textContent);
  const boxes = words.map(word => word.getBoundingClientRect());
  words.forEach((word, i) => {
    const a = boxes[i];
    if (a.left < frame.left - 1 || a.right > frame.right + 1 || a.top < frame.top - 1 || a.bottom > frame.bottom + 1)
      found.push(['outside', word.textContent]);
    for (let j = 0; j < i; j++) {
      const b = boxes[j];
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const tall = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (wide > 1 && tall > 0.3 * Math.min(a.height, b.height))
        found.push(['over', word.textContent, words[j].textContent]);
    }
  });
}
return found;
"""
SEEN = """
const small = element => { const box = element.getBoundingClientRect(); return box.width < 4 || box.height < 4; };
return {
  sections: [...document.querySelectorAll('section')].map(one => one.id),
  pictures: [...document.querySelectorAll('svg[role=img]')].length,
  empty: [...document.querySelectorAll('section, svg, table, h1, aside, .tiles div')]
    .filter(one => !one.closest('details:not([open])') && small(one)).map(one => one.outerHTML.slice(0, 80)),
  unnamed: [...document.querySelectorAll('svg[role=img]')]
    .filter(one => !one.querySelector(':scope > title').textContent.trim()
      || !one.querySelector(':scope > desc').textContent.trim()).length,
  headless: [...document.querySelectorAll('table')].filter(one => !one.querySelector('th[scope=row]')).length,
};
"""
MADE: dict[str, dict[str, Any]] = {
    "usual": {},
    "crowded": {
        "methods": ("plain", "lookup", "suffix", "recycling", "assistant", "lookup+recycling", "dictionary,lookup"),
        "peers": ("transformers", "transformers-lookup", "transformers-assisted:model=a/very/long/name/of/a/model"),
        "tasks": (
            "mt_bench",
            "translation",
            "summarization_of_long_articles",
            "qa",
            "math_reasoning",
            "rag",
            "humaneval",
        ),
        "languages": ("en", "pl", "ja", "ar"),
        "prompts": 1,
        "slow": {"recycling": 1.7, "dictionary,lookup": 2.5, "suffix": 1.2},
        "missing": {"mlx-lm": "mlx is not installed"},
    },
    "one prompt": {"tasks": ("qa",), "languages": ("en",), "prompts": 1, "repeats": 1, "joules": False},
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Run, Path]]:
    found = {}
    for name, how in MADE.items():
        folder = tmp_path_factory.mktemp("report")
        run = made_run(folder / "run", **how)
        for place, text in files([Summary(run)], texts=2):
            (folder / place).parent.mkdir(exist_ok=True)
            (folder / place).write_text(text, encoding="utf8", newline="\n")
        found[name] = run, folder
    return found


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    folder = tmp_path_factory.mktemp("browser")
    with browser.opened(folder) as found:
        found.size(DESK)
        found.scheme("light")
        yield found
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("name", MADE)
def test_a_page_opens_clean_and_fetches_nothing(name: str, pages: dict[str, tuple[Run, Path]], window: Browser) -> None:
    _, folder = pages[name]
    for page in (folder / PAGE, folder / "texts" / "1.html"):
        window.log("browser"), window.log("performance")
        window.open(page)
        assert window.log("browser") == []
        asked = [
            line["message"] for line in window.log("performance") if "Network.requestWillBeSent" in line["message"]
        ]
        assert asked, "the page's own request is seen"
        assert [line for line in asked if page.resolve().as_uri() not in line] == []
        assert window.run("return performance.getEntriesByType('resource').length") == 0


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("width", [DESK, PHONE])
def test_everything_is_there_and_fits(
    name: str, width: int, pages: dict[str, tuple[Run, Path]], window: Browser
) -> None:
    window.size(width)
    window.open(pages[name][1] / PAGE)
    found = window.run(SEEN)
    assert len(found["sections"]) == 11, found["sections"]
    assert found["pictures"] >= 7
    assert (found["empty"], found["unnamed"], found["headless"]) == ([], 0, 0)
    assert window.run("return document.documentElement.scrollWidth") <= width
    assert window.run(OVERLAPS) == []
    window.open(pages[name][1] / "texts" / "1.html")
    assert window.run("return document.documentElement.scrollWidth") <= width
    window.size(DESK)


def test_the_dark_is_heeded_and_numbers_can_be_read_in_it(pages: dict[str, tuple[Run, Path]], window: Browser) -> None:
    window.open(pages["crowded"][1] / PAGE)
    window.run("document.querySelectorAll('details').forEach(one => one.open = true)")
    grounds, colors = set(), {}
    for scheme in ("light", "dark"):
        window.scheme(scheme)
        grounds.add(window.run("return getComputedStyle(document.body).backgroundColor"))
        heated = window.run(HEATED)
        assert len(heated) > 9 * (7 + 4 + 28)
        assert [cell for cell in heated if cell[2] < 4.5] == []
        colors[scheme] = {cell[1] for cell in heated}
    window.scheme("light")
    assert len(grounds) == 2
    assert all(len(found) >= 6 for found in colors.values())
    assert colors["light"] != colors["dark"]


def test_a_pictured_text_is_the_text_of_the_record(pages: dict[str, tuple[Run, Path]], window: Browser) -> None:
    run, folder = pages["usual"]
    summary = Summary(run)
    window.open(folder / PAGE)
    shown = window.run("return [...document.querySelectorAll('.tokens .text')].map(one => one.textContent)")
    wanted = [texts.pictured(run.records[text], most=texts.EXAMPLE_TOKENS) for text in texts.typical(summary)]
    assert shown == ["".join(cell.text for cell in picture.cells) for picture in wanted]
    window.open(folder / "texts" / "1.html")
    prompt = texts.prompts_to_show(summary, 2)[0]
    records = [r for r in run.records if r.prompt == prompt and r.repeat == 0]
    assert sorted(window.run("return [...document.querySelectorAll('.text')].map(one => one.textContent)")) == sorted(
        record.text for record in records
    )
    titles = window.run("return [...document.querySelectorAll('.text [title]')].map(one => one.title)")
    drawn = [list(cells(texts.pictured(record).pieces)) for record in records if record.rounds]
    assert len(titles) == sum(map(len, drawn))
    assert any("accepted from draft" in title and "round" in title and "token" in title for title in titles)


def test_what_overlaps_would_be_seen(window: Browser, tmp_path: Path) -> None:
    """The measuring scripts are shown to complain before they are trusted to be silent."""
    page = tmp_path / "bad.html"
    page.write_text(
        f'<!doctype html><meta http-equiv=Content-Security-Policy content="{POLICY}">'
        "<style>.heat td{background:#888;color:#999}</style><table class=heat><tr><td>1.0</td></tr></table>"
        "<svg role=img viewBox='0 0 100 50' width=100><text x=10 y=20>one word</text><text x=12 y=21>another</text>"
        "<text x=90 y=45>leaves the frame</text></svg><img src='elsewhere.png'><script>1</script>"
    )
    window.log("browser")
    window.open(page)
    assert sum("Content Security Policy" in line["message"] for line in window.log("browser")) == 2
    assert {kind for kind, *_ in window.run(OVERLAPS)} == {"outside", "over"}
    assert window.run(HEATED)[0][2] < 4.5
