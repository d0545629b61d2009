"""Comparing: a slowdown is found, the same thing is called the same, and runs that differ are told to."""

import json
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.drafters import Drafter
from paceline.law import Sampling
from paceline_lab.bench.compare import Between, Finding, RatioName, Within, across, fastest
from paceline_lab.bench.run.directory import Run, begin
from paceline_lab.bench.summary import Summary
from refereed import finished, made, prompts, refereed
from runs import made_run
from test_cli import say

QUICK: dict[str, Any] = {"tasks": ("qa",), "languages": ("en",), "prompts": 8, "degenerate": False, "stall": False}
PLANTED = 1.1
REPETITIONS = 20


def finding(found: Between | Within, entry: str, other: str | None = None, task: str | None = None) -> Finding:
    return next(f for f in found.findings if (f.entry, f.other, f.task) == (entry, other or entry, task))


def different(found: Between | Within) -> bool:
    return any(one.call in (RatioName.FASTER, RatioName.SLOWER) for one in found.findings)


# --- fair and keen, on a noisy machine ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """The same thing, again and again, on a machine that is noisy and drifts, each time to another end."""
    folder, rng = tmp_path_factory.mktemp("noisy"), np.random.default_rng(0)
    drifts = rng.uniform(-0.3, 0.5, 2 * REPETITIONS)
    asked = {**QUICK, "noise": 0.3, "tokens": 16, "languages": ("en", "pl"), "tasks": ("qa", "rag"), "prompts": 3}
    return [made_run(folder / str(n), seed=n, drift=drift, **asked) for n, drift in enumerate(drifts)]


@pytest.mark.slow
def test_the_same_thing_twice_is_called_the_same(noisy: list[Run]) -> None:
    found = [Between(one, two) for one, two in zip(noisy[::2], noisy[1::2], strict=True)]
    assert np.mean([different(between) for between in found]) <= 1 / 20
    looks = [one.ratio.excludes(1) for between in found for one in between.findings]
    assert 0.01 < np.mean(looks) < 0.12, "each interval by itself holds 1 as often as it says"
    assert np.mean([any(one.ratio.excludes(1) for one in between.findings) for between in found]) > 1 / 20


def test_twins_in_one_run_are_called_the_same(tmp_path: Path) -> None:
    """Two entries that do the same, told apart by their names alone."""
    called = []
    for seed in range(REPETITIONS):
        run = made_run(tmp_path / str(seed), methods=("plain", "aaa", "bbb"), peers=(), seed=seed, noise=0.3, **QUICK)
        called += [finding(Within(run), "bbb", "aaa", task).call for task in (None, "qa")]
    assert np.mean([call is not RatioName.SAME for call in called]) <= 1 / 20


def test_a_planted_slowdown_is_found(tmp_path: Path) -> None:
    found = []
    for seed in range(20):
        base = made_run(tmp_path / f"a{seed}", seed=2 * seed, noise=0.1, drift=0.2, **QUICK)
        slow = made_run(tmp_path / f"b{seed}", seed=2 * seed + 1, noise=0.1, slow={"lookup": PLANTED}, **QUICK)
        between = Between(base, slow)
        found.append(finding(between, "lookup"))
        assert finding(between, "assistant").call is RatioName.SAME or seed > 0
    assert np.mean([one.ratio.high < 1 and one.call is RatioName.SLOWER for one in found]) >= 19 / 20
    assert np.mean([one.ratio.value for one in found]) == pytest.approx(1 / PLANTED, abs=0.01)


def test_a_machine_that_is_slower_altogether_is_not_called(tmp_path: Path) -> None:
    """All entries, plain decoding too, take twice as long: raw speeds show it, and nothing is called."""
    everybody = dict.fromkeys(("plain", "lookup", "assistant", "transformers"), 2.0)
    base = made_run(tmp_path / "a", noise=0.01, **QUICK)
    slow = made_run(tmp_path / "b", noise=0.01, seed=1, slow=everybody, **QUICK)
    found = Between(base, slow)
    assert not different(found)
    raw = next(one for one in found.raw if one.entry == "plain" and one.task is None)
    assert raw.ratio.value == pytest.approx(0.5, abs=0.02)
    assert {one.call for one in found.raw} == {RatioName.UNKNOWN}
    assert all(one.entry != "plain" for one in found.findings)


@pytest.mark.slow
def test_more_looks_ask_for_more(tmp_path: Path) -> None:
    """What one comparison calls, it may no longer call among many others: the looks of all runs count together."""
    base = made_run(tmp_path / "base", noise=0.1, methods=("plain", "lookup"), peers=(), **QUICK)
    runs = [
        made_run(tmp_path / str(n), noise=0.1, methods=("plain", "lookup"), peers=(), seed=n + 1, **QUICK)
        for n in range(6)
    ]
    together = across([base, *runs])
    assert [len(between.findings) for between in together] == [2] * 6
    alone = [Between(base, run) for run in runs]
    for one, among in zip(alone, together, strict=True):
        for mine, theirs in zip(one.findings, among.findings, strict=True):
            assert (mine.ratio, mine.p) == (theirs.ratio, theirs.p)
            assert mine.call is theirs.call or theirs.call is RatioName.SAME


