"""The scripts of the UniSpec paper say which way ours went as it was measured: on runs and calibrations that were made
up to go either way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import paceline
from paceline import DraftTree
from paceline.api.model import LanguageModel
from paceline.drafters import make_drafter
from paceline_lab import Calibration, Estimate, Prompt, Summary
from paceline_lab.bench.run.directory import write_about
from paper_items import STEADY, shown
from papers.lab import Lab
from papers.report import Claim, Report, Way
from papers.speeds import by, of_run, remarks
from papers.unispec import calibrated, confidence, context, machines, methods, precision, sizes, trained
from papers.unispec.calibration import Runs, calibration_of
from papers.unispec.lab import SizesLab, at, sampled, shared, sized
from runs import made_run
from thinning import thinned

QUICK = STEADY | {"tasks": ("continuation",), "languages": ("en",), "prompts": 5}
METHOD = "unispec:paper"
NOISY = shared(METHOD)
FOUND = Calibration(
    nodes=20, sizes=[0, 10, 20, 30], tokens=[1.0, 1.8, 2.2, 2.3], seconds=[1.0, 1.1, 1.2, 1.5], took=9.0
)
OWN = sized(METHOD, FOUND)
PARTS = methods.parts(METHOD, FOUND)
THRESHOLDS = methods.thresholds(METHOD, FOUND, noisy=True)
BESIDE = [sized(NOISY, FOUND), sized("unispec", FOUND), "auto"]
Slow = Mapping[Any, Mapping[str, float]]


def raced(folder: Path, slow: Slow, stages: Mapping[Any, Any]) -> dict[Any, Summary]:
    """Made runs by name; ``slow`` makes entries of a run take so many times as long."""
    return {
        name: Summary(
            made_run(folder / str(name), methods=("plain", *dict.fromkeys(methods)), slow=slow.get(name, {}), **QUICK)
        )
        for name, methods in stages.items()
    }


def one(methods: Any, read: Callable[[Summary], Report]) -> Callable[[Path, Slow], Report]:
    return lambda folder, slow: read(raced(folder, slow, {"run": methods})["run"])


def many(names: Any, methods: Any, read: Callable[[dict[Any, Summary]], Report]) -> Callable[[Path, Slow], Report]:
    return lambda folder, slow: read(raced(folder, slow, dict.fromkeys(names, methods)))


def at_sizes(*given: int) -> list[str]:
    return [at(METHOD, size) for size in given]


SCRIPTS: dict[str, Callable[[Path, Slow], Report]] = {
    "table1": one([*methods.RIVALS, OWN, *BESIDE], lambda run: methods.spec_bench(run, OWN)),
    "table2": one(
        ["spectra:paper", "recycling:paper", *PARTS.values(), *BESIDE],
        lambda run: methods.ablation(run, PARTS),
    ),
    "table6": many(
        methods.HEATS,
        [*methods.RIVALS, OWN, *BESIDE],
        lambda runs: methods.temperatures(runs, METHOD, OWN),
    ),
    "table8": many(methods.BATCHES, [OWN, *BESIDE], methods.batches),
    "table10": many(precision.TYPES, [OWN, *BESIDE], lambda runs: precision.precision(runs, OWN)),
    "table11": many([1024, 2048], [OWN, *BESIDE], lambda runs: context.context(runs, 2048)),
    "table12": one(THRESHOLDS.values(), lambda run: methods.confidence(run, THRESHOLDS)),
    "table13": one(at_sizes(*sizes.around(20)), lambda run: sizes.deviation(run, METHOD, 20)),
    "table15": one(at_sizes(*sizes.sizes_beside(20)), lambda run: sizes.throughput(run, {METHOD: 20})),
    "table16": one(at_sizes(20, *sizes.GRID), lambda run: sizes.grid(run, METHOD, FOUND)),
    "table17": one(
        [name for method, own in methods.SIZES.items() for name in (at(method, own), sized(method, FOUND))],
        lambda run: methods.rivals(run, dict.fromkeys(methods.SIZES, FOUND)),
    ),
    "figure2": one(
        at_sizes(1, 8, 32),
        lambda run: calibrated.by_size(
            {"here": calibration_of(run, {g: at(METHOD, g) for g in (1, 8, 32)})}, METHOD, run
        ),
    ),
}


@pytest.mark.parametrize("name", thinned(SCRIPTS))
def test_every_script_reads_its_runs(name: str, tmp_path: Path) -> None:
    found = SCRIPTS[name](tmp_path, {})
    ((head, rows),) = found.tables
    assert rows
    assert {len(row) for row in rows} == {len(head)}
    assert found.claims
    for claim in found.claims:
        assert "in the paper" in claim.sentence or not claim.paper
    assert "nan" not in found.markdown
    assert all(curve.points for panel in found.panels for curve in panel.curves)


# --- claims are measured, not known


def claim(found: Report, words: str) -> Claim:
    return next(one for one in found.claims if words in one.claim)


@pytest.mark.parametrize(
    ("name", "slow", "words", "agrees"),
    thinned(
        [
            *(("table2", {"run": {PARTS["without score estimation"]: n}}, "without score", n > 1) for n in (4.0, 0.25)),
            *(("table8", {5: {OWN: n}}, "the speed-up falls", n > 1) for n in (3.0, 0.3)),
            *(("table6", {"T=1.0": {OWN: n}}, "gains less at temperature 1", n > 1) for n in (3.0, 0.3)),
            ("table13", {"run": {at(METHOD, 5): 4.0, at(METHOD, 35): 0.2}}, "smallest", True),
            ("table13", {"run": {at(METHOD, 5): 4.0, at(METHOD, 35): 0.2}}, "largest", False),
            ("table16", {"run": {at(METHOD, n): 2.0 for n in sizes.GRID}}, "faster than that of grid", True),
            ("table16", {"run": {OWN: 3.0}}, "faster than that of grid", False),
            ("figure2", {"run": {at(METHOD, 32): 3.0}}, "forward seconds", True),
            ("figure2", {"run": {at(METHOD, 32): 0.3}}, "forward seconds", False),
        ]
    ),
)
def test_a_claim_is_told_as_measured(name: str, slow: Slow, words: str, agrees: bool, tmp_path: Path) -> None:
    found = claim(SCRIPTS[name](tmp_path, slow), words)
    assert found.agrees is agrees
    assert found.sentence.endswith(", as in the paper" if agrees else "not as in the paper")
    assert found.ratio is not None
    assert found.ratio.bounded


def test_a_temperature_that_could_not_be_written_leaves_the_other(tmp_path: Path) -> None:
    runs = raced(tmp_path, {}, {"T=1.0": [*methods.RIVALS, METHOD, NOISY]})
    found = methods.temperatures(runs, METHOD, METHOD)
    assert [one.claim.split()[1] for one in found.claims] == ["T=1.0", "T=1.0"]
    assert "shared noise adds" in found.claims[1].sentence


def test_all_batches_of_a_size_are_full() -> None:
    assert [methods.filling(4, n) for n in (1, 2, 3, 4, 5)] == [4, 4, 6, 4, 5]


def test_deviations_below_one_node_are_left_out_and_told(tmp_path: Path) -> None:
    assert sizes.around(6) == [1, 6, 11, 16, 21]
    (run,) = raced(tmp_path, {}, {"run": at_sizes(*sizes.around(6))}).values()
    assert sizes.deviation(run, METHOD, 6).notes == ["2 sizes of the window are below one node and left out"]
    assert list(remarks([run])) == ["translation could not be built: its source is not here"]


def test_thresholds_name_the_fastest(tmp_path: Path) -> None:
    found = SCRIPTS["table12"](tmp_path, {"run": {THRESHOLDS["0.1"]: 0.2, THRESHOLDS["0, shared noise"]: 0.5}})
    assert found.notes[0].startswith("fastest here: r = 0.1 (")
    assert found.notes[0].endswith("; in the paper r = 0.05 and 0.025")
    assert found.notes[1].startswith("fastest here: r = 0, shared noise (")


def test_grid_search_takes_the_fastest_of_the_calibrations_own_runs(tmp_path: Path) -> None:
    (run,) = raced(tmp_path, {}, {"run": at_sizes(20, 25, 50, 75)}).values()
    runs = Runs(nodes=20, sizes=[25, 50, 75], tokens=[2, 3, 4], seconds=[1, 1, 1], whole=[1.0, 1.2, 9.0], took=1.0)
    assert sizes.searched(runs) == 50, "drafting counts"
    (one,) = sizes.grid(run, METHOD, runs, runs.sizes).claims
    assert "20 nodes against 50" in one.ours
    same = sizes.grid(run, METHOD, replace(runs, nodes=50), runs.sizes).claims[0]
    assert same.agrees is None
    assert same.sentence.endswith("both are the same size, which decides nothing")


def test_a_calibrated_size_of_nothing_is_no_agreement(tmp_path: Path) -> None:
    """Without a draft a method is as fast as plain decoding, which tells nothing of its drafts."""
    rival, own = "lookahead:paper", at("lookahead:paper", 120)
    nothing = replace(FOUND, nodes=0)
    (run,) = raced(tmp_path, {"run": {own: 4.0}}, {"run": [own, at(rival, 0)]}).values()
    found = methods.rivals(run, {rival: nothing})
    assert [one.agrees for one in found.claims] == [None, None]
    assert all("no drafts pay here (0 nodes), which decides nothing" in one.sentence for one in found.claims)


@pytest.mark.parametrize(("slow", "agrees"), [(9.0, None), (0.2, True)])
def test_drafts_that_never_pay_are_no_agreement(slow: float, agrees: bool | None, tmp_path: Path) -> None:
    """The smaller the drafts, the less they slow down what does not pay."""
    rival, few = "lookahead:paper", replace(FOUND, nodes=1)
    own, best = at("lookahead:paper", 120), at("lookahead:paper", 1)
    (run,) = raced(tmp_path, {"run": {own: 20.0, best: slow}}, {"run": [own, best]}).values()
    found = methods.rivals(run, {rival: few}).claims[0]
    assert found.agrees is agrees
    assert ("neither is faster than plain decoding" in found.sentence) is (agrees is None)


@pytest.mark.parametrize(
    ("value", "way", "agrees"),
    [
        (1.2, Way.ABOVE, True),
        (0.9, Way.ABOVE, False),
        (0.9, Way.BELOW, True),
        (1.03, Way.LEVEL, True),
        (1.2, Way.LEVEL, False),
        (float("nan"), Way.BELOW, None),
    ],
)
def test_a_claim_is_what_the_ratio_says(value: float, way: Way, agrees: bool | None) -> None:
    found = Claim.of("it is so", "1", "2", way, Estimate(value))
    assert found.agrees is agrees
    if agrees is None:
        assert found.sentence.endswith("it was not measured")


@pytest.mark.parametrize(
    ("ratio", "ending"),
    [
        (Estimate(1.1), "as in the paper (without an interval)"),
        (Estimate(1.1, 0.8, 1.5), "as in the paper (chance alone could show this)"),
        (Estimate(1.1, 1.05, 1.15), "as in the paper"),
    ],
)
def test_chance_is_told(ratio: Estimate, ending: str) -> None:
    assert Claim.of("c", "p", "o", Way.ABOVE, ratio).sentence.endswith(ending)


@pytest.mark.parametrize(
    ("ratio", "ending"),
    [
        (Estimate(1.0), "as in the paper (without an interval)"),
        (Estimate(1.0, 0.5, 2.0), ", as in the paper (chance alone could show this)"),
        (Estimate(1.0, 0.97, 1.04), ", as in the paper"),
        (Estimate(1.1, 1.02, 1.2), "not as in the paper (chance alone could show this)"),
        (Estimate(1.2, 1.06, 1.3), "not as in the paper"),
        (Estimate(0.8, 0.7, 0.9), "not as in the paper"),
    ],
)
def test_a_level_needs_an_interval_near_one(ratio: Estimate, ending: str) -> None:
    assert Claim.of("c", "p", "o", Way.LEVEL, ratio).sentence.endswith(ending)


def test_faster_in_every_task_is_counted_by_task(tmp_path: Path) -> None:
    rival = "recycling:paper"
    how = QUICK | {"tasks": ("qa", "code"), "methods": ("plain", METHOD, rival), "slow": {rival: 3.0}}
    run = Summary(made_run(tmp_path / "run", **how))
    won = methods.everywhere(run, METHOD, rival)
    assert won.ours.startswith("in 2 of 2 tasks, ")
    assert won.sentence.endswith(", as in the paper")
    slow = {place: 9.0 for place, one in enumerate(run.run.records) if (one.entry, one.task) == (METHOD, "qa")}
    run.run.records[:] = [
        replace(one, seconds_decode=slow.get(place, 1.0) * one.seconds_decode)
        for place, one in enumerate(run.run.records)
    ]
    lost = methods.everywhere(Summary(run.run), METHOD, rival)
    assert lost.ours.startswith("in 1 of 2 tasks, ")
    assert lost.sentence.endswith("not as in the paper")


# --- trained heads


EAGLE = "eagle:paper"


@pytest.mark.parametrize(("slow", "agrees"), [(3.0, True), (0.3, False)])
def test_what_a_head_loses_outside_english_is_told_as_measured(slow: float, agrees: bool, tmp_path: Path) -> None:
    how = QUICK | {"languages": ("en", "pl"), "methods": ("plain", EAGLE, METHOD)}
    run = Summary(made_run(tmp_path / "run", **how))
    run.run.records[:] = [
        replace(one, seconds_decode=(slow if (one.entry, one.language) == (EAGLE, "pl") else 1.0) * one.seconds_decode)
        for one in run.run.records
    ]
    found = trained.trained(Summary(run.run), METHOD, [EAGLE])
    assert claim(found, "gains less in pl than in en").agrees is agrees
    assert claim(found, "in pl UniSpec is faster").agrees is agrees
    assert [one.claim.split()[1] for one in found.claims if one.claim.startswith("in ")] == ["en", "pl"]
    assert found.tables[0][0][1:3] == ("en", "pl")


def test_heads_of_one_method_stand_side_by_side(tmp_path: Path) -> None:
    """The paper's numbers are told of EAGLE's heads alone."""
    heads = [f"{EAGLE},head='x/all'", f"{EAGLE},head='x/en'", "medusa:paper,head='x/all'"]
    how = QUICK | {"languages": ("en", "pl"), "methods": ("plain", *heads, METHOD)}
    found = trained.trained(Summary(made_run(tmp_path / "run", **how)), METHOD, heads)
    names = [f"{EAGLE} (all)", f"{EAGLE} (en)", "medusa:paper"]
    assert [row[0] for row in found.tables[0][1]] == [*names, METHOD]
    for name in names:
        (one,) = [each for each in found.claims if each.claim == f"{name} gains less in pl than in en"]
        assert bool(one.paper) == name.startswith(EAGLE)


def test_methods_without_a_head_are_left_out_and_told() -> None:
    lm: LanguageModel = paceline.load("pocket", dtype="float32")
    lab: Any = SimpleNamespace(model=lambda: lm, notes=[])
    assert Lab.able(lab, ["lookup:paper@fixed:4", "assistant:top=2"]) == ["lookup:paper@fixed:4"]
    assert lab.notes[0].startswith("assistant:top=2 is left out: ")
    with pytest.raises(ValueError, match="no head in"):
        Lab.able(lab, ["redrafter:paper,head='nowhere'"])


# --- nodes and long prompts


def test_nodes_are_accepted_with_all_that_lead_to_them() -> None:
    nodes: confidence.Nodes = ([], [])
    tree = DraftTree.build([5, 6, 7, 8], [-1, -1, 0, 2], scores=[-0.1, -1.0, -0.2, -0.3])
    confidence.note(nodes, tree, [5, 7, 9])
    assert nodes == (pytest.approx([0.90484, 0.36788, 0.74082, 0.54881]), [1, 0, 1, 0])
    confidence.note(nodes, tree, [1])
    assert nodes[1][4:] == [0] * 4
    own: confidence.Nodes = ([], [])
    confidence.note(own, tree, [5, 7, 9], own=True)
    assert own == (pytest.approx([0.90484, 0.36788, 0.81873, 0.74082]), [1, 0, 1, 0])
    probing: confidence.Nodes = ([], [])
    confidence.note(probing, DraftTree.build([5, 6], [-1, -1], scores=[0.0, 0.0], probes=[False, True]), [5])
    assert probing[1] == [1], "a probe is no node"


def test_scores_are_gathered_in_tenths() -> None:
    found = confidence.binned([0.05, 0.06, 0.95, 1.0], [0, 1, 1, 1])
    assert found == [(pytest.approx(0.055), 0.5, 2), (pytest.approx(0.975), 1.0, 2)]


def test_confidence_says_whether_acceptance_rises(tmp_path: Path) -> None:
    (run,) = raced(tmp_path, {}, {"run": [METHOD, "auto"]}).values()
    for accepted, agrees in (([0, 0, 1, 1], True), ([1, 1, 0, 1], False)):
        found = confidence.by_score(run, {METHOD: ([0.1, 0.2, 0.8, 0.9], accepted)})
        assert [one.agrees for one in found.claims] == [agrees]
        assert sum(int(row[4]) for row in found.tables[0][1]) == 4


class Letters:
    """A tokenizer of letters."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]


