"""The scripts of the Mirror-SD paper say which way ours went as it was measured, on runs that were made up to go either
way, and every script runs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import paceline
import runs as made_up
from paceline.api.model import LanguageModel
from paceline.drafters import make_drafter
from paceline.drafters.networks.mirror.place import usable_cores
from paceline_lab import Summary
from paceline_lab.bench.run.ours import parted
from paper_items import STEADY, asked, shown
from papers.lab import method_of, names_of, without_head
from papers.mirror import batch, objectives, streams, tasks, variants
from papers.mirror.drafts import GAMMA, PUBLISHED, Two, accepted, by_text, milliseconds, ratio_of, two
from papers.redrafter import tasks as redrafter_tasks
from papers.report import Claim
from thinning import thinned

QUICK = STEADY | {"tasks": ("qa", "mt_bench"), "languages": ("en",), "prompts": 4}
BOTH = Two("m", "v")
Paces = Mapping[str, float]
"""How many times as long entries take."""


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Summary]:
    """Runs of entries with these paces, and how keen the target is on each entry's tokens."""

    def made(slow: Paces, keen: Paces | None = None, **how: Any) -> Summary:
        for entry, share in (keen or {}).items():
            monkeypatch.setitem(made_up.KEEN, entry, share)
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        return Summary(made_up.made_run(folder, methods=("plain", *slow), slow=slow, **QUICK | how))

    return made


def verdicts(claims: list[Claim] | tuple[Claim, ...]) -> list[bool | None]:
    return [one.agrees for one in claims]


def test_a_head_s_folder_is_no_part_of_its_name() -> None:
    assert without_head("eagle:paper,head='a,b',top=3") == "eagle:paper,top=3"
    assert without_head("eagle:paper,head=a") in tasks.PAPER[0.0]


def test_names_tell_heads_of_one_method_apart() -> None:
    heads = "eagle:paper,head='x/all'", "eagle:paper,head='x/en'", "medusa:paper,head=x/all"
    assert [*names_of(heads).values()] == ["eagle:paper (all)", "eagle:paper (en)", "medusa:paper"]
    assert {method_of(name) for name in names_of(heads).values()} <= tasks.PAPER[0.0].keys()
    alike = "eagle:head=x/en", "eagle:head=y/en", "eagle"
    assert [*names_of(alike).values()] == ["eagle:head=x/en", "eagle:head=y/en", "eagle"]


def test_no_head_takes_the_place_of_another(tmp_path: Path) -> None:
    rivals = "eagle:paper,head=all", "eagle:paper,head=en", "auto"
    for module, paper in ((tasks, "mirror"), (redrafter_tasks, "redrafter")):
        given = asked(paper, "tasks", "--model", "pocket", "--out", tmp_path, "--rivals", *rivals)

        def none() -> None:
            raise ValueError("no head")

        lab: Any = SimpleNamespace(given=given, able=list, notes=[], model=none)
        found = module.methods(lab)
        assert set(rivals) <= set(found.values())
        assert {"eagle:paper (all)", "eagle:paper (en)"} <= found.keys()
        assert tasks.paper_says(0.0, "eagle:paper (en)").endswith("against 2.97x on average (Qwen3-14B)")


def test_variants_differ_in_one_thing_each() -> None:
    found = variants.entries(asked("mirror", "variants", "--head", "a b", "--gamma", "5"))
    assert [parted(entry)[0].partition(":")[0] for entry in found.values()] == [
        *("assistant", "streaming", "mirror", "mirror"),
    ]
    with_streams = [entry for name, entry in found.items() if "streams" in name]
    assert all("head='a b'" in entry for entry in with_streams)
    assert all(entry.endswith("@fixed:5") and "model='pocket-draft+ballast:15M'" in entry for entry in found.values())
    assert "draft=streaming" in found[variants.BOTH]


@pytest.mark.parametrize("agrees", [True, False])
def test_variants_are_told_as_measured(agrees: bool, made: Any) -> None:
    names = {variants.VANILLA: "a", variants.STREAMS: "b", variants.MIRROR: "c", variants.BOTH: "d"}
    paces = dict(zip("abcd", (4.0, 2.0, 1.0, 0.5) if agrees else (0.5, 1.0, 2.0, 4.0), strict=True))
    found = variants.report({0.0: made(paces)}, names)
    assert verdicts(found.claims) == [agrees] * 3
    head, rows = found.tables[0]
    assert {len(row) for row in rows} == {len(head)}


# --- numbers of rounds