# --- one run ------------------------------------------------------------------------------------------------


def test_the_best_of_a_task_and_what_is_not_told_apart_from_it(tmp_path: Path) -> None:
    run = made_run(tmp_path / "a", methods=("plain", "lookup", "assistant"), noise=0.2, **QUICK)
    found = Within(run)
    assert found.best("qa") == ["assistant"]
    assert finding(found, "assistant", "lookup").call is RatioName.FASTER
    assert finding(found, "lookup", "plain").prompts == 8
    twins = made_run(tmp_path / "b", methods=("plain", "aaa", "bbb"), noise=0.2, **QUICK)
    assert set(Within(twins).best()) == {"aaa", "bbb"}


def test_one_prompt_is_never_called(tmp_path: Path) -> None:
    run = made_run(tmp_path / "a", **{**QUICK, "prompts": 1})
    found = Within(run)
    assert {one.call for one in found.findings} == {RatioName.UNKNOWN}
    assert all(math.isnan(one.ratio.low) for one in found.findings)
    assert found.best() == found.best("qa") == []


def test_entries_that_changed_alike_share_a_sentence(tmp_path: Path) -> None:
    one, two = (made_run(tmp_path / name, **QUICK) for name in ("a", "b"))
    for entry in two.about.entries:
        if entry["name"] in ("lookup", "assistant"):
            entry["planner"] = "fixed:9"
    for entry in one.about.entries:
        entry["planner"] = "fixed:4"
    assert "lookup, assistant: planner was fixed:4 and is fixed:9" in Between(one, two).notes


def test_repeats_and_turns_are_no_further_prompts(tmp_path: Path) -> None:
    run = made_run(tmp_path / "a", tasks=("mt_bench",), languages=("en",), prompts=5, repeats=4)
    assert {one.prompts for one in Within(run).findings} == {5}
    other = made_run(tmp_path / "b", tasks=("mt_bench",), languages=("en",), prompts=5, repeats=2, seed=1)
    assert {one.prompts for one in Between(run, other).findings} == {5}


# --- several runs -------------------------------------------------------------------------------------------


def test_runs_are_paired_by_prompt_in_whatever_order(tmp_path: Path) -> None:
    one = made_run(tmp_path / "a", noise=0.001, tasks=("qa", "rag"), stall=False)
    two = made_run(tmp_path / "b", noise=0.001, tasks=("rag", "news"), seed=1, stall=False)
    found = Between(one, two)
    assert found.tasks == ["rag"]
    assert found.prompts == 9
    assert {f.prompts for f in found.findings} == {9}


def test_nothing_in_common_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made_run(tmp_path / "a", tasks=("qa",))
    made_run(tmp_path / "b", tasks=("rag",))
    code, out, error = say(["bench", "compare", str(tmp_path / "a"), str(tmp_path / "b")], capsys)
    assert (code, error) == (0, "")
    assert out == "b and a cannot be compared: they have no prompt in common that plain wrote in both\n"


def test_without_an_interval_nothing_is_called_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lone = QUICK | {"prompts": 1}
    for number, name in enumerate("ab"):
        made_run(tmp_path / name, seed=number, **lone)
    for runs in (["a"], ["a", "b"]):
        code, out, error = say(["bench", "compare", *(str(tmp_path / run) for run in runs)], capsys)
        assert (code, error) == (0, "")
        assert "too few prompts to decide" in out
        assert not any(words in out for words in ("not told apart", "*", "≈"))


def test_what_differs_between_runs_is_told(tmp_path: Path) -> None:
    one = made_run(tmp_path / "a", **QUICK)
    two = made_run(
        tmp_path / "b",
        recipe={"temperature": 0.8, "max_new_tokens": 99},
        model={"fingerprint": "ffff", "dtype": "bfloat16"},
        methods=("plain", "lookup", "eagle"),
        **QUICK,
    )
    two.about.sittings[0]["versions"]["torch"] = "2.10.0"
    two.about.sittings[0]["git"] = {"commit": "1234567", "changed": True}
    notes = Between(one, two).notes
    for words in (
        "the model's fingerprint was 0123456789abcdef and is ffff",
        "the model's dtype was float32 and is bfloat16",
        "temperature was 0.0 and is 0.8",
        "max_new_tokens was 40 and is 99",
        "the version of torch was 2.9.0 and is 2.10.0",
        "the commit was abcdef0 and is 1234567 with changes",
        "only in b: eagle",
        "only in a: assistant",
    ):
        assert words in notes