def test_prompts_of_every_task_fill_every_context() -> None:
    letters: Any = Letters()
    assert context.lengths_within(3000) == [1024, 2048]
    asked = [
        Prompt(key="a", task="qa", language="en", turns=("why? " * 4,)),
        Prompt(key="b", task="rag", language="en", turns=("start " + "x" * 5000 + " end",)),
        Prompt(key="c", task="mt_bench", language="en", turns=("one", "two"), reference=("1", "2")),
    ]
    found = context.prompts(asked, letters, "abc " * 20000, 1024, tokens=16)
    assert [(one.key, one.task, len(one.turns)) for one in found] == [
        ("a-1024", "qa", 1),
        ("b-1024", "rag", 1),
        ("c-1024", "mt_bench", 2),
    ]
    for one, other in zip(asked, found, strict=True):
        answers = len(one.turns) * (16 + context.TEMPLATE)
        assert 1000 < sum(map(len, other.turns)) + answers <= 1024
        assert other.turns[1:] == one.turns[1:]
    assert found[0].turns[0].endswith("\n\n" + asked[0].turns[0])
    assert found[1].turns[0].endswith("xxx end"), "a long one loses its beginning"
    assert found[2].reference == ("1", "2")
    with pytest.raises(ValueError, match="too little running text"):
        context.prompts(asked, letters, "abc", 1024, tokens=16)
    with pytest.raises(ValueError, match="leaves no room"):
        context.prompts(asked, letters, "abc", 1024, tokens=1020)


