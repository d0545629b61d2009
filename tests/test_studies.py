"""Studies say which way ours went as it was measured: on runs and calibrations that were made up to go either way."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from paceline.bench.statistics import Estimate
from paceline.bench.studies import STUDIES
from paceline.bench.studies.base import Calibrated, Findings, Found, Setting, Sign, Way
from paceline.bench.studies.methods import BATCHES, RIVALS, sized, with_options
from paceline.bench.studies.nodes import Nodes
from paceline.bench.studies.page import study_page
from paceline.bench.studies.texts import binned, lengths_within, long_prompts
from paceline.bench.summary import Summary
from paceline.tree import DraftTree
from runs import made_run
from test_cli import say

QUICK: dict[str, Any] = {
    "tasks": ("continuation",),
    "languages": ("en",),
    "peers": (),
    "degenerate": False,
    "stall": False,
    "noise": 0.01,
    "joules": False,
    "prompts": 5,
    "repeats": 1,
}
METHOD = "unispec"
CALIBRATED = {
    name: Calibrated(
        nodes=20, sizes=[0, 10, 20, 30], tokens=[1.0, 1.8, 2.2, 2.3], seconds=[1.0, 1.1, 1.2, 1.5], took=9.0
    )
    for name in (METHOD, *RIVALS)
}


def setting(**other: Any) -> Setting:
    return Setting(**({"method": METHOD, "sizes": (1, 8, 32), "prompts": 3, "tokens": 16, "dtype": "float32"} | other))


def studied(name: str, folder: Path, slow: Mapping[str, Mapping[str, float]] | None = None) -> Findings:
    """A study read from made runs; ``slow`` makes entries of a stage take so many times as long."""
    study, how = STUDIES[name], setting()
    runs = {}
    for stage in study.stages(how, CALIBRATED):
        methods = ("plain", *dict.fromkeys(stage.methods))
        made = made_run(folder / stage.name, methods=methods, slow=(slow or {}).get(stage.name), **QUICK)
        runs[stage.name] = Summary(made)
    calibrated = {wish.label: CALIBRATED[wish.method] for wish in study.wishes(how)}
    return study.read(Found(setting=how, calibrated=calibrated or CALIBRATED, runs=runs))


def sign(findings: Findings, claim: str) -> Sign:
    return next(one for one in findings.signs if claim in one.claim)


@pytest.mark.parametrize("name", [name for name, study in STUDIES.items() if name not in ("context", "reliability")])
def test_every_study_reads_its_runs(name: str, tmp_path: Path) -> None:
    found = studied(name, tmp_path)
    assert found.rows
    assert {len(row) for row in found.rows} == {len(found.head)}
    assert found.signs
    for one in found.signs:
        assert "in the paper" in one.sentence
        assert one.sentence.count("as in the paper") <= 1
    page = study_page(STUDIES[name], found, {"model": "made"})
    assert page.count('<svg class="chart') == len(found.drawings)
    assert "nan" not in page
    json.dumps([one.as_dict() for one in found.signs])


# --- signs are measured, not known


@pytest.mark.parametrize(("slow", "said"), [(4.0, "as in the paper"), (0.25, "not as in the paper")])
def test_what_was_switched_off_is_told_as_measured(slow: float, said: str, tmp_path: Path) -> None:
    off = sized(with_options(METHOD, "scores=false"), CALIBRATED[METHOD])
    found = sign(studied("ablation", tmp_path, {"run": {off: slow}}), "without score estimation")
    assert found.sentence.endswith(f", {said}")
    assert found.told_apart


@pytest.mark.parametrize(("slow", "agrees"), [(3.0, True), (0.3, False)])
def test_batches_are_told_as_measured(slow: float, agrees: bool, tmp_path: Path) -> None:
    last = f"batch {BATCHES[-1]}"
    found = studied("batch", tmp_path, {last: {sized(METHOD, CALIBRATED[METHOD]): slow}})
    assert found.signs[0].agrees is agrees
    assert [len(line.points) for line in found.drawings[0].lines] == [len(BATCHES)] * 3


@pytest.mark.parametrize(("slow", "agrees"), [(3.0, True), (0.3, False)])
def test_temperatures_are_told_prompt_by_prompt(slow: float, agrees: bool, tmp_path: Path) -> None:
    found = sign(
        studied("temperature", tmp_path, {"T=1.0": {sized(METHOD, CALIBRATED[METHOD]): slow}}),
        "gains less at temperature 1",
    )
    assert found.agrees is agrees
    assert found.ratio.bounded
    assert found.told_apart


def test_a_temperature_that_could_not_be_written_leaves_the_other(tmp_path: Path) -> None:
    warm = Summary(
        made_run(
            tmp_path / "warm", methods=("plain", *STUDIES["temperature"].stages(setting(), {})[1].methods), **QUICK
        )
    )
    found = STUDIES["temperature"].read(Found(setting=setting(), calibrated={}, runs={"T=1.0": warm}))
    assert [one.claim.split()[2] for one in found.signs] == ["1"]
    assert found.rows


def test_a_calibrated_size_that_is_the_best_of_the_grid_is_no_slower(tmp_path: Path) -> None:
    calibrated, how = {METHOD: dataclasses.replace(CALIBRATED[METHOD], nodes=50)}, setting()
    (stage,) = STUDIES["grid"].stages(how, calibrated)
    slow = {entry: 2.0 for entry in stage.methods if not entry.endswith(":50")}
    runs = {stage.name: Summary(made_run(tmp_path / "run", methods=("plain", *stage.methods), slow=slow, **QUICK))}
    (found,) = STUDIES["grid"].read(Found(setting=how, calibrated=calibrated, runs=runs)).signs
    assert found.agrees


def test_deviations_below_one_node_are_left_out_and_told(tmp_path: Path) -> None:
    study = STUDIES["deviation"]
    small = {METHOD: Calibrated(nodes=6, sizes=[0, 6], tokens=[1, 2], seconds=[1, 1], took=1.0)}
    (stage,) = study.stages(setting(), small)
    assert stage.methods == tuple(f"unispec@fixed:{n}" for n in (1, 6, 11, 16, 21))
    found = studied("deviation", tmp_path, {"run": {"unispec@fixed:5": 4.0, "unispec@fixed:35": 0.2}})
    assert sign(found, "smallest").agrees
    assert not sign(found, "largest").agrees


def test_thresholds_name_the_fastest(tmp_path: Path) -> None:
    found = studied("threshold", tmp_path, {"run": {"unispec:threshold=0.1@fixed:20": 0.2}})
    assert found.notes == ["the calibrated size is 20", "fastest here: r = 0.1; in the paper r = 0.05"]


@pytest.mark.parametrize("name", ["threshold", "ablation", "deviation", "batch"])
def test_the_calibrated_size_is_told_where_one_was_used(name: str, tmp_path: Path) -> None:
    assert f"the calibrated size is {CALIBRATED[METHOD].nodes}" in studied(name, tmp_path).notes


def test_optima_and_samples_are_read_from_calibrations() -> None:
    def made(nodes: int, took: float) -> Calibrated:
        return Calibrated(nodes=nodes, sizes=[0, 10, 20], tokens=[1, 2, 2.5], seconds=[1, 1.2, 1.6], took=took)

    optima, samples = STUDIES["optima"], STUDIES["samples"]
    for sizes, agrees in (((5, 10, 5, 20), True), ((10, 10, 10, 10), False)):
        wishes = optima.wishes(setting())
        calibrated = {wish.label: made(size, 3.0) for wish, size in zip(wishes, sizes, strict=True)}
        assert optima.read(Found(setting=setting(), calibrated=calibrated, runs={})).signs[0].agrees is agrees
    for first, agrees in ((10, True), (0, False)):
        sizes = (first, *[10] * 4)
        wishes = samples.wishes(setting())
        calibrated = {wish.label: made(size, 3.0 + n) for n, (wish, size) in enumerate(zip(wishes, sizes, strict=True))}
        found = samples.read(Found(setting=setting(), calibrated=calibrated, runs={}))
        assert [one.agrees for one in found.signs] == [agrees, True]
        assert len(found.drawings) == 4


@pytest.mark.parametrize(
    ("value", "wants", "agrees"),
    [
        (1.2, Way.ABOVE, True),
        (0.9, Way.ABOVE, False),
        (0.9, Way.BELOW, True),
        (1.03, Way.EVEN, True),
        (1.2, Way.EVEN, False),
        (float("nan"), Way.BELOW, None),
    ],
)
def test_a_sign_is_what_the_ratio_says(value: float, wants: Way, agrees: bool | None) -> None:
    one = Sign(claim="it is so", paper="1", ours="2", wants=wants, ratio=Estimate(value))
    assert one.agrees is agrees
    if agrees is None:
        assert one.sentence.endswith("it was not measured")


def test_chance_is_told() -> None:
    bare = Sign(claim="c", paper="p", ours="o", wants=Way.ABOVE, ratio=Estimate(1.1))
    assert bare.sentence.endswith("as in the paper (without an interval)")
    wide = Sign(claim="c", paper="p", ours="o", wants=Way.ABOVE, ratio=Estimate(1.1, 0.8, 1.5))
    assert wide.sentence.endswith("as in the paper (chance alone could show this)")
    narrow = Sign(claim="c", paper="p", ours="o", wants=Way.ABOVE, ratio=Estimate(1.1, 1.05, 1.15))
    assert narrow.sentence.endswith("as in the paper")


# --- nodes and long prompts


def test_nodes_are_accepted_with_all_that_lead_to_them() -> None:
    tree = DraftTree.build([5, 6, 7, 8], [-1, -1, 0, 2], scores=[-0.1, -1.0, -0.2, -0.3])
    nodes = Nodes()
    nodes.note(tree, [5, 7, 9])
    assert nodes.accepted == [1, 0, 1, 0]
    assert nodes.score == pytest.approx([0.90484, 0.36788, 0.74082, 0.54881])
    nodes.note(tree, [1])
    assert nodes.accepted[4:] == [0] * 4


def test_probes_are_no_nodes() -> None:
    nodes = Nodes()
    nodes.note(DraftTree.build([5, 6], [-1, -1], scores=[0.0, 0.0], probes=[False, True]), [5])
    assert nodes.accepted == [1]


def test_scores_are_gathered_in_tenths() -> None:
    found = binned([0.05, 0.06, 0.95, 1.0], [0, 1, 1, 1])
    assert found == [(pytest.approx(0.055), 0.5, 2), (pytest.approx(0.975), 1.0, 2)]


def test_reliability_says_whether_acceptance_rises(tmp_path: Path) -> None:
    study = STUDIES["reliability"]
    runs = {"run": Summary(made_run(tmp_path / "run", methods=("plain", METHOD, "auto"), **QUICK))}
    for accepted, agrees in (([0, 0, 1, 1], True), ([1, 1, 0, 1], False)):
        nodes = {"run": {METHOD: {"score": [0.1, 0.2, 0.8, 0.9], "accepted": accepted}}}
        found = study.read(Found(setting=setting(), calibrated={}, runs=runs, nodes=nodes))
        assert [one.agrees for one in found.signs] == [agrees]
        assert sum(int(row[4]) for row in found.rows) == 4
        assert study_page(study, found, {}).count('<svg class="chart') == 2


class Letters:
    """A tokenizer of letters."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]


