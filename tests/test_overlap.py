"""The latency law of drafts made beside the target, and what an exit foresees."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline
from paceline.cli import main
from paceline_lab.bench.early_exit import UNFORESEEN, foreseen
from paceline_lab.bench.waiting import Waiting
from paceline_lab.machine import overlap_advice
from paceline_lab.machine.overlap import OverlapTrial, RoundParts
from paper_items import asked, shown
from papers.mirror.places import SITES
from papers.mirror.round import ACCEPTED

PARTS = RoundParts(lower=10, exit=1, upper=10, end=1, first=2, level=2, single=1)


def parts(**changed: float) -> RoundParts:
    values: dict[str, Any] = {name: getattr(PARTS, name) for name in RoundParts.__dataclass_fields__}
    return RoundParts(**{**values, **changed})


def test_drafts_that_fit_are_free() -> None:
    """The paper's equation 10 where everything is hidden."""
    assert PARTS.step(5, anew=0) == 10 + 1 + 10 + 1
    assert PARTS.step(3, anew=0) == PARTS.step(5, anew=0)


def test_what_does_not_fit_is_finished_alone() -> None:
    """Seven levels take 14: five are done in 10, the right draft's last two take single forwards."""
    assert PARTS.left(7) == (2, 1)
    assert PARTS.step(7, anew=0) == 22 + 2 + 1
    assert parts(upper=9).left(7) == (1, 2)
    assert parts(upper=1).left(7) == (1, 6)


def test_a_round_that_nothing_was_drafted_for_pays_for_its_draft() -> None:
    assert PARTS.step(5, anew=1) == 22 + 5
    assert PARTS.step(5, anew=0.25) == pytest.approx(22 + 0.25 * 5)
    assert PARTS.step(5, anew=0.25, short=2) == pytest.approx(22 + 0.25 * 2)


def test_two_that_work_at_once_slow_one_another_down() -> None:
    assert parts(target_slows=1.5).step(5, anew=0) == 10 + 1 + 15 + 1
    slowed = parts(draft_slows=2)
    assert slowed.ahead(5) == 20
    assert slowed.left(5) == (1, 2), "two levels and a half in 10; the other half takes 1 when the target is at rest"


def test_a_law_that_is_at_odds_with_itself_would_be_seen() -> None:
    """Longer drafts never take less, whatever the parts."""
    random = np.random.default_rng(0)
    for _ in range(200):
        one = parts(**{name: float(random.exponential()) + 0.01 for name in ("upper", "first", "level", "single")})
        if one.single <= one.level:
            steps = [one.step(levels, 0.3) for levels in range(1, 12)]
            assert (np.diff(steps) >= -1e-9).all()


@pytest.fixture(scope="module")
def lm() -> paceline.LanguageModel:
    return paceline.load("pocket", dtype="float32", generation_config=False)


def test_a_device_that_is_made_up_takes_its_time_and_writes_the_same(lm: paceline.LanguageModel) -> None:
    waiting = paceline.LanguageModel(Waiting(lm.target, 0.03), lm.vocabulary)
    how: dict[str, Any] = {"method": "plain", "temperature": 0.8, "seed": 1, "max_new_tokens": 8}
    found = waiting.generate("The old house", **how)
    assert found.tokens == lm.generate("The old house", **how).tokens
    assert min(each.seconds_score for each in found.rounds[1:]) >= 0.0299


def test_a_cell_has_all_its_parts(lm: paceline.LanguageModel) -> None:
    """Not how near the law is, which depends on the machine: that everything is measured, and the target waits."""
    waiting = paceline.LanguageModel(Waiting(lm.target, 0.03), lm.vocabulary)
    cell = OverlapTrial(lm=waiting, prompts=["The old house stood"], tokens=24, repeats=1).cell("pocket-draft", 3, 4)
    of = cell.parts
    assert min(of.lower, of.exit, of.upper, of.end, of.first, of.level, of.single) > 0
    assert of.lower + of.upper >= 0.0299
    assert min(of.target_slows, of.draft_slows) >= 1
    assert 0 <= cell.anew <= 1 <= cell.emitted
    for pair in (cell.together, cell.turns, cell.turns_everywhere):
        assert pair.observed >= 0.0299
        assert pair.predicted >= 0.0299