def test_the_same_seed_must_give_the_same_texts(tmp_path: Path) -> None:
    one, two = made_run(tmp_path / "a", **QUICK), made_run(tmp_path / "b", seed=1, **QUICK)
    assert Between(one, two).notes == []
    place = next(n for n, r in enumerate(two.records) if r.entry == "lookup" and r.repeat == 0)
    old = two.records[place]
    two.records[place] = replace(old, tokens=[*old.tokens[:5], old.tokens[5] + 1, *old.tokens[6:]])
    (told,) = Between(one, two).notes
    assert "1 of 8 texts of lookup are not the ones it wrote before" in told
    assert f"the first is {old.prompt}, from token 6 on" in told
    two.about.recipe["seed"] = 7
    assert not any("are not the ones" in note for note in Between(one, two).notes)


def test_a_shorter_limit_is_no_other_text(tmp_path: Path) -> None:
    one = made_run(tmp_path / "a", **QUICK)
    two = made_run(tmp_path / "b", recipe={"max_new_tokens": 10}, **QUICK)
    two.records[:] = [replace(record, tokens=record.tokens[:10]) for record in two.records]
    assert Between(one, two).notes == ["max_new_tokens was 40 and is 10"]


def test_runs_against_different_bases_want_one_named(tmp_path: Path) -> None:
    one = made_run(tmp_path / "a", **QUICK)
    two = made_run(tmp_path / "b", methods=("lookup", "assistant"), **QUICK)
    with pytest.raises(ValueError, match="name an entry of both with --base"):
        Between(one, two)
    assert finding(Between(one, two, "lookup"), "assistant").prompts == 8


# --- the command --------------------------------------------------------------------------------------------


def test_the_command_shows_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made_run(tmp_path / "a")
    code, out, error = say(["bench", "compare", str(tmp_path / "a"), "--json"], capsys)
    assert (code, error) == (0, "")
    *shown, last = out.splitlines()
    found = json.loads(last)
    assert found["best"]["all"] == ["assistant"]
    value = found["overall"]["assistant"]["speed_up"]["value"]
    assert f"*{value:.2f}" in out
    assert all(word in shown[0] for word in ("x plain", "mt_bench", "qa", "all", "tokens/round", "text"))
    assert any("54 equal" in line for line in shown)
    assert any(line.startswith("- assistant is") and line.endswith("faster") for line in shown)
    assert max(map(len, shown)) <= 110


NOISY: dict[str, Any] = {"noise": 0.6, "degenerate": False, "stall": False, "languages": ("en",), "tasks": ("qa",)}