def test_long_prompts_fit_the_context() -> None:
    how = setting(vocabulary=Letters(), context_length=3000, texts=lambda: "abc " * 20000)
    assert lengths_within(how) == [1024, 2048]
    found = long_prompts(how)
    assert [task for task, _ in found] == ["1024"] * 3 + ["2048"] * 3
    assert {len(text) for _, text in found} == {1024 - 16 - 8, 2048 - 16 - 8}
    with pytest.raises(ValueError, match="too little running text"):
        long_prompts(setting(vocabulary=Letters(), context_length=3000, texts=lambda: "abc"))
    with pytest.raises(ValueError, match="leaves no room"):
        long_prompts(setting(vocabulary=Letters(), context_length=1024, tokens=1020, texts=lambda: "abc"))


# --- the command


def test_studies_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = say(["bench", "study"], capsys)
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == list(STUDIES)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nope"], "there is no study 'nope'"),
        (["curves", "--sizes", "1,x"], "--sizes are whole numbers"),
        (["curves", "--limit", "0"], "--limit must be at least 1"),
        (["curves", "--method", "nope"], "unknown method 'nope'"),
        (["curves", "--calibration-seconds", "0"], "more than 0"),
        (["curves", "--html", "/nowhere/page.html"], "no folder"),
    ],
)
def test_mistakes_are_told(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, error = say(["bench", "study", *arguments], capsys)
    assert code == 2
    assert told in error


@pytest.mark.slow
def test_a_study_is_made_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["bench", "study", "reliability", "--model", "pocket", "--dtype", "float32", "--langs", "en"]
    command += ["--limit", "1", "--max-new-tokens", "12", "--out", str(tmp_path / "study"), "--json"]
    code, out, _ = say([*command, "--html", str(tmp_path / "page.html")], capsys)
    assert code == 0
    found = json.loads(out.splitlines()[-1])
    assert found["runs"]["run"]["entries"] == ["plain", "unispec", "auto"]
    assert found["rows"]
    assert "<svg" in (tmp_path / "page.html").read_text()
    code, out, _ = say(command, capsys)
    assert code == 0
    assert json.loads(out.splitlines()[-1])["rows"] == found["rows"], "what was kept is read again"