@pytest.mark.slow
def test_advice_says_what_the_law_says(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in {"LEVELS": (2, 3), "EXITS": (0.5,), "BRANCHES": (4,), "REPEATS": 1}.items():
        monkeypatch.setattr(overlap_advice, name, value)
    command = ["advise", "--overlap", "--model", "pocket", "--dtype", "float32", "--temperature", "0.8", "-n", "8"]
    assert main([*command, "--json"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    found = json.loads(last)
    assert [one["spec"] for one in found["together"]] == [
        f"mirror:overlap=always,gamma={gamma},branches=4" for gamma in (2, 3)
    ]
    assert len(found["turns"]) == 2
    best = {name: max(found[name], key=lambda one: one["tokens_per_second"]) for name in ("together", "turns")}
    ratio = best["together"]["tokens_per_second"] / best["turns"]["tokens_per_second"]
    assert found["ratio"] == pytest.approx(ratio)
    assert found["verdict"] == ("on" if found["low"] > 1 else "off" if found["high"] < 1 else "makes no difference")
    assert found["overlaps"] is (found["verdict"] == "on")
    assert found["method"] == best["together" if found["overlaps"] else "turns"]["spec"]
    assert found["method"] in " ".join(lines[:2])
    assert main([*command, "--seconds", "9"]) == 2
    assert "leave --seconds 9 out" in capsys.readouterr().err


@pytest.mark.parametrize(("speed", "verdict"), [(1.2, "on"), (1.05, "makes no difference"), (0.8, "off")])
def test_advice_allows_for_the_error_of_the_law(speed: float, verdict: str) -> None:
    together = overlap_advice.Overlap(exit=0.5, gamma=2, branches=4, seconds=1, tokens=speed, anew=0, hidden=True)
    turns = overlap_advice.OverlapTurns(length=2, seconds=1, tokens=1)
    found = overlap_advice.OverlapAdvice([together], [turns], plain=1)
    assert (found.verdict, found.spec) == (verdict, (together if verdict == "on" else turns).spec)


def test_an_exit_foresees_more_with_more_proxies(lm: paceline.LanguageModel) -> None:
    how: dict[str, Any] = {"levels": 4, "temperature": 0.8, "seed": 0, "max_new_tokens": 40}
    stops = foreseen(lm, "pocket-draft", ["The old house stood"], exit=0.5, proxies=8, **how)
    assert len(stops) > 8
    ranks = np.array([each.rank for each in stops])
    assert ((ranks <= 8) | (ranks == UNFORESEEN)).all()
    assert 0.3 < (ranks <= 8).mean() < 1
    assert all((np.diff(each.masses) >= 0).all() and each.masses[-1] <= 1 + 1e-9 for each in stops if len(each.masses))
    again = foreseen(lm, "pocket-draft", ["The old house stood"], exit=0.25, proxies=8, **how)
    assert len(again) == len(stops), "the same text, with the same drafts"


def test_the_item_of_fallbacks_shows_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    given = "--suite", "stories", "--limit", 1, "--exit", 0.5, "--kappa", 1, 8, "--gamma", 3, "--max-new-tokens", 24
    shown("mirror", "fallback", *given)
    said = capsys.readouterr().out
    assert "en, 0.5 1 - Omega" in said
    assert "more proxies, fewer fallbacks: in the paper always; here at every task and exit, as in the paper" in said


@pytest.mark.slow
def test_the_item_of_the_law_shows_its_tables(capsys: pytest.CaptureFixture[str]) -> None:
    """What its cells hold is tested above."""
    given = "--waiting", 20, "--dtype", "float32", "--draft", "pocket-draft", "--gamma", 2, "--repeat", 1
    shown("mirror", "law", *given, "--max-new-tokens", 12)
    said = capsys.readouterr().out
    assert "pocket on a device that is made up (20 ms a forward)" in said
    assert "the gain is the law's" in said


def test_what_a_round_is_spent_on_adds_up() -> None:
    one = parts(upper=9, judged=0.25, target_slows=1.5)
    spent = one.spent(7, anew=0.25)
    assert sum(spent.values()) == pytest.approx(one.step(7, anew=0.25))
    assert spent["target slowed"] == 4.5
    assert spent["exchange"] == 0.75
    waiting, behind = one.left(7)
    assert (spent["waiting for a forward"], spent["finishing"]) == (waiting, 0.75 * behind)
    assert spent["drafts anew"] == 0.25 * 7
    assert one.turns(7) == 10 + 9 + 7 + 0.25


def test_places_are_computed_from_what_is_stated_of_them() -> None:
    """The first is measured: the law is near what was seen there, 0.70."""
    given = asked("mirror", "places")
    cores, one_core, eight_cores, stream, gpus, *_ = SITES
    assert cores.gain(given) == pytest.approx(0.70, abs=0.05)
    assert one_core.gain(given) < 1 < stream.gain(given) < gpus.gain(given) < eight_cores.gain(given)
    most = asked("mirror", "places", "--anew", 1)
    assert all(site.gain(most) <= site.gain(given) for site in SITES)
    assert one_core.gain(asked("mirror", "places", "--gamma", 2)) > one_core.gain(given), "fewer rows fit better"


@pytest.mark.parametrize("kappa", [1, 2])
def test_a_round_is_drawn_as_it_happened(kappa: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "round.svg"
    given = asked("mirror", "round", "--kappa", kappa, "--max-new-tokens", 40, "--svg", file)
    report = given.made.make(given)
    report.show(given)
    assert "a corrected prefix on a path is reused: in the paper always; here in" in capsys.readouterr().out
    assert report.claims[0].agrees
    ((head, rows),) = report.tables
    assert len(rows) == 4 * kappa, "as many proxies for each place where the walk may stop"
    (reused,) = (row for row in rows if row[-1])
    (diagram,) = report.panels
    accepted = [box.word for box in diagram.boxes if box.number == ACCEPTED and box.y == -1]
    window = [box.word for box in diagram.boxes if box.number == ACCEPTED and box.y < -1]
    assert " ".join(accepted) == reused[0], "green are the accepted tokens,"
    assert " ".join(window) == f"{reused[1]} {reused[2]}", "and the branch that is used again"
    assert file.read_text().startswith("<?xml")
    assert head[0] == "the target accepts"