# --- tables


def test_tables_have_every_task_and_their_mean(tmp_path: Path) -> None:
    run = Summary(made_run(tmp_path / "run", methods=("plain", METHOD), peers=(), stall=False))
    head, ((name, chat, qa, mean, tokens),) = by("task", of_run(run))
    assert head == ("x plain, tokens/round", "mt_bench", "qa", "mean of tasks [95%]", "tokens/round")
    values = [[float(part) for part in cell.split()] for cell in (chat, qa)]
    of_means = [one.speed_up_of_means for task in run.tasks if (one := run.figures(METHOD, task)) is not None]
    assert [one.value for one in of_means if one] == pytest.approx([value for value, _ in values], abs=0.006)
    assert name == METHOD
    assert float(mean.split()[0]) == pytest.approx((values[0][0] + values[1][0]) / 2, abs=0.011)
    assert float(tokens) == pytest.approx((values[0][1] + values[1][1]) / 2, abs=0.011)
    head, ((_, *cells, mean, _),) = by("language", of_run(run))
    assert head[1:-1] == ("en", "pl", "ja", "mean of languages [95%]")
    assert float(mean.split()[0]) == pytest.approx(sum(float(one.split()[0]) for one in cells) / 3, abs=0.011)


def test_shared_noise_is_a_row_of_its_own_where_texts_are_sampled() -> None:
    def beside(method: str, temperature: float, *heat: float) -> list[str]:
        lab: Any = SimpleNamespace(method=method, temperature=temperature, size=lambda *_: FOUND)
        return SizesLab.beside(lab, *heat)

    assert beside(METHOD, 0.8) == BESIDE
    assert beside(METHOD, 0.0) == BESIDE[1:]
    assert beside(METHOD, 0.0, 1.0) == BESIDE
    assert beside("unispec", 0.8) == ["auto"], "it has the noise already"
    assert sampled(0.0, "pocket") == []
    assert "loop when they are greedy" in sampled(0.8, "pocket+ballast:500M")[0]
    assert [make_drafter(name).spec_options["noise"] for name in (METHOD, NOISY)] == ["none", "shared"]


