"""The scripts of the ReDrafter paper: what packing saves is what a trie saves, speeds and claims follow from the texts,
mistakes are sentence, and every script runs."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import paceline
from paceline import DraftTree
from paceline.api.model import LanguageModel
from paceline.drafters.networks.redrafter.checkpoint import write_head
from paceline.drafters.networks.redrafter.head import HeadShape, RecurrentHead
from paceline_lab import Summary
from paper_items import STEADY, asked, shown
from papers.lab import Lab, conditions, without_head
from papers.redrafter import arrivals, beams, labels, packing, parallel, shape, tasks
from papers.redrafter.heads import METHOD, OWN, need_head, spec
from papers.redrafter.unpacked import unpacked
from papers.speeds import best, per_request, written
from runs import made_run
from thinning import thinned

UNPACKED = Path(packing.__file__).with_name("unpacked.py")
QUICK = STEADY | {"tasks": ("qa",), "languages": ("en", "pl"), "prompts": 3}
ITEMS = "tasks", "arrivals", "beams", "shape", "packing"


# --- packing


def prefixes(rows: list[list[int]]) -> set[tuple[int, ...]]:
    """A trie, as the beginnings that lead to its nodes."""
    return {tuple(row[: place + 1]) for row in rows for place in range(len(row))}


def spelt(tree: DraftTree) -> list[tuple[int, ...]]:
    """The tokens on the way to every node without children."""
    leaves = set(range(len(tree))) - set(tree.parents.tolist())
    return sorted(tuple(tree.tokens[tree.path(node)].tolist()) for node in leaves)


@pytest.mark.parametrize("width", [1, 3, 20])
def test_packing_saves_what_a_trie_saves(width: int) -> None:
    drawn = np.random.default_rng(width)
    for length in (1, 2, 5):
        rows = [list(row) for row in {tuple(drawn.integers(0, 3, length).tolist()) for _ in range(width)}]
        tree = DraftTree.from_beams(rows)
        assert len(tree) == len(prefixes(rows))
        whole = unpacked(tree)
        whole.check()
        assert len(whole) == len(rows) * length
        assert whole.drafted == len(tree), "what is repeated is never verified"
        assert (whole.tokens[: len(tree)] == tree.tokens).all()
        assert (whole.parents[: len(tree)] == tree.parents).all()


def test_the_paper_s_beams_repeat_what_they_share() -> None:
    """Figure 4: 15 tokens before, and 8 after."""
    rows = [[1, 2, 3, 4, 5], [1, 2, 3, 4, 6], [1, 2, 3, 7, 8]]
    tree = DraftTree.from_beams(rows)
    assert (len(unpacked(tree)), len(tree)) == (15, 8)
    assert spelt(unpacked(tree)) == sorted([*map(tuple, rows), (1, 2, 3, 4), (1, 2, 3)])
    ended = DraftTree.from_beams([[1, 2, 3], [1, 4]])
    assert len(unpacked(ended)) == 5, "a beam that ended early is shorter"
    chain = DraftTree.chain([1, 2])
    assert unpacked(chain) is chain


def test_drafts_are_counted_whole() -> None:
    counts: packing.Counts = ([], [])
    packing.note(counts, DraftTree.from_beams([[1, 2, 3], [1, 2, 4]]), 3)
    packing.note(counts, DraftTree.from_beams([[1, 2], [1, 3]]), 3)
    packing.note(counts, DraftTree.chain([]), 3)
    assert counts == ([6], [4])
    assert packing.saved(counts) == pytest.approx(1 / 3)


def test_counts_have_percentiles() -> None:
    after = list(range(101))
    (_, rows) = packing.left({4: ([100] * 101, after), 1: ([5, 5], [5, 5])})
    assert rows == [("4", "100.0", "50.0", "1", "99", "50%", "101"), ("1", "5.0", "5.0", "5", "5", "0%", "2")]
    counts = {2: ([100], [90]), 5: ([100] * 101, after), 70: ([100], [45])}
    (claim,) = packing.claims(counts, {}, {})
    assert claim.ours == "50% to 55% with 5, 70", "the paper has no narrower beams"
    assert claim.agrees
    assert packing.claims({2: counts[2]}, {}, {}) == []


@pytest.mark.parametrize("temperature", thinned([1.0, 0.0]))
def test_unpacked_beams_write_the_same_text_and_are_all_scored(
    temperature: float, lm: LanguageModel, heads: Path
) -> None:
    how: dict[str, Any] = {"max_new_tokens": 10, "temperature": temperature, "seed": 5, "planner": "fixed"}
    plain = lm.generate("Once upon a time", method="plain", **how)
    found = lm.generate(
        "Once upon a time", method=f"'{UNPACKED}':Unpacked:width=6,length=3,head='{heads / '0'}'", **how
    )
    packed = lm.generate("Once upon a time", method=f"redrafter:paper,width=6,length=3,head='{heads / '0'}'", **how)
    assert list(found.tokens) == list(packed.tokens) == list(plain.tokens)
    assert found.totals.drafted == packed.totals.drafted
    whole = [one.rows for one in found.rounds if one.depth == 3]
    assert whole
    assert set(whole) == {1 + 6 * 3}
    assert max(one.rows for one in packed.rounds) < 1 + 6 * 3


# --- speeds


def run_of(**columns: Any) -> Any:
    texts = pd.DataFrame({"entry": ["plain", "plain", "a"], **columns})
    return SimpleNamespace(texts=texts, base="plain")


def test_a_request_s_speed_begins_with_its_first_token() -> None:
    run = run_of(tokens=[5, 9, 1], seconds=[3.0, 2.5, 1.0], seconds_first=[1.0, 0.5, 1.0])
    assert per_request(run, "plain") == pytest.approx((4 + 8) / (2.0 + 2.0))
    assert math.isnan(per_request(run, "a")), "one token has no speed"
    assert written(per_request(run, "a")) == ""


def test_plain_decoding_in_the_paper_follows_from_its_table() -> None:
    found = {model: arrivals.implied(rows) for model, rows in arrivals.PAPER.items()}
    assert found["Vicuna 7B"] == pytest.approx([5.04, 5.23, 4.33], abs=0.01)
    assert all(rows[1] < rows[0] for model, rows in found.items() if model != "Vicuna 7B")


def test_the_paper_s_labels_gain_what_it_says() -> None:
    assert [round(one, 2) for one in labels.gains(1)] == [1.06, 1.08, 1.10, 1.08, 1.08]
    assert max(labels.gains(0)) == pytest.approx(1.72 / 1.54)


def test_the_paper_s_best_widths() -> None:
    widths = {batch: best(dict(zip(beams.PAPER_WIDTHS, row, strict=False))) for batch, row in beams.TABLE5.items()}
    assert (widths[1], widths[80]) == (64, 2)
    assert [len(row) for row in beams.TABLE5.values()] == [7] * 7 + [3]


# --- reports of made runs


def made(folder: Path, methods: list[str], slow: dict[str, float] | None = None, **how: Any) -> Summary:
    return Summary(made_run(folder, methods=("plain", *methods), slow=slow or {}, **QUICK | how))


@pytest.mark.parametrize("slow", [{"w4": 5.0}, {"w1": 5.0}])
def test_the_best_width_is_told_as_measured(slow: dict[str, float], tmp_path: Path) -> None:
    entries = {1: "w1", 4: "w4"}
    other = {"w1": 5.0} if "w4" in slow else {"w4": 5.0}
    runs = {1: made(tmp_path / "1", ["w1", "w4"], slow), 8: made(tmp_path / "8", ["w1", "w4"], other)}
    found = beams.report(runs, entries)
    claim = next(one for one in found.claims if one.claim.startswith("the best width"))
    assert claim.agrees is (slow == {"w1": 5.0})
    (head, rows), (_, single) = found.tables
    assert head[-2:] == ["4 wide", "in all"]
    assert [row[0] for row in rows] == ["1", "1  paper", "8", "8  paper"]
    assert rows[1] == ["1  paper", "", "", "62.5", "62.5", "80.5", "80.5"]
    assert [row[0] for row in single] == ["1", "4"]
    assert "nan" not in found.markdown


def test_wide_beams_without_memory_are_left_out(tmp_path: Path) -> None:
    asked = list[list[str]]()
    missing = dict[str, str]()

    def race(name: str, methods: Any, **how: Any) -> str | None:
        asked.append([*methods])
        if "w9" in asked[-1]:
            missing[name] = "CUDA out of memory. Tried to allocate"
            return None
        return "run"

    lab: Any = SimpleNamespace(given=SimpleNamespace(limit=3), missing=missing, race=race)
    assert beams.raced(lab, {1: "w1", 9: "w9"}, 2) == "run"
    assert asked == [["w1", "w9"], ["w1"]]
    assert [*missing] == ["9 wide at batch 2"]
    run = made(tmp_path / "run", ["w1"])
    _, ((_, *cells), _) = beams.table5({2: run}, {1: "w1", 9: "w9"})
    assert cells[-2:] == [beams.OUT_OF_MEMORY] * 2
    assert [*beams.paper_row(80, [4, 5, 8])] == [
        ["80  paper", "", "", "19.6", "1572.0", "", "", *[beams.OUT_OF_MEMORY] * 2]
    ]
    assert [*beams.paper_row(3, [4])] == []


@pytest.mark.parametrize(("slow", "agrees"), [("a", False), ("b", True)])
def test_the_fastest_shape_is_found(slow: str, agrees: bool, tmp_path: Path) -> None:
    cells = {(1, 2): "b", (1, 4): "a"}
    run = made(tmp_path / "run", ["a", "b"], {slow: 4.0})
    found = shape.report(run, cells)
    assert [one.agrees for one in found.claims] == [agrees]
    assert shape.report(run, cells, trained=3).claims[0].agrees is False
    assert len(found.panels) == 2


def test_temperatures_are_compared(tmp_path: Path) -> None:
    names = {METHOD: "p", OWN: "o", "auto": "auto"}
    runs = {
        (tasks.MT_BENCH, heat): made(tmp_path / f"{heat}", [*names.values()], {"p": 1.0 + 2 * (heat == 0)})
        for heat in tasks.TEMPERATURES
    }
    found = tasks.report(runs, names)
    first, own = (one for one in found.claims if "speed-up of" in one.claim)
    assert first.agrees
    assert first.paper == tasks.GAIN
    assert not own.paper
    (head, rows), (_, kinds) = found.tables
    assert head == ["", "MT-Bench, x plain [95%]", "tokens/round"]
    assert len(rows) == len(kinds) == 6
    assert len(found.panels) == 6
    assert [panel.across for panel in found.panels] == ["method"] * 2 + ["category"] * 4
    assert any("Medusa and EAGLE, are here where" in note for note in found.notes)


def test_a_rival_with_a_named_head_is_compared_as_well(tmp_path: Path) -> None:
    names = {METHOD: "p", OWN: "o", without_head("eagle:paper,head='x'"): "e"}
    runs = {(tasks.MT_BENCH, 0.0): made(tmp_path / "run", [*names.values()], {"e": 3.0})}
    found = [one for one in tasks.report(runs, names).claims if "is faster than eagle:paper" in one.claim]
    assert [one.agrees for one in found] == [True]


def test_arrivals_are_compared_with_the_slowest_rate(tmp_path: Path) -> None:
    names = {METHOD: "p", OWN: "o"}
    runs = {
        rate: made(tmp_path / f"{rate}", ["p", "o"], {"p": slow}, recipe={"qps": rate})
        for rate, slow in ((0.1, 1.0), (1.0, 3.0))
    }
    found = arrivals.report(runs, names)
    assert [one.agrees for one in found.claims] == [True]
    (head, rows), (_, printed) = found.tables
    assert {len(row) for row in rows} == {len(head)}
    assert len(printed) == 9
    assert "nan" not in found.markdown


def test_more_processes_are_compared_with_fewer(tmp_path: Path) -> None:
    entry = spec(asked("redrafter", "parallel"), 6, 5)
    for ranks, seconds in ((1, 1.0), (2, 2.0)):
        made(tmp_path / f"{parallel.NAME}{ranks}", [entry], {entry: seconds})
    runs = parallel.kept(tmp_path)
    assert [*runs] == [1, 2]
    assert [one.agrees for one in parallel.claims(runs, entry)][-1] is True
    (head, rows) = parallel.table(runs, entry)
    assert {len(row) for row in rows} == {len(head)}
    assert rows[1] == ["V 7B (paper)", "323.1, 2.19", "373.3, 1.82"]


# --- options


def test_methods_name_width_length_and_head() -> None:
    assert spec(asked("redrafter", "packing"), 4, 3) == "redrafter:paper,width=4,length=3"
    assert (
        spec(asked("redrafter", "packing", "--head", "a b"), 1, 2, method=OWN)
        == "redrafter:width=1,length=2,head='a b'"
    )


def test_how_texts_are_written_is_told() -> None:
    assert len(conditions([0.0], "x", "pocket+ballast:500M")) == 2
    assert conditions([0.0, 1.0], "x", "llama") == ["texts are written at temperature 0 and 1; x"]


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    return paceline.load("pocket", dtype="float32", generation_config=False)


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads for `pocket` that were never trained."""
    folder = tmp_path_factory.mktemp("heads")
    for seed in range(2):
        torch.manual_seed(seed)
        write_head(folder / f"{seed}", RecurrentHead(HeadShape(width=256, vocab_size=8192, exit=16)))
    return folder