def test_too_few_prompts_are_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In place of stars, bounds and sentences of pairs, which would say the same of every row."""
    for name in "ab":
        made_run(tmp_path / name, prompts=3, seed=ord(name), **NOISY)
    for runs, rows in ((["a"], ("lookup", "assistant", "transformers")), (["a", "b"], ("lookup", "assistant"))):
        code, out, _ = say(["bench", "compare", *(str(tmp_path / run) for run in runs), "--json"], capsys)
        *shown, last = out.splitlines()
        assert code == 0
        assert sum("too few prompts to decide" in line for line in shown) == 1
        table = [line for line in shown if line.startswith(rows)]
        assert len(table) >= len(rows)
        assert not any(mark in line for line in table for mark in "*[]")
        assert not any("not told apart" in line or " over 3 prompts" in line for line in shown)
        found = json.loads(last)
        assert found["best"] == {"all": [], "qa": []} if len(runs) == 1 else not found["runs"][0]["decided"]


def test_few_prompts_that_tell_methods_apart_do_decide(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calm = NOISY | {"noise": 0.001, "methods": ("plain", "lookup"), "peers": ()}
    made_run(tmp_path / "a", prompts=3, slow={"lookup": 0.2}, **calm)
    made_run(tmp_path / "b", prompts=3, slow={"lookup": 0.4}, seed=1, **calm)
    _, out, _ = say(["bench", "compare", str(tmp_path / "a")], capsys)
    assert "too few" not in "".join(line for line in out.splitlines() if "unstable" not in line)
    assert "*" in out
    _, out, _ = say(["bench", "compare", str(tmp_path / "a"), str(tmp_path / "b")], capsys)
    assert "slower" in out


def test_the_fastest_is_told_apart_from_all_others(tmp_path: Path) -> None:
    run = made_run(tmp_path / "a", noise=0.02, **QUICK)
    assert fastest(Summary(run), ["lookup", "assistant"]) == "assistant"
    twins = made_run(tmp_path / "b", noise=0.3, methods=("plain", "aaa", "bbb"), peers=(), **QUICK)
    assert fastest(Summary(twins), ["aaa", "bbb"]) is None


def test_many_tasks_stand_in_blocks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tasks = tuple(f"task_number_{n}" for n in range(8))
    made_run(tmp_path / "a", tasks=tasks, languages=("en",), prompts=2)
    made_run(tmp_path / "b", tasks=tasks, languages=("en",), prompts=2, seed=1)
    for runs in (["a"], ["a", "b"]):
        code, out, _ = say(["bench", "compare", *(str(tmp_path / run) for run in runs)], capsys)
        assert code == 0
        assert all(task in out for task in tasks)
        assert max(map(len, out.splitlines())) <= 120


def test_the_command_compares_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made_run(tmp_path / "a", noise=0.02)
    made_run(tmp_path / "b", noise=0.02, seed=1, slow={"lookup": 1.2})
    made_run(tmp_path / "c", noise=0.02, seed=2)
    paths = [str(tmp_path / name) for name in "abc"]
    code, out, error = say(["bench", "compare", *paths, "--json"], capsys)
    assert (code, error) == (0, "")
    found = json.loads(out.splitlines()[-1])
    slower, same = found["runs"]
    calls = {row["entry"]: row["call"] for row in slower["speed_ups"] if row["task"] is None}
    assert calls == {"lookup": "slower", "assistant": "not told apart", "transformers": "not told apart"}
    assert {row["call"] for row in same["speed_ups"]} == {"not told apart"}
    assert "b against a: 18 prompts in common" in out
    assert "machine or code, runs made apart cannot tell" in out


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (["{a}", "--base", "eagle"], "has no entry 'eagle'"),
        (["{nowhere}"], "holds no run"),
        (["{empty}"], "holds no finished text"),
        (["{a}", "{old}"], "has format 0"),
    ],
)
def test_bad_input_is_one_sentence(
    asked: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = made_run(tmp_path / "a", **QUICK)
    begin(tmp_path / "empty", run.about)
    made_run(tmp_path / "old", **QUICK)
    about = json.loads((tmp_path / "old" / "run.json").read_text(encoding="utf8"))
    (tmp_path / "old" / "run.json").write_text(json.dumps(about | {"format": 0}), encoding="utf8")
    places = {name: str(tmp_path / name) for name in ("a", "nowhere", "empty", "old")}
    code, _, error = say(["bench", "compare", *(word.format(**places) for word in asked)], capsys)
    assert code == 2
    assert told in error
    assert len(error.strip().splitlines()) == 1


# --- with real times ----------------------------------------------------------------------------------------


METHOD, TWIN = "lookup", "lookup:max_ngram=3"
"""The twin states what is the default."""


def slowed(spec: str, model: Any) -> Drafter:
    """The method, with a wait before each round but the first: a tenth of what the round before took."""
    drafter = made(spec, model)
    if spec != METHOD:
        return drafter
    propose, opened = drafter.propose, drafter.open
    last: list[float | None] = [None]

    def propose_late(asks: Any) -> Any:
        now = time.thread_time()
        while last[0] is not None and time.thread_time() < now + (PLANTED - 1) * (now - last[0]):
            pass
        last[0] = time.thread_time()
        return propose(asks)

    def open_afresh(context: Any) -> Any:
        last[0] = None
        return opened(context)

    drafter.propose, drafter.open = propose_late, open_afresh
    return drafter


def timed(path: Path, make: Any) -> Run:
    """A run on a table of tokens, by the seconds that this thread computed: other processes count little."""
    dice = np.random.default_rng(0)
    texts = ["".join(map(str, dice.integers(0, 6, 24))) for _ in range(96)]
    workload = [replace(one, turns=(text,)) for one, text in zip(prompts(96), texts, strict=True)]
    how = {"sampling": Sampling(temperature=0.8, seed=0), "max_new_tokens": 16, "repeat": 2}
    referee = refereed(path, methods=("plain", METHOD, TWIN), workload=workload, make=make, **how)
    referee.race.clock = time.thread_time
    return finished(referee)


@pytest.mark.slow
def test_real_times_are_called_the_same_and_a_planted_tenth_is_found(tmp_path: Path) -> None:
    """Twenty repetitions of three runs on a table target: the protocol, sessions and clocks are real."""
    same, twins, planted = list[bool](), list[bool](), list[bool]()
    for number in range(20):
        folder = tmp_path / str(number)
        base, again, slow = (timed(folder / name, make) for name, make in (("a", made), ("b", made), ("c", slowed)))
        same.append(different(Between(base, again)))
        twins.append(
            any(
                one.call in (RatioName.FASTER, RatioName.SLOWER)
                for one in Within(base).findings
                if {one.entry, one.other} == {METHOD, TWIN}
            )
        )
        planted.append(finding(Between(base, slow), METHOD).ratio.high < 1)
    assert max(sum(same), sum(twins)) <= 1
    assert sum(planted) >= 19