def test_numbers_of_rounds_follow_from_the_records(made: Any) -> None:
    run = made({"m": 0.5, "v": 1.0})
    rounds = [
        (taken, spent)
        for record in run.records("m")
        for taken, spent in zip(record.rounds["accepted"][1:], record.rounds["seconds_draft"][1:], strict=True)
    ]
    mean, spread = accepted(run, "m")
    assert mean == pytest.approx(sum(taken for taken, _ in rounds) / len(rounds))
    assert spread**2 == pytest.approx(sum((taken - mean) ** 2 for taken, _ in rounds) / len(rounds))
    assert milliseconds(run, "m") == pytest.approx(1000 * sum(spent for _, spent in rounds) / len(rounds))
    assert len(by_text(run, "m")) == len(run.records("m"))
    found = ratio_of(run, "m", "v")
    assert found.value == pytest.approx(0.5, rel=0.05)
    assert found.low < found.value < found.high


def test_there_is_no_ratio_of_what_did_not_happen(made: Any) -> None:
    run = made({"m": 0.5})
    assert math.isnan(ratio_of(run, "m", "v").value)
    assert math.isnan(ratio_of(run, "m", "plain").value), "plain decoding drafts nothing"


def test_both_ways_draft_alike() -> None:
    core = usable_cores()[0]
    given = asked("mirror", "batch", "--draft-device", core)
    found = two(given, "pocket-draft+ballast:6M", 4)
    assert found.mirror == f"mirror:overlap=always,model='pocket-draft+ballast:6M',gamma=4,device='{core}'@fixed:4"
    assert found.vanilla == "assistant:model='pocket-draft+ballast:6M',length=4@fixed:4"
    published = two(asked("mirror", "batch", "--method", PUBLISHED), "d", GAMMA)
    assert published == ("mirror:paper,model='d',gamma=7@fixed:7", "assistant:model='d',length=7,noise=none@fixed:7")
    for one in (*found, *published):
        make_drafter(parted(one)[0])
    with pytest.raises(ValueError, match="has a quote in its name"):
        two(given, "it's", 1)


# --- Figure 3a


@pytest.mark.parametrize("agrees", [True, False])
def test_longer_drafts_are_told_as_measured(agrees: bool, made: Any) -> None:
    cells = {"d": {1: Two("m1", "v1"), 8: Two("m8", "v8")}}
    keen = dict.fromkeys(("m8", "v8"), 0.8 if agrees else 0.1) | dict.fromkeys(("m1", "v1"), 0.1 if agrees else 0.8)
    slow = {"m1": 0.9, "v1": 1.0, "m8": 0.9, "v8": 3.0} if agrees else {"m1": 2.0, "v1": 1.0, "m8": 9.0, "v8": 0.3}
    found = objectives.report({"d": made(slow, keen)}, cells)
    assert verdicts(found.claims) == [agrees] * 5
    ((_, rows),) = found.tables
    assert [row[0] for row in rows] == ["d, 1, mirror", "d, 1, vanilla", "d, 8, mirror", "d, 8, vanilla"]
    assert [len(panel.curves) for panel in found.panels] == [2, 2]
    assert "nan" not in found.markdown


def test_a_rise_that_chance_could_bring_is_told(made: Any) -> None:
    run = made({"m1": 1.0, "v1": 1.0, "m8": 1.0, "v8": 1.0}, noise=0.5)
    assert "chance alone" in objectives.rises_less(run, "d", Two("m1", "v1"), Two("m8", "v8")).sentence
    nothing = objectives.rises_less(run, "d", Two("m1", "v1"), Two("absent", "v8"))
    assert nothing.agrees is None


def test_one_length_has_a_frontier_only(made: Any) -> None:
    found = objectives.report({"d+ballast:1M": made({"m": 0.5, "v": 1.0})}, {"d+ballast:1M": {4: BOTH}})
    assert verdicts(found.claims) == [True]
    assert not any("ballast changes no token" in note for note in found.notes), "there is one size only"


def test_a_slow_mirror_reaches_some_latencies(made: Any) -> None:
    """Its short drafts reach vanilla's long ones, which accept no more; its long ones reach none."""
    cells = {"d": {1: Two("m1", "v1"), 8: Two("m8", "v8")}}
    run = made({"m1": 1.5, "v1": 1.0, "m8": 5.0, "v8": 3.0}, dict.fromkeys(("m1", "v1", "m8", "v8"), 0.5))
    claim = objectives.frontier({"d": run}, cells)
    assert (claim.ours, claim.agrees) == ("at 1 of vanilla's 2 latencies", False)


# --- Figure 5