@pytest.fixture
def run(lm: LanguageModel, tmp_path: Path, monkeypatch: Any) -> Any:
    """Runs an item on `pocket` and gives what it shows as data."""
    monkeypatch.setattr(paceline, "load", lambda *_, **__: lm)

    usual = "--model", "pocket", "--limit", "1", "--max-new-tokens", "4", "--out", str(tmp_path / "out")
    return lambda item, *given: shown("redrafter", item, *usual, *given)


@pytest.mark.parametrize("name", ITEMS)
def test_a_model_without_a_head_is_told(name: str, run: Any, monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setattr("paceline.drafters.networks.heads.shipped_folder", lambda _: tmp_path)
    with pytest.raises(ValueError, match=r"^no head for pocket comes with paceline; .* and give --head FOLDER$"):
        run(name)


@pytest.mark.parametrize(
    ("name", "given", "sentence"),
    [
        ("beams", ["--width", "0"], "--width must be at least 1"),
        ("beams", ["--batch", "2", "0"], "--batch must be at least 1"),
        ("shape", ["--length", "0"], "--length must be at least 1"),
        ("arrivals", ["--qps", "0"], "--qps must be more than 0"),
        ("arrivals", ["--qps", "nan"], "--qps must be more than 0"),
        ("packing", ["--limit", "0"], "--limit must be at least 1"),
        ("tasks", ["--head", "nowhere"], "there is no head in nowhere"),
        ("tasks", ["--head", "it's"], "has a quote in its name"),
    ],
)
def test_mistakes_are_named(name: str, given: list[str], sentence: str, run: Any) -> None:
    with pytest.raises(ValueError, match=sentence):
        run(name, *given)


def test_mistakes_in_heads_are_named(run: Any) -> None:
    with pytest.raises(ValueError, match="give two heads or more, each of another label"):
        run("labels", "--heads", "truth=a", "truth=b")
    with pytest.raises(ValueError, match="leave --head out"):
        run("labels", "--heads", "truth=a", "soft=b", "--head", "a")


# --- every script runs


def data_folder(folder: Path) -> Path:
    folder.mkdir()
    rows = [
        {"question_id": 81 + n, "category": kind, "turns": [f"Say {kind}."]} for n, kind in enumerate(("stem", "math"))
    ]
    (folder / "spec_bench_question.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = [{"dataset": "koala", "instruction": "Go."}, {"dataset": "oasst", "instruction": "Stop."}]
    (folder / "alpaca_eval.json").write_text(json.dumps(asked))
    return folder


def test_categories_are_tasks(tmp_path: Path) -> None:
    folder = data_folder(tmp_path / "data")
    assert sorted((one.task, one.turns[0]) for one in tasks.mt_bench(folder)) == [
        ("math", "Say math."),
        ("stem", "Say stem."),
    ]
    assert [one.task for one in tasks.alpaca_eval(folder)] == ["koala", "oasst"]


def test_a_data_set_that_is_not_here_is_left_out(tmp_path: Path) -> None:
    folder = data_folder(tmp_path / "data")
    (folder / "alpaca_eval.json").unlink()
    lab = Lab(asked("redrafter", "tasks", "--model", "pocket", "--data", folder, "--out", tmp_path / "out"))
    assert [*tasks.datasets(lab)] == [tasks.MT_BENCH]
    assert [note.partition(":")[0] for note in lab.notes] == ["AlpacaEval is left out"]
    assert [*tasks.methods(lab)] == [
        *(METHOD, OWN, "assistant", "medusa:paper", "eagle:paper", "unispec", "auto", "auto with the head")
    ]


def test_runs_are_of_the_same_heads_alone(lm: LanguageModel, heads: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(paceline, "load", lambda *_, **__: lm)
    lab = Lab(asked("redrafter", "labels", "--out", tmp_path / "out"))
    for _ in range(2):
        need_head(lab, heads / "0", heads / "1")
    with pytest.raises(ValueError, match="has runs with other heads; give another --out"):
        need_head(lab, heads / "1")


@pytest.mark.slow
def test_tasks_runs_and_says_what_is_not_here(run: Any, heads: Path, tmp_path: Path) -> None:
    folder = data_folder(tmp_path / "data")
    (folder / "alpaca_eval.json").unlink()
    svg = tmp_path / "a.svg"
    found = run("tasks", "--data", str(folder), "--head", str(heads / "0"), "--width", "2", "--svg", str(svg))
    assert [*found["runs"]] == ["MT-Bench T=0", "MT-Bench T=1"]
    assert found["runs"]["MT-Bench T=0"]["tasks"] == ["math", "stem"], "in MT-Bench's order"
    assert any(note.startswith("AlpacaEval is left out") for note in found["notes"])
    assert "<svg" in svg.read_text()


@pytest.mark.parametrize(
    ("name", "given"),
    thinned(
        [
            ("packing", ["--width", "2", "4", "--length", "2", "--wide", "3", "--batch", "2"]),
            ("beams", ["--width", "1", "2", "--batch", "1", "2", "--length", "2"]),
            ("arrivals", ["--qps", "100", "200", "--width", "2"]),
            ("shape", ["--width", "1", "2", "--length", "1", "2"]),
            ("parallel", ["--width", "2", "--length", "2"]),
        ],
        every=5,
    ),
)
def test_a_script_runs(name: str, given: list[str], run: Any, heads: Path, tmp_path: Path) -> None:
    """Without MT-Bench: stories are used instead, and a note says so."""
    (tmp_path / "empty").mkdir()
    usual = "--data", str(tmp_path / "empty"), "--head", str(heads / "0"), "--langs", "en"
    found = run(name, *usual, *given)
    assert found["runs"]
    assert not any("could not be measured" in note or "otherwise than plain" in note for note in found["notes"])
    assert any("beginnings of stories are used instead" in note for note in found["notes"])
    assert found["claims"]
    if name == "packing":
        again = run(name, *usual, *given, "--batch")
        assert [*again["runs"]] == ["widths"], "what was counted is read again"
        (tmp_path / "out" / "drafts.json").unlink()
        with pytest.raises(ValueError, match="was interrupted, and drafts are not all known"):
            run(name, *usual, *given)


@pytest.mark.slow
def test_labels_runs_and_goes_on_with_the_same_heads_only(run: Any, heads: Path) -> None:
    given = "--heads", f"truth={heads / '0'}", f"greedy={heads / '1'}", "--langs", "en", "--width", "1", "2"
    found = run("labels", *given)
    assert [*found["runs"]] == ["T=0", "T=1"]
    assert len(found["claims"]) == 4
    assert run("labels", *given) == found, "what was kept is read again"
    with pytest.raises(ValueError, match="has runs with other heads; give another --out"):
        run("labels", *given[:1], f"truth={heads / '1'}", *given[2:])


@pytest.mark.slow
def test_a_model_of_mlx_lm_is_measured_with_the_heads_of_the_bundled_one(heads: Path, tmp_path: Path) -> None:
    pytest.importorskip("mlx_lm", reason="mlx-lm is not installed: pip install 'paceline[mlx]'")
    stories = "--langs", "en", "--suite", "stories", "--width", "1"
    given = {
        "beams": (*stories, "--batch", "1"),
        "labels": (*stories, "--heads", f"truth={heads / '0'}", f"greedy={heads / '1'}"),
        "tasks": ("--data", str(data_folder(tmp_path / "data")), "--rivals", "medusa:paper"),
    }
    for name, words in given.items():
        usual = "--model", "mlx:pocket", "--limit", "1", "--max-new-tokens", "4", "--out", tmp_path / name
        found = shown("redrafter", name, *usual, *words)
        assert found["claims"] or name == "beams", "of one width there is nothing to compare"
        assert not any("could not be measured" in note or "otherwise than plain" in note for note in found["notes"])


# --- the list of tables and figures


def test_the_list_counts_its_lines() -> None:
    """Of every paper: complete, computed, partial and open items."""
    readme = (Path(tasks.__file__).parents[1] / "README.md").read_text(encoding="utf8")
    rows = re.findall(r"^\| `(\w+)` \| [^|]+" + r"\| (\d+) " * 5 + r"\|$", readme, re.MULTILINE)
    sums = re.search(r"^\| \| all " + r"\| (\d+) " * 5 + r"\|$", readme, re.MULTILINE)
    assert sums is not None
    assert [int(one) for one in sums.groups()] == [sum(int(row[n]) for row in rows) for n in range(1, 6)]
    for name, *sentence in rows:
        section = readme.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        kinds = "complete", "computed", "partial", "open"
        states = re.findall(rf"^\| (?:Table|Figure) \d+ \|.*\| ({'|'.join(kinds)})[^|]*\|$", section, re.MULTILINE)
        assert [int(one) for one in sentence] == [len(states), *map(Counter(states).__getitem__, kinds)], name
