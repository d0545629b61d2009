"""Calibration as the UniSpec paper has it: its fits against scikit-learn's, its optimum, its runs and its prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline_lab import Calibration, Summary, open_suite
from paper_items import asked as given_of
from paper_items import shown
from papers.charts import draw
from papers.unispec import calibrated as figures
from papers.unispec import lab as labs
from papers.unispec.calibration import (
    KNOTS,
    Kept,
    Runs,
    best_size,
    calibration_of,
    cubic,
    even,
    evolved_size,
    forward_seconds,
    named,
    speed,
    spline,
    write_prompts,
)
from papers.unispec.lab import SizesLab, procedure_of
from runs import made_run

EVERY = np.arange(1, 129, dtype=np.float64)
COUNTS = 2, 3, 5, 8, 10, 14, 40


def measurements(runs: int, seed: int = 0) -> tuple[list[int], list[float], list[float]]:
    """Sizes, tokens that level off and seconds that rise in steps, with noise."""
    random, sizes = np.random.default_rng(seed), even(1, 128, runs)
    tokens = [1 + 0.4 * np.log(size) + 0.02 * random.standard_normal() for size in sizes]
    seconds = [0.02 + 0.001 * (size // 16) + 0.0005 * random.standard_normal() for size in sizes]
    return sizes, tokens, seconds


SIZES, VALUES = (3, 10, 25, 31, 50, 64, 77, 90, 110, 128), (2.0, 2.2, 2.9, 2.1, 3.5, 3.0, 4.4, 4.1, 6.0, 7.5)
THEIRS = {
    (spline, 3): (2.0, 2.199909, 2.415731, 2.893312),
    (cubic, 3): (2.0, 2.093714, 2.667656, 2.878427),
    (spline, 5): (2.0, 2.025756, 2.893275, 3.497489),
    (cubic, 5): (1.898764, 2.262845, 2.557067, 3.40279),
    (spline, 10): (1.931609, 2.22877, 2.493311, 7.650112),
    (cubic, 10): (2.011389, 2.12085, 2.430101, 7.482773),
}
"""What scikit-learn 1.9.1 says of the first so many of these, at 3, 7, 20 and half a node below the last."""


@pytest.mark.parametrize(("fit", "runs"), THEIRS)
def test_the_fits_are_those_of_scikit_learn(fit: Any, runs: int) -> None:
    sizes, places = SIZES[:runs], np.array([3, 7, 20, SIZES[runs - 1] - 0.5])
    assert fit(sizes, VALUES[:runs])(places) == pytest.approx(THEIRS[fit, runs], abs=1e-6)


def test_the_fits_are_those_of_the_scikit_learn_that_is_installed() -> None:
    linear = pytest.importorskip("sklearn.linear_model")
    pre, made = pytest.importorskip("sklearn.preprocessing"), pytest.importorskip("sklearn.pipeline")
    for runs in COUNTS:
        sizes, tokens, seconds = measurements(runs)
        for features, fit, values in (
            (pre.SplineTransformer(degree=2, n_knots=8), spline, seconds),
            (pre.PolynomialFeatures(degree=3), cubic, tokens),
        ):
            theirs = made.make_pipeline(features, linear.LinearRegression()).fit(np.c_[sizes], values)
            assert fit(sizes, values)(EVERY) == pytest.approx(theirs.predict(EVERY[:, None]), rel=1e-6)


def test_fits_reproduce_what_they_can_express() -> None:
    sizes = even(1, 128, 12)
    curve = [3 + 0.2 * size - 0.001 * size**2 for size in sizes]
    for fit in (spline, cubic):
        assert fit(sizes, curve)(EVERY) == pytest.approx(3 + 0.2 * EVERY - 0.001 * EVERY**2)
    few, _, seconds = measurements(5)
    assert len(few) < KNOTS + 1, "too few runs for the spline"
    assert spline(few, seconds)(np.array(few, float)) == pytest.approx(seconds), "it goes through every point then"
    assert spline([7], [2.0])(EVERY).tolist() == [2.0] * len(EVERY)


@pytest.mark.parametrize("runs", COUNTS)
def test_no_size_is_better_than_the_best_and_differential_evolution_finds_the_same(runs: int) -> None:
    sizes, tokens, seconds = measurements(runs)
    fits = cubic(sizes, tokens), spline(sizes, seconds)
    best, evolved, curve = best_size(*fits, 1, 128), evolved_size(*fits, 1, 128), speed(*fits)
    speeds = curve(EVERY)
    assert speeds[best - 1] == pytest.approx(speeds.max())
    assert curve(np.array([evolved]))[0] >= (1 - 1e-6) * speeds.max()
    assert abs(evolved - best) <= 1, "up to rounding"


def test_sizes_of_runs_lie_evenly_from_end_to_end() -> None:
    assert even(25, 125, 5) == [25, 50, 75, 100, 125], "a grid in steps of 25"
    assert even(1, 128) == [1, 15, 29, 43, 57, 72, 86, 100, 114, 128]
    assert even(1, 3, 10) == [1, 2, 3]
    assert even(4, 4, 1) == [4]


def test_a_calibration_is_read_from_a_run_of_each_size(tmp_path: Path) -> None:
    entries = {g: f"unispec@fixed:{g}" for g in (1, 8, 64)}
    how: dict[str, Any] = {"tasks": ("qa",), "languages": ("en",), "peers": (), "stall": False, "noise": 0.0}
    run = Summary(made_run(tmp_path / "run", methods=("plain", *entries.values()), slow={entries[64]: 9.0}, **how))
    found = calibration_of(run, entries)
    assert found.sizes == [1, 8, 64]
    assert 1 <= found.nodes < 64, "rounds of 64 nodes take nine times as long"
    assert found.seconds == [forward_seconds(run, entry) for entry in entries.values()]
    assert all(whole > forward for whole, forward in zip(found.whole, found.seconds, strict=True)), "drafting is apart"
    assert found.took == pytest.approx(sum(record.seconds for e in entries.values() for record in run.records(e)))
    with pytest.raises(ValueError, match="give longer texts"):
        calibration_of(run, {1: "plain", 2: "nobody"})


# --- prompts ---


def keys(file: Path) -> list[str]:
    return [json.loads(line)["key"] for line in file.read_text().splitlines()]


def suite_of(folder: Path, count: int) -> str:
    file = folder / "own.jsonl"
    rows = [{"key": f"{task}-{n}", "task": task, "prompt": f"{task} {n}"} for task in "ab" for n in range(count)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"prompts:{file}"


@pytest.mark.parametrize(("there", "notes"), [(5, []), (3, ["4 of 6"]), (2, ["4 of 4", "on 4 prompts and not on 6"])])
def test_prompts_of_a_calibration_are_others_than_the_races(there: int, notes: list[str], tmp_path: Path) -> None:
    suite, file = suite_of(tmp_path, there), tmp_path / "out" / "calibration.jsonl"
    raced = {prompt.key for prompt in open_suite(suite, limit=2).prompts}
    count, told = write_prompts(file, 6, suite=suite, tasks=None, languages=None, limit=2, data=None)
    assert len(told) == len(notes)
    assert all(words in note for words, note in zip(notes, told, strict=True))
    found = keys(file)
    assert len(found) == len(set(found)) == count == min(6, 2 * there)
    others = [key for key in found if key not in raced]
    assert found[: len(others)] == others, "the race's own come last"
    assert {key[0] for key in found} == {"a", "b"}, "of every task"
    again = write_prompts(file, 1, suite=suite, tasks=["b"], languages=None, limit=1, data=None)
    assert again == (1, [])
    assert keys(file)[0].startswith("b")
    assert open_suite(f"prompts:{file}").prompts[0].chat is False, "as the suite has it"


# --- the laboratory ---


def lab_of(folder: Path, monkeypatch: pytest.MonkeyPatch, *given: str) -> tuple[SizesLab, list[dict[str, Any]]]:
    """One that measures nothing, and what it asked for."""
    asked = list[dict[str, Any]]()

    def calibrate(lm: Any, method: str, **how: Any) -> Calibration:
        asked.append({"method": method, **how})
        return calibrated(5, 3.0)

    def race(lm: Any, methods: list[str], *, out: Path, **how: Any) -> Summary:
        asked.append({"methods": methods, **how})
        return Summary(made_run(out, methods=("plain", *methods), tasks=("qa",), languages=("en",), peers=()))

    monkeypatch.setattr(labs, "calibrate_method", calibrate)
    monkeypatch.setattr(labs, "race_methods", race)
    monkeypatch.setattr(SizesLab, "model", lambda *_: None)
    options = ["--suite", suite_of(folder, 6), "--limit", "2", "--out", str(folder / "out"), *given]
    return SizesLab(given_of("unispec", "table13", *options)), asked


def test_a_lab_calibrates_each_method_in_its_way_on_texts_of_the_race(tmp_path: Path, monkeypatch: Any) -> None:
    lab, asked = lab_of(tmp_path, monkeypatch, "--max-new-tokens", "9", "--temperature", "0", "--calibration-runs", "3")
    for label, method, prompts in (("a", "unispec:paper", 5), ("b", "unispec", 8)):
        assert lab.calibrate(label, method, prompts=prompts) is not None
    by_runs, ours = asked
    assert by_runs["methods"] == ["unispec:paper@fixed:1", "unispec:paper@fixed:64", "unispec:paper@fixed:128"]
    assert (ours["method"], ours["prompts"], ours["seconds"]) == ("unispec", 8, 20.0)
    raced = {prompt.key for prompt in open_suite(lab.given.suite, limit=2).prompts}
    for one, count in ((by_runs, 5), (ours, 8)):
        assert (one["max_new_tokens"], one["temperature"]) == (9, 0.0)
        keys = {prompt.key for prompt in open_suite(one["suite"]).prompts}
        assert len(keys) == count
        assert not keys & raced
    assert lab.notes == []
    again, asked = lab_of(
        tmp_path, monkeypatch, "--max-new-tokens", "9", "--temperature", "0", "--calibration-runs", "3"
    )
    assert again.calibrate("a", "unispec:paper") == lab.calibrated["a"]
    assert asked == [], "what was kept is read again"
    assert again.calibrate("c", "unispec", procedure="paper", sizes=[2, 4]) is not None
    assert again.calibrate("a", "unispec:paper", sizes=[2, 4]) is None
    assert "runs of other sizes" in again.missing["a"]
    assert again.calibrate("b", "unispec", sizes=[2, 4]) == lab.calibrated["b"], "ours has sizes of its own"
    with pytest.raises(ValueError, match="was made with --calibration-runs 3, not 10"):
        lab_of(tmp_path, monkeypatch, "--max-new-tokens", "9", "--temperature", "0")


@pytest.mark.slow
def test_an_interrupted_calibration_goes_on_with_its_runs(tmp_path: Path) -> None:
    given = ["--model", "pocket", "--dtype", "float32", "--suite", "dictspec", "--langs", "en", "--limit", "1"]
    given += ["--max-new-tokens", "6", "--calibration-runs", "2", "--out", str(tmp_path / "out")]
    found = []
    for _ in range(2):
        found.append(shown("unispec", "table14", *given)["calibrated"]["unispec:paper"])
        (tmp_path / "out" / "calibrated.json").unlink()
    assert found[0] == found[1], "seconds, too: nothing was measured again"
    assert found[0]["sizes"] == [1, 128]
    assert all(tokens >= 1 for tokens in found[0]["tokens"])


# --- what is kept ---


def test_calibrations_are_kept_with_their_options(tmp_path: Path) -> None:
    asked = {"model": "pocket", "tasks": ["a"], "data": Path("there"), "limit": 2}
    runs = Runs(nodes=4, sizes=[1, 8], tokens=[1.0, 2.0], seconds=[0.1, 0.2], whole=[0.2, 0.3], took=3.0)
    Kept.read(tmp_path, asked).add("unispec:paper", runs)
    assert Kept.read(tmp_path, asked).found == {"unispec:paper": runs}
    assert named([f"here={tmp_path}"], "unispec:paper") == {"here": ("pocket", runs)}
    assert list(named([str(tmp_path)], "unispec:paper")) == [tmp_path.name]
    for given, told in (
        ([f"here={tmp_path / 'nowhere'}"], "has no calibration of unispec:paper; it has none"),
        (["=nowhere"], "needs another name; write NAME=DIR"),
        ([f"here={tmp_path}"] * 2, "needs another name"),
    ):
        with pytest.raises(ValueError, match=told):
            named(given, "unispec:paper")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "calibrated.json").write_text("{}")
    with pytest.raises(ValueError, match="was written by another version"):
        Kept.read(tmp_path / "old")
    with pytest.raises(ValueError, match="made with --limit 2, not 3; give another --out"):
        Kept.read(tmp_path, {**asked, "limit": 3})


def test_methods_as_published_are_calibrated_as_published() -> None:
    assert procedure_of("unispec:paper") == procedure_of("unispec:paper,threshold=0.1") == "paper"
    assert procedure_of("unispec") == procedure_of("unispec:threshold=0.1") == procedure_of("auto") == "ours"


# --- figures of several calibrations ---


def calibrated(nodes: int, took: float, slow: float = 1.0) -> Calibration:
    seconds = [slow * seconds for seconds in (1, 1.2, 1.6)]
    return Calibration(nodes=nodes, sizes=[0, 10, 20], tokens=[1, 2, 2.5], seconds=seconds, took=took)


def test_calibrations_are_held_against_each_other() -> None:
    for nodes, agrees in (((5, 10, 5, 20), True), ((10, 10, 10, 10), False)):
        found = figures.testbeds(
            {(f"S{n}", "pocket"): calibrated(g, 3.0) for n, g in enumerate(nodes)}, "unispec:paper"
        )
        assert found.claims[0].agrees is agrees
    for first, agrees in ((10, True), (0, False)):
        every = {n: calibrated(size, 3.0 + n) for n, size in zip(figures.COUNTS, (first, *[10] * 4), strict=True)}
        found = figures.samples({"unispec:paper": every, "auto": every})
        assert [one.agrees for one in found.claims] == [agrees, True] * 2
        assert len(found.panels) == 4


def test_testbeds_and_models_of_several_runs_are_one_figure(tmp_path: Path) -> None:
    settings = {("S1", "a"): 5, ("S1", "b"): 10, ("S2", "a"): 20}
    found = figures.testbeds({at: calibrated(size, 3.0) for at, size in settings.items()}, "unispec:paper")
    assert [row[:2] for row in found.tables[0][1]] == [("S1, a", "5"), ("S1, b", "10"), ("S2, a", "20")]
    best = found.panels[0]
    assert best.names == ["S1", "S2"]
    assert {curve.name: curve.points for curve in best.curves} == {"a": [(0, 5), (1, 20)], "b": [(0, 10)]}
    draw(tmp_path / "sizes.svg", found.panels)
    assert all(name in (tmp_path / "sizes.svg").read_text() for name in ("<!-- S1 -->", "<!-- S2 -->"))
    assert figures.placed("S1", "pocket") == ("S1", "pocket")
    assert figures.placed("S1/b", "pocket") == ("S1", "b")
    alone = figures.testbeds({("S1", "a"): calibrated(5, 3.0)}, "unispec:paper")
    assert alone.claims == [], "one device differs from none"


@pytest.mark.parametrize(("slow", "agrees"), [(2.0, True), (1.0, False)])
def test_curves_of_several_devices_are_held_against_each_other(slow: float, agrees: bool) -> None:
    made = {"A100": calibrated(10, 3.0), "A40": calibrated(5, 3.0, slow)}
    devices = {name: Runs(**vars(one), whole=one.seconds) for name, one in made.items()}
    found = figures.by_size(devices, "unispec:paper")
    assert found.claims[-1].agrees is agrees
    assert [len(panel.curves) for panel in found.panels] == [2, 2]
    assert len(found.tables[0][1]) == 6
    with pytest.raises(ValueError, match="A100 was not calibrated by runs"):
        figures.by_runs("A100", made["A100"])


@pytest.mark.parametrize("runs", [3, 10])
def test_the_setup_says_what_each_part_finds(runs: int) -> None:
    sizes, tokens, seconds = measurements(runs)
    best = best_size(cubic(sizes, tokens), spline(sizes, seconds), 1, 128)
    found = Runs(nodes=best, sizes=sizes, tokens=tokens, seconds=seconds, whole=seconds, took=1.0)
    shown = figures.setup(found, "unispec:paper")
    parts = {row[0]: row[2] for row in shown.tables[0][1]}
    assert parts["output"] == f"g* = {best}"
    assert parts["f_time(g)"].endswith(f"over {runs} runs")
    assert [claim.agrees for claim in shown.claims] == [True]
    level = Runs(nodes=1, sizes=[1, 9], tokens=[1.0, 1.0], seconds=[1.0, 1.0], whole=[1.0, 1.0], took=1.0)
    assert "level over 2 runs" in figures.setup(level, "plain").markdown