# --- ROUGE


@pytest.mark.parametrize(
    ("reference", "text", "expected"),
    [
        (  # the example of rouge_score's own page; ROUGE-2 by hand: "the quick", "quick brown"
            "The quick brown fox jumps over the lazy dog",
            "The quick brown dog jumps on the log.",
            (2 * 0.75 * (6 / 9) / (0.75 + 6 / 9), 2 * (2 / 7) * (2 / 8) / (2 / 7 + 2 / 8), 10 / 17),
        ),
        ("a a a b", "A-a c", (4 / 7, 2 / 5, 4 / 7)),
        ("one two", "ONE, two!", (1, 1, 1)),
        ("one", "one", (1, 0, 1)),
        ("one two", "", (0, 0, 0)),
        ("one two", "кіт", (0, 0, 0)),
        ("a b c d", "d c b a", (1, 0, 1 / 4)),
        ("кіт і пес", "a cat", None),
    ],
)
def test_rouge_is_what_it_is_by_definition(reference: str, text: str, expected: Any) -> None:
    found = precision.scores(reference, text)
    assert found == (None if expected is None else pytest.approx(expected))


def test_rouge_stands_beside_speed_and_equal_texts_score_alike(tmp_path: Path) -> None:
    runs = raced(tmp_path, {}, {dtype: [METHOD] for dtype in precision.TYPES})
    for run in runs.values():
        for key, prompt in run.run.prompts.items():
            run.run.prompts[key] = replace(prompt, reference=("the old man saw a boat",))
    ((head, rows),) = precision.precision(runs, METHOD).tables
    assert head[1:4] == precision.NAMES
    assert len(rows) == 2 * len(runs), "plain decoding has its row"
    for plain, ours in zip(rows[::2], rows[1::2], strict=True):
        assert plain[1:4] == ours[1:4]
        assert all(0 < float(one) <= 100 for one in plain[1:4])