@pytest.mark.parametrize("agrees", [True, False])
def test_batches_are_told_as_measured(agrees: bool, made: Any) -> None:
    small = {"m": 0.5, "v": 1.0} if agrees else {"m": 2.0, "v": 1.0}
    large = {"m": 0.9, "v": 1.2} if agrees else {"m": 0.9, "v": 0.5}
    found = batch.report({1: made(small), 8: made(large)}, BOTH)
    assert verdicts(found.claims) == [agrees] * 5
    ((head, rows),) = found.tables
    assert {len(row) for row in rows} == {len(head)}
    assert [row[-1] for row in rows if "vanilla" in row[0]] == ["1", "1"]
    assert [len(panel.curves) for panel in found.panels] == [2, 2]
    assert "nan" not in found.markdown


def test_the_worst_batch_decides(made: Any) -> None:
    runs = {1: made({"m": 0.5, "v": 1.0}), 2: made({"m": 2.0, "v": 1.0}), 4: made({"m": 0.5, "v": 1.0})}
    for claim in (batch.least_gain(runs, BOTH), batch.most_exposed(runs, BOTH)):
        assert claim.agrees is False
        assert claim.ours.startswith("at 2,")


def test_one_batch_size_neither_falls_nor_rises(made: Any) -> None:
    assert verdicts(batch.report({4: made({"m": 0.5, "v": 1.0})}, BOTH).claims) == [True, True]


# --- Table 1 and Figure 3b


@pytest.mark.parametrize("agrees", [True, False])
def test_tasks_are_told_as_measured(agrees: bool, made: Any) -> None:
    names = {tasks.MIRROR: "m", tasks.VANILLA: "v", "lookup:paper": "l", "auto": "a"}
    keen = {"m": 0.8, "v": 0.3} if agrees else {"m": 0.3, "v": 0.8}
    runs = {heat: made({"m": 0.3 if agrees else 5.0, "v": 1.0, "l": 1.0, "a": 1.0}, keen) for heat in (0.0, 1.0)}
    found = tasks.report(runs, names, {"mt_bench/en/0": "mt_bench, writing"})
    beside = [one for one in found.claims if "beside auto" in one.claim]
    assert len(beside) == 2
    assert all("paper" not in one.sentence for one in beside), "the paper has none of it"
    assert verdicts([one for one in found.claims if one not in beside]) == [agrees] * 8
    (_, speeds), (_, lengths) = found.tables
    assert [row[0] for row in speeds[:3]] == ["T=0  qa", "T=0  mt_bench", "T=0  mean of tasks"]
    assert [row[0] for row in lengths[:3]] == ["T=0  qa", "T=0  mt_bench, writing", "T=0  mt_bench"]
    assert any("methods for which the model has no head" in note for note in found.notes)
    assert len(found.panels) == 4
    assert "nan" not in found.markdown


def test_categories_part_the_rounds_of_a_task(made: Any) -> None:
    run = made({"m": 1.0})
    whole, parts = tasks.by_kind(run, "m", {}), tasks.by_kind(run, "m", {"qa/en/0": "first"})
    assert [*whole] == ["qa", "mt_bench"]
    assert parts["mt_bench"] == whole["mt_bench"]
    first = [one for record in run.records("m") if record.prompt == "qa/en/0" for one in record.rounds["accepted"][1:]]
    assert parts["first"].startswith(f"{sum(first) / len(first):.2f} ±")


def test_the_paper_s_averages_follow_from_its_table() -> None:
    """3.8x with greedy sampling, it says; of temperature 1 it gives none."""
    assert tasks.paper_says(0.0, tasks.VANILLA) == "3.81x against 2.13x on average (Qwen3-14B)"
    assert tasks.paper_says(1.0, "lookup:paper") == "3.49x against 1.41x on average (Qwen3-14B)"
    assert tasks.paper_says(0.0, "auto") == tasks.paper_says(0.5, tasks.VANILLA) == ""


# --- every script runs


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    return paceline.load("pocket", dtype="float32", generation_config=False)


@pytest.fixture(scope="module")
def process(lm: LanguageModel) -> Iterator[None]:
    """The draft model's process: all scripts share it while somebody holds it."""
    drafter: Any = make_drafter("mirror:model=pocket-draft,overlap=always")
    drafter.fit(lm.target, lm.vocabulary)
    yield
    drafter.dispose()


@pytest.fixture
def run(lm: LanguageModel, tmp_path: Path, monkeypatch: Any) -> Any:
    """Runs an item on `pocket` without a data folder, and gives what it shows as data."""
    monkeypatch.setattr(paceline, "load", lambda *_, **__: lm)
    (tmp_path / "empty").mkdir()

    usual = "--model", "pocket", "--draft", "pocket-draft", "--limit", "1", "--max-new-tokens", "4"
    usual = *usual, "--langs", "en", "--data", str(tmp_path / "empty"), "--out", str(tmp_path / "out")
    return lambda item, *given: shown("mirror", item, *usual, *given)


