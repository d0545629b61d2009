"""Sweeps: they go on where they were stopped, and say of the paper's findings what their cells say."""

import json
import multiprocessing
import random
import shutil
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.bench.dictionaries.findings import findings_of
from paceline.bench.dictionaries.report import report
from paceline.bench.dictionaries.sweep import About, Cell, Settings, Swept, crew, sweep
from paceline.bench.dictionaries.sweep.cells import best
from paceline.bench.dictionaries.sweep.folder import Folder
from paceline.bench.dictionaries.tally import Tally
from paceline.cli import main
from paceline.files.writing import HOST
from tokenizer_kinds import byte_level, wrapped

LETTERS = {"uk": "абвгдеж", "crh-Cyrl": "къырмтанъ"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two languages of few words, and a tokenizer that spells them in bytes."""
    pytest.importorskip("duckdb", reason="words are counted by duckdb: pip install 'paceline[dict]'")
    folder = tmp_path_factory.mktemp("swept")
    for language, letters in LETTERS.items():
        chance = random.Random(language)
        words = ["".join(chance.choices(letters, k=5)) for _ in range(60)]
        lines = [" ".join(chance.choices(words, weights=range(60, 0, -1), k=12)) for _ in range(120)]
        (folder / f"{language}.txt").write_text("\n".join(lines) + "\n", encoding="utf8")
    wrapped(byte_level()).save_pretrained(folder / "bytes")
    return folder


def settings(place: Path, **others: Any) -> Settings:
    known: dict[str, Any] = {
        "tokenizers": {"bytes": str(place / "bytes"), "pocket": "pocket"},
        "texts": {language: [str(place / f"{language}.txt")] for language in LETTERS},
        "orders": (1, 2),
        "sizes": (20, 200, 100_000),
        "min_probabilities": (0.2, 0.8),
        "test_words": 200,
        "fingerprints": {"bytes": "b", "pocket": "p"},
    }
    return Settings(**known | others)


@pytest.fixture(scope="module")
def swept(place: Path) -> Swept:
    return sweep(place / "whole", settings(place))


def test_every_cell_is_there_and_the_unfilled_are_marked(swept: Swept, place: Path) -> None:
    assert len(swept.cells) == 2 * 2 * 2 * 3 * 2
    assert len({(c.pair, c.order, c.size, c.min_probability) for c in swept.cells}) == len(swept.cells)
    for about in swept.abouts:
        tables = [cell for cell in swept.of(about.pair) if cell.size == 100_000]
        assert [cell.filled for cell in tables] == [False] * 4
        assert all(200 < cell.entries < 100_000 for cell in tables if cell.order == 2)
        assert {cell.tally.tokens for cell in swept.of(about.pair)} == {about.test_tokens}
        assert all(cell.filled for cell in swept.of(about.pair) if cell.size == 20)
    assert all(row["filled"] == (row["entries"] == row["size"]) for row in swept.rows())
    assert best(swept.of(("bytes", "uk"))).tally.speed_up > 1.5


def test_text_that_is_tried_was_not_counted(swept: Swept, place: Path) -> None:
    folder = Folder(place / "whole", settings(place))
    for about in swept.abouts:
        known = folder.known(about.language)
        lines = (place / f"{about.language}.txt").read_text(encoding="utf8").splitlines()
        held = {line for text in known.documents for line in text.splitlines()}
        assert sum(len(line.split()) for line in lines if line not in held) == known.train_words == about.train_words
        assert folder.counts(about.language).words == known.train_words
        assert 200 <= known.test_words == about.test_words < 220


def test_a_sweep_that_was_stopped_goes_on(place: Path, swept: Swept, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C comes while cells are written: whole tables stay, and only the others are made again."""
    path = place / "stopped"
    kept = Folder.keep_cells
    made = list[tuple[str, str, int]]()

    def keeping(folder: Folder, about: About, order: int, cells: Any) -> None:
        if len(made) == 3:
            raise KeyboardInterrupt
        made.append((*about.pair, order))
        kept(folder, about, order, cells)

    monkeypatch.setattr(Folder, "keep_cells", keeping)
    with pytest.raises(KeyboardInterrupt):
        sweep(path, settings(place))
    first = {file: file.stat().st_mtime_ns for file in path.glob("cells/*")}
    assert len(first) == 3
    counted = (path / "counts" / "uk.parquet").stat().st_mtime_ns
    made.clear()
    monkeypatch.setattr(
        Folder,
        "keep_cells",
        lambda folder, about, order, cells: made.append((*about.pair, order)) or kept(folder, about, order, cells),
    )
    assert sweep(path, settings(place)).cells == swept.cells
    assert len(made) == 5
    assert {file: file.stat().st_mtime_ns for file in first} == first
    assert (path / "counts" / "uk.parquet").stat().st_mtime_ns == counted


def test_half_a_file_never_appears(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is cut off while it is written has no name that anybody reads, and is swept away."""
    path = place / "torn"

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        with pytest.raises(OSError, match="No space"):
            sweep(path, settings(place))
    assert not path.exists()
    path.mkdir()
    left = path / f".paceline-{HOST}-{12 * '0'}.partial"
    left.mkdir()  # as whoever is killed leaves it
    (left / "settings.json").write_text("{")
    folder = Folder(path, settings(place))
    folder.begin()
    (path / "notes.partial").write_text("somebody's")
    folder.begin()
    assert sorted(file.name for file in path.iterdir()) == ["notes.partial", "settings.json"]


def test_a_folder_that_vanished_does_not_hide_why_a_sweep_ended(place: Path) -> None:
    path = place / "vanished"

    def stopped(*_: object) -> None:
        shutil.rmtree(path)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(path, settings(place), advance=stopped)
    assert not path.exists()


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ({"sizes": (20, 300)}, "sizes: was [20, 200, 100000] and is [20, 300]"),
        ({"min_probabilities": (0.3,)}, "min_probabilities"),
        ({"fingerprints": {"bytes": "b", "pocket": "other"}}, "tokenizers"),
        ({"budget": 4}, "budget: was 8 and is 4"),
        ({"ngrams": 500}, "ngrams: was 2000000 and is 500"),
    ],
)
def test_another_sweep_in_the_same_folder_is_refused(
    place: Path, swept: Swept, others: Mapping[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match="holds another sweep") as refused:
        sweep(place / "whole", settings(place, **others))
    assert said in str(refused.value)


def test_a_text_that_changed_makes_another_sweep(place: Path, tmp_path: Path) -> None:
    text = tmp_path / "uk.txt"
    text.write_text("один два три\n", encoding="utf8")
    before = settings(place, texts={"uk": [str(text)]}).identity()
    text.write_text("один два чотири\n", encoding="utf8")
    assert settings(place, texts={"uk": [str(text)]}).identity() != before


def test_texts_of_a_folder_are_known_by_what_they_say(place: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    (texts / "more").mkdir(parents=True)
    one, two = texts / "a.txt", texts / "more" / "b.txt"
    one.write_text("один два три\n", encoding="utf8")
    two.write_text("чотири\n", encoding="utf8")

    def known(folder: Path = texts) -> Any:
        return settings(place, texts={"uk": [str(folder)]}).identity()

    before = known()
    (texts / "notes.pdf").write_bytes(b"nobody reads this")
    assert known() == before
    two.write_text("п'ять шість\n", encoding="utf8")
    assert known() != before
    two.write_text("чотири\n", encoding="utf8")
    assert known() == before
    two.rename(texts / "more" / "c.txt")
    assert known() != before
    saved = tmp_path / "saved"
    saved.mkdir()
    (saved / "state.json").write_text('{"_data_files": [{"filename": "a.arrow"}]}')
    (saved / "a.arrow").write_bytes(b"one")
    before = known(saved)
    (saved / "a.arrow").write_bytes(b"two")
    assert known(saved) != before


def test_fewer_ngrams_are_looked_at_where_fewer_are_wanted(place: Path, swept: Swept, tmp_path: Path) -> None:
    from paceline.bench.dictionaries.sweep.work import count_language

    folder = Folder(tmp_path, settings(place, ngrams=30))
    count_language(folder, "uk")
    assert folder.counts("uk").grams.num_rows == 60


def test_a_folder_of_something_else_is_left_alone(place: Path, tmp_path: Path) -> None:
    (tmp_path / "letters.txt").write_text("mine")
    with pytest.raises(ValueError, match="is there and is no sweep"):
        sweep(tmp_path, settings(place))
    assert [file.name for file in tmp_path.iterdir()] == ["letters.txt"]


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ({"orders": ()}, "at least one order"),
        ({"orders": (0,)}, "from 1 to 5"),
        ({"sizes": (0,)}, "1 or more"),
        ({"min_probabilities": (0.0,)}, "above 0"),
        ({"min_probabilities": (1.5,)}, "at most 1"),
        ({"test_words": 0}, "at least 1 word"),
        ({"budget": 9}, "from 1 to 8"),
        ({"ngrams": 0}, "at least 1 n-gram"),
        ({"texts": {"uk": ["hf:somebody/something"]}}, "can't tell whether hf:somebody/something stays the same"),
        ({"texts": {"a/b": [], "a-b": []}}, "differ as file names do"),
    ],
)
def test_settings_that_make_no_sense_are_told(place: Path, others: Mapping[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        settings(place, **others)


# --- in processes -----------------------------------------------------------------------------------------------


def test_workers_find_what_one_finds(place: Path, swept: Swept) -> None:
    small = settings(place, texts={"uk": [str(place / "uk.txt")]})
    assert sweep(place / "crew", small, workers=2).cells == [cell for cell in swept.cells if cell.language == "uk"]
    assert not multiprocessing.active_children()


def test_a_workers_mistake_is_told_in_its_own_words(place: Path, swept: Swept) -> None:
    folder = Folder(place / "whole", settings(place))
    with pytest.raises(ValueError, match=r"nobody\.json is damaged"):
        crew.measure_all(folder, [("bytes", "nobody"), ("pocket", "nobody")], 2, lambda _: None)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("early", [True, False])
def test_a_worker_that_died_before_its_first_pair_is_told_of(place: Path, swept: Swept, early: bool) -> None:
    """Before it was given any, and before it read what it was given."""
    worker = crew._Worker(Folder(place / "whole", settings(place)))

    def given() -> None:
        worker.take(("bytes", "uk"))
        worker._process.kill()
        worker.finish()

    try:
        if early:
            worker._process.kill()
            worker._process.join()
        with pytest.raises(ValueError, match=r"measured bytes in uk was killed .* want of memory"):
            given()
    finally:
        worker.stop()


def test_ctrl_c_leaves_no_worker_behind(place: Path, swept: Swept) -> None:
    def pressed(_: str) -> None:
        raise KeyboardInterrupt

    folder = Folder(place / "whole", settings(place))
    with pytest.raises(KeyboardInterrupt):
        crew.measure_all(folder, folder.settings.pairs, 2, pressed)
    assert not multiprocessing.active_children()


# --- findings ---------------------------------------------------------------------------------------------------


def made(
    speed_ups: Mapping[tuple[str, str], Mapping[tuple[int, int, float], int]], fertility: Mapping[Any, float]
) -> Swept:
    """Cells of 1000 tokens with so many steps, by order, size and probability."""
    abouts = [
        About(
            tokenizer=pair[0],
            language=pair[1],
            fingerprint="",
            train_words=1000,
            test_words=400,
            test_tokens=1000,
            fertility=fertility[pair],
        )
        for pair in speed_ups
    ]
    cells = [
        Cell(
            tokenizer=pair[0],
            language=pair[1],
            order=order,
            size=size,
            min_probability=least,
            entries=min(size, 600_000),
            tally=Tally(1000, steps, steps // 2, steps, 1000 - steps),
        )
        for pair, table in speed_ups.items()
        for (order, size, least), steps in table.items()
    ]
    return Swept(abouts, cells)


def steps(n1: int, n12: int, *, large: int = 5) -> dict[tuple[int, int, float], int]:
    """Steps at two orders; a larger dictionary takes ``large`` fewer, a surer one more."""
    found = {}
    for order, base in ((1, n1), (2, n12)):
        for place, size in enumerate((10_000, 200_000, 1_000_000)):
            fewer = (0, 100, 100 + large)[place]
            found |= {(order, size, 0.2): base - fewer, (order, size, 0.9): base + 40 - fewer}
    return found


def told(swept: Swept) -> dict[str, bool | None]:
    return {one.said: one.holds for one in findings_of(swept).told}


def starting(found: Mapping[str, bool | None], beginning: str) -> tuple[str, bool | None]:
    ((said, holds),) = [(said, holds) for said, holds in found.items() if said.startswith(beginning)]
    return said, holds


PAIRS = {
    ("mistral-v3", "uk"): steps(820, 800),
    ("mistral-v3", "crh-Cyrl"): steps(720, 700),
    ("llama3", "uk"): steps(840, 830),
    ("llama3", "crh-Cyrl"): steps(830, 760),
}
FERTILITY = {
    ("mistral-v3", "uk"): 3.0,
    ("mistral-v3", "crh-Cyrl"): 4.2,
    ("llama3", "uk"): 2.4,
    ("llama3", "crh-Cyrl"): 3.9,
}


def test_what_went_as_in_the_paper_is_said_to() -> None:
    found = told(made(PAIRS, FERTILITY))
    assert starting(found, "Crimean Tatar in Cyrillic")[1] is True
    assert starting(found, "At its best n12")[1] is True
    assert starting(found, "At 0.2 the mean")[1] is True
    assert starting(found, "The lower the probability")[1] is True
    speeds = [1000 / (table[2, 1_000_000, 0.2]) for table in PAIRS.values()]
    r = np.corrcoef(list(FERTILITY.values()), speeds)[0, 1]
    assert f"r = {r:.2f}" in starting(found, "Fertility and best")[0]
    assert "fertility being that of each test text itself" in starting(found, "Fertility and best")[0]


def test_what_went_otherwise_is_listed() -> None:
    pairs = PAIRS | {("llama3", "crh-Cyrl"): steps(940, 960, large=90)}
    found = told(made(pairs, FERTILITY))
    said, holds = starting(found, "Crimean Tatar in Cyrillic")
    assert holds is False
    assert "but not with llama3 (1.33x, 1.38x)" in said
    said, holds = starting(found, "At its best n12")
    assert holds is False
    assert "llama3 crh-Cyrl (1.3333x, 1.2987x)" in said
    assert "mistral" not in said
    said, holds = starting(found, "Dictionary by dictionary, n12")
    assert holds is None
    assert "in 6 of 24" in said
    rising = {pair: steps(820, 800, large=400) for pair in PAIRS}
    assert starting(told(made(rising, FERTILITY)), "At 0.2 the mean")[1] is False


def test_unfilled_dictionaries_and_steps_per_word_are_told() -> None:
    found = told(made(PAIRS, FERTILITY))
    assert "8 in uk, 8 in crh-Cyrl" in starting(found, "16 of 48 dictionaries have fewer")[0]
    said, holds = starting(found, "Steps per word in uk")
    assert holds is None
    assert "mistral-v3 2.50 and 1.74, llama3 2.50 and 1.81" in said
    assert said.endswith("with one llama3 takes fewer steps than mistral-v3 without")


def test_of_equal_dictionaries_the_smallest_is_best() -> None:
    (one,) = made({("a", "uk"): {(1, 10, 0.5): 900, (1, 20, 0.5): 900, (2, 10, 0.2): 900}}, {("a", "uk"): 2.0}).of(
        ("a", "uk"), 2
    )
    cells = made({("a", "uk"): {(1, 20, 0.5): 900, (2, 10, 0.2): 900, (1, 10, 0.5): 900}}, {("a", "uk"): 2.0}).cells
    assert one.size == 10
    assert (best(cells).order, best(cells).size) == (1, 10)


# --- pages and the command --------------------------------------------------------------------------------------


class Tags(HTMLParser):
    """What a page is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = list[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        assert not any(name == "src" or (value or "").startswith("http") for name, value in attrs)


def test_the_page_stands_alone_and_has_the_papers_rows(place: Path, tmp_path: Path) -> None:
    found = made(PAIRS, FERTILITY)
    report(tmp_path, settings(place), found, findings_of(found))
    drawn = (tmp_path / "report.html").read_text(encoding="utf8")
    tags = Tags()
    tags.feed(drawn)
    assert "script" not in tags.seen
    assert drawn.count('<svg class="chart') == 4, "figures 1 and 2, and figure 3 for each language"
    for row in ("paper 1.65", "paper 1.43", "paper 1.61", "paper 1.28", "paper 251,618,586", "paper 1,333,103"):
        assert row in drawn
        assert row in (tmp_path / "report.md").read_text(encoding="utf8")
    lines = (tmp_path / "results.jsonl").read_text(encoding="utf8").splitlines()
    assert [Cell.of(json.loads(line)) for line in lines] == found.cells


def test_the_command_writes_and_tells_all(place: Path, swept: Swept, capsys: pytest.CaptureFixture[str]) -> None:
    texts = [f"{language}={place / f'{language}.txt'}" for language in LETTERS]
    out = place / "command"
    chosen = [
        "--sizes",
        "20",
        "200",
        "100000",
        "--min-probs",
        "0.8",
        "0.2",
        "--orders",
        "1",
        "2",
        "--test-words",
        "200",
    ]
    given = [
        "dict",
        "sweep",
        "--out",
        str(out),
        "--texts",
        *texts,
        "--tokenizers",
        str(place / "bytes"),
        "pocket",
        *chosen,
    ]
    assert main([*given, "--workers", "1", "--json", "--show", "cells"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    told = json.loads(last)
    assert [Cell.of(row) for row in told["cells"]] == swept.cells
    assert {file.name for file in out.iterdir()} >= {"results.jsonl", "report.md", "report.html", "settings.json"}
    top = best(swept.of(("bytes", "uk")))
    assert any(
        line.startswith("bytes uk") and f"{top.tally.steps / swept.about(top.pair).test_words:.3f}" in line
        for line in lines
    )
    assert main([*given[:-2], "--test-words", "300"]) == 2
    assert "holds another sweep (test_words: was 200 and is 300)" in capsys.readouterr().err
    assert main([*given, "--workers", "0"]) == 2
    assert "--workers must be at least 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--texts", "uk=no.txt"], "no.txt"),
        (["--test-words", "100000"], "leave none to build from"),
        (["--orders", "9"], "orders are numbers of words"),
        (["--tokenizers", "./no/such"], "no model at"),
    ],
)
def test_a_refused_sweep_leaves_nothing(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], given: list[str], said: str
) -> None:
    """Neither a folder it made nor a file in one that was there."""
    (tmp_path / "there").mkdir()
    for out in ("there", "some/where"):
        known = ["--out", str(tmp_path / out), "--texts", f"uk={place / 'uk.txt'}", "--tokenizers", "pocket"]
        assert main(["dict", "sweep", *known, *given]) == 2
        assert said in capsys.readouterr().err
    assert list(tmp_path.rglob("*")) == [tmp_path / "there"]