# --- items as commands


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["--limit", "0"], "--limit must be at least 1"),
        (["--nodes", "0"], "--nodes must be at least 1"),
        (["--method", "nope"], "unknown method 'nope'"),
        (["--calibration-seconds", "0"], "more than 0"),
    ],
)
def test_mistakes_are_named(given: list[str], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=sentence):
        shown("unispec", "figure2", "--model", "pocket", "--dtype", "float32", "--out", tmp_path, *given)


@pytest.mark.slow
def test_an_item_is_run_and_goes_on(tmp_path: Path) -> None:
    given = "figure3", "--model", "pocket", "--dtype", "float32", "--langs", "en", "--limit", "1"
    given = *given, "--max-new-tokens", "12", "--out", str(tmp_path / "out")
    svg = tmp_path / "a.svg"
    found = shown("unispec", *given, "--svg", svg)
    assert {"unispec:paper", "unispec", "auto"} <= {one["claim"].split(", ")[1] for one in found["claims"]}
    assert "<svg" in svg.read_text()
    assert shown("unispec", *given) == found, "what was kept is read again"
    (tmp_path / "out" / "nodes.json").unlink()
    with pytest.raises(ValueError, match="was interrupted, and nodes are not all known"):
        shown("unispec", *given)


# --- runs of several machines