@pytest.mark.usefixtures("process")
@pytest.mark.parametrize(
    ("item", "given", "raced"),
    thinned(
        [
            ("objectives", ["--gamma", "1", "3"], ["pocket-draft"]),
            ("batch", ["--gamma", "2", "--batch", "1", "2"], ["batch 1", "batch 2"]),
            ("tasks", ["--gamma", "2", "--rivals"], ["T=0", "T=1"]),
        ]
    ),
)
def test_a_script_runs(item: str, given: list[str], raced: list[str], run: Any, tmp_path: Path) -> None:
    """Without Spec-Bench: stories are used instead, and a note says so."""
    found = run(item, *given, "--svg", str(tmp_path / "a.svg"))
    assert [*found["runs"]] == raced
    assert found["claims"]
    assert not any("could not be measured" in note or "otherwise than plain" in note for note in found["notes"])
    assert any("beginnings of stories are used instead" in note for note in found["notes"])
    assert "<svg" in (tmp_path / "a.svg").read_text()
    if item == "tasks":
        assert any(entry.startswith("redrafter:") for entry in found["runs"]["T=0"]["entries"]), "it has a head"


def test_tasks_are_the_paper_s_where_they_are_here(run: Any, tmp_path: Path) -> None:
    rows = [{"question_id": n, "category": kind, "turns": [f"Say {n}."]} for n, kind in enumerate(("qa", "writing"))]
    (tmp_path / "empty" / "spec_bench_question.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = asked("mirror", "tasks", "--data", tmp_path / "empty", "--model", "pocket")
    lab = tasks.Lab(found)
    assert tasks.prompts(lab)["tasks"] == [*tasks.TASKS]
    assert [*tasks.categories(lab).values()] == ["mt_bench, writing"]
    found.tasks = ["qa"]
    assert tasks.prompts(lab)["tasks"] == ["qa"]
    assert lab.out.name == "mirror-tasks--pocket"


@pytest.mark.parametrize(
    ("item", "given", "sentence"),
    [
        ("objectives", ["--gamma", "2", "0"], "--gamma must be at least 1, not 0"),
        ("batch", ["--gamma", "0"], "--gamma must be at least 1, not 0"),
        ("batch", ["--batch", "0"], "--batch must be at least 1"),
        ("tasks", ["--head", "nowhere"], "there is no head in nowhere"),
    ],
)
def test_mistakes_are_named(item: str, given: list[str], sentence: str, run: Any) -> None:
    with pytest.raises(ValueError, match=sentence):
        run(item, *given)


# --- streams ---


def drafting(steps: float, milliseconds: float, rounds: int = 4) -> streams.Drafting:
    return streams.Drafting(rounds, round(steps * rounds), [milliseconds / 1000] * rounds, 3 * rounds)


@pytest.mark.parametrize(("steps", "took", "agree"), [(2.5, 5.0, [True, True]), (4.0, 9.0, [False, False])])
def test_streams_save_steps_and_time_or_do_not(steps: float, took: float, agree: list[bool]) -> None:
    cells = {("qa", 4, streams.PLAIN): drafting(4.0, 8.0), ("qa", 4, 3): drafting(steps, took)}
    found = streams.report(cells, [])
    assert verdicts(found.claims) == agree
    assert found.tables[0][1] == [("qa, 4", "3.00", "4.00, 8.00", f"{steps:.2f}, {took:.2f} ({8 / took:.2f}x)")]
    assert found.panels[0].title == "qa"


def test_rounds_of_other_lengths_do_not_count() -> None:
    rounds = [
        SimpleNamespace(drafted=n, emitted=n - 2, counts={"draft_forwards": 2}, seconds_draft=0.5) for n in (3, 4, 4)
    ]
    found = streams.Drafting()
    found.add(rounds, 4)
    assert (found.rounds, found.steps, found.milliseconds, found.tokens) == (2, 2.0, 500.0, 2.0)
    assert math.isnan(streams.Drafting().milliseconds)


def test_the_script_of_streams_runs(lm: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paceline, "load", lambda *_, **__: lm)
    usual = "--model", "pocket", "--draft", "pocket-draft", "--limit", "1", "--max-new-tokens", "8"
    rows = [{"question_id": 1, "category": "qa", "turns": ["Say it."]}]
    (tmp_path / "spec_bench_question.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    where = "--tasks", "qa", "--data", str(tmp_path), "--dtype", "float32"
    found = shown("mirror", "streams", *usual, *where, "--gamma", "2", "3", "--streams", "1", "--settle", "2")
    assert [claim["claim"] for claim in found["claims"]] == [
        "with 1 streams drafts of 3 tokens take fewer steps",
        "with 1 streams they are drafted faster",
        "with the number that is measured no draft takes longer",
    ]