def on(path: Path, card: str | None, model: str, **how: Any) -> Path:
    """A made run of a machine and a model."""
    run = made_run(
        path,
        methods=("plain", "recycling:paper", OWN, "auto"),
        model={"model": model, "device": "cpu" if card is None else "cuda:0"},
        **QUICK | {"tasks": ("qa", "code"), "prompts": 2, **how},
    )
    machine = {"cores": 8, "processor": "made up", "memory_bytes": 126 * 2**30, "accelerator": card}
    if card is not None:
        machine |= {"accelerator_bytes": 24 * 2**30, "cuda": "12.8", "driver": "535.1"}
    run.about.sittings[0]["machine"] = machine
    write_about(run)
    return path


def test_runs_of_several_machines_and_models_are_one_table(tmp_path: Path) -> None:
    folders = [
        on(tmp_path / "a", "A100", "llama"),
        on(tmp_path / "b", "A100", "qwen", slow={OWN: 3.0}),
        on(tmp_path / "c", None, "llama"),
        on(tmp_path / "many", "A100", "llama", languages=("pl", "ja")),
    ]
    found = machines.machines(machines.joined([str(folder) for folder in folders]))
    beds, tasks, languages = found.tables
    assert [row[:7] for row in beds[1]] == [
        ("A100", "A100", "24 GB", "8 x made up", "126 GB", "12.8", "535.1"),
        ("made up, 2 threads", "", "", "8 x made up", "126 GB", "", ""),
    ]
    assert tasks[0][1:4] == ("qa", "code", "mean of tasks [95%]")
    assert len(tasks[1]) == 3 * 3
    assert languages[0][1:4] == ("pl", "ja", "mean of languages [95%]")
    assert [one.sentence.partition("here ")[2] for one in found.claims] == [
        "in 2 of 3 runs, not as in the paper",
        "in 1 of 1 runs, as in the paper",
    ]
    assert next(one for one in found.notes if one.startswith("all runs have suite made, limit None"))
    hot = [on(tmp_path / name, name, "llama", recipe={"temperature": t}) for name, t in (("d", 0.0), ("e", 0.7))]
    said = machines.machines(machines.joined([str(folder) for folder in hot])).notes
    assert "runs differ in temperature: 0.0 of d llama float32, 0.7 of e llama float32" in said
    assert "texts are sampled at temperature 0.7, the paper's are greedy" in said
    (panel,) = found.panels
    assert list(panel.names) == ["A100"]
    assert [curve.name for curve in panel.curves] == ["recycling:paper", METHOD, "auto"]


def test_runs_of_one_machine_are_told_apart_by_names(tmp_path: Path) -> None:
    one, two = (str(on(tmp_path / name / "run", None, "llama")) for name in "ab")
    with pytest.raises(ValueError, match="of the same machine and model"):
        machines.joined([one, two])
    with pytest.raises(ValueError, match="names no testbed"):
        machines.joined([f"={one}"])
    folder = str(Path(two).parent)
    assert [*machines.joined([f"S1={one}", f"S2/Llama={folder}"])] == [("S1", "llama float32"), ("S2", "Llama")]
    with pytest.raises(ValueError, match="holds no run"):
        machines.joined([str(tmp_path)])
