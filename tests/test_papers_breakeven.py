"""Break-even acceptance: the formula gives the paper's numbers, lines are found again in made data, and where there is
no line a sentence says why."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline_lab import Summary
from paceline_lab.bench.run.directory import write_about
from paper_items import shown
from papers.bielik.__main__ import ITEMS
from papers.bielik.breakeven import BETA, RATIO, TABLE5, TABLE7, conditions, of_paper, of_runs, opened
from papers.bielik.formula import (
    FORMS,
    beta_of,
    exact_form,
    fitted,
    means,
    printed_form,
    round_cost,
    speed_up,
)
from papers.charts import draw
from papers.driver import run
from papers.report import Claim
from runs import made_run

TRIALS, HELD = 100, 90
TABLE5_MEANS = means((k, alpha) for row in TABLE5.values() for k, alpha in zip((2, 4), row, strict=True))


# --- the formula


def test_both_forms_have_the_papers_break_even() -> None:
    assert [f"{100 * printed_form(k, RATIO, BETA):.0f}" for k in (2, 4, 6)] == ["45", "83", "121"]
    assert [f"{100 * exact_form(k, RATIO, BETA):.0f}" for k in (2, 4, 6)] == ["49", "85", "122"]


@pytest.mark.parametrize("k", [1, 2, 4, 6, 8])
def test_the_speed_up_is_1_at_the_exact_form_alone(k: int) -> None:
    assert speed_up(exact_form(k, RATIO, BETA), k, RATIO, BETA) == pytest.approx(1)
    assert speed_up(printed_form(k, RATIO, BETA), k, RATIO, BETA) == pytest.approx(
        1 - RATIO / round_cost(k, RATIO, BETA)
    )


def test_free_drafts_that_are_all_accepted_are_k_tokens_more() -> None:
    assert speed_up(1, 4, 0, 0) == 5
    assert speed_up(0, 4, 0.1, 0) == pytest.approx(1 / 1.5)


def test_the_means_of_table_5_give_the_papers_beta() -> None:
    assert {k: f"{100 * alpha:.1f}" for k, alpha in TABLE5_MEANS.items()} == {2: "41.9", 4: "85.0"}
    assert [f"{beta_of(TABLE5_MEANS, RATIO, form):.2f}" for form in FORMS.values()] == ["0.19", "0.18"]
    assert f"{beta_of(TABLE7, RATIO, printed_form):.2f}" == "0.17"


@pytest.mark.parametrize("form", FORMS.values())
def test_beta_is_the_one_of_least_squares(form: Any) -> None:
    def off(beta: float) -> float:
        return sum((form(k, RATIO, beta) - alpha) ** 2 for k, alpha in TABLE5_MEANS.items())

    found = beta_of(TABLE5_MEANS, RATIO, form)
    assert off(found) < min(off(found - 0.001), off(found + 0.001))
    assert beta_of({k: form(k, RATIO, 0.3) for k in (2, 4, 6)}, RATIO, form) == pytest.approx(0.3)


def test_break_evens_above_1_or_without_a_number_count_in_no_mean() -> None:
    assert means([(2, 0.4), (2, 0.6), (4, 1.2), (4, 0.9), (6, 1.1), (2, math.nan)]) == {2: 0.5, 4: 0.9}


# --- the line


def made(seed: int, texts: int = 40) -> tuple[Any, Any, Any]:
    """Texts of a true line, 6 + 20 alpha with noise, and plain decoding's of 14 tokens/s: break-even is at 0.4."""
    rng = np.random.default_rng(seed)
    alpha = rng.uniform(0.2, 0.6, texts)
    return alpha, 6 + 20 * alpha + rng.normal(0, 0.8, texts), 14 + rng.normal(0, 0.3, texts)


def test_intervals_hold_the_true_break_even() -> None:
    lines = [fitted(*made(seed)) for seed in range(TRIALS)]
    held = sum(not line.break_even.excludes(0.4) for line in lines)
    assert HELD <= held < TRIALS
    assert np.mean([line.floor for line in lines]) == pytest.approx(6, abs=0.2)
    assert np.mean([line.slope for line in lines]) == pytest.approx(20, abs=0.5)
    assert all(line.certain and 0.7 < line.r2 < 0.98 for line in lines)


def test_a_known_base_leaves_the_lines_own_interval() -> None:
    """And it holds the true break-even as often."""
    held = 0
    for seed in range(TRIALS):
        alpha, speed, base = made(seed)
        known = fitted(alpha, speed, [14.0])
        held += not known.break_even.excludes(0.4)
        same = fitted(alpha, speed, [float(base.mean())])
        noisy = fitted(alpha, speed, base)
        assert same.break_even.value == noisy.break_even.value
        assert same.break_even.low > noisy.break_even.low
    assert held >= HELD


def test_the_delta_method_is_that_of_the_covariance() -> None:
    """Against the gradient and the covariance matrix of the two coefficients."""
    alpha, speed, base = made(1)
    line = fitted(alpha, speed, base)
    design = np.column_stack([np.ones(len(alpha)), alpha])
    coefficients, (left,), _, _ = np.linalg.lstsq(design, speed, rcond=None)
    covariance = np.linalg.inv(design.T @ design) * left / (len(alpha) - 2)
    at = (base.mean() - coefficients[0]) / coefficients[1]
    gradient = np.array([-1, -at]) / coefficients[1]
    variance = gradient @ covariance @ gradient + base.var(ddof=1) / len(base) / coefficients[1] ** 2
    assert [line.floor, line.slope, line.break_even.value] == pytest.approx([*coefficients, at])
    assert line.break_even.high - at == pytest.approx(2.024394 * math.sqrt(variance), rel=1e-6)  # t of 38
    assert line.r2 == pytest.approx(np.corrcoef(alpha, speed)[0, 1] ** 2)


@pytest.mark.parametrize(
    ("acceptance", "speed", "said"),
    [
        ([0.3], [10.0], "needs two texts that have drafts, and there is one"),
        ([], [], "there are none"),
        ([0.3, 0.3, 0.3], [10.0, 11.0, 12.0], "all 3 texts have the same acceptance rate, 30.0%"),
        ([0.1 + 0.2, 0.3], [10.0, 11.0], "all 2 texts have the same acceptance rate"),
    ],
)
def test_data_without_a_line_are_told(acceptance: list[float], speed: list[float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        fitted(acceptance, speed, [12.0])


def test_a_base_without_texts_is_told() -> None:
    with pytest.raises(ValueError, match="plain decoding has no text"):
        fitted([0.1, 0.2], [1.0, 2.0], [])


@pytest.mark.parametrize(
    ("speed", "base", "said"),
    [
        ([12.0, 11.0, 10.0], 15.0, "none suffices"),
        ([10.0, 10.0, 10.0], 10.0, "none suffices"),
        ([5.0, 6.0, 7.0], 16.0, "none suffices (120.0 ± 0.0%)"),
        ([5.0, 6.0, 7.0], 6.5, "25.0 ± 0.0%"),
        ([5.0, 6.0, 7.0], 3.0, "any suffices (-10.0 ± 0.0%)"),
        ([5.0, 7.0], 6.0, "15.0%"),
    ],
)
def test_what_an_acceptance_can_reach_is_said(speed: list[float], base: float, said: str) -> None:
    assert fitted([0.1, 0.2, 0.3][: len(speed)], speed, [base]).said == said


def test_a_slope_that_chance_can_give_is_no_certain_one() -> None:
    assert not fitted([0.1, 0.2, 0.3, 0.4], [5.0, 9.0, 4.0, 8.0], [6.0]).certain
    assert not fitted([0.1, 0.2], [5.0, 9.0], [6.0]).certain
    assert fitted([0.1, 0.2, 0.3], [5.0, 6.0, 7.0], [6.0]).certain


# --- the script


def test_what_follows_from_the_papers_own_numbers() -> None:
    found = of_paper()
    assert [one.agrees for one in found.claims] == [True, False, False, False, True, False, False]
    assert any("intervals of Table 5 cannot be computed again" in note for note in found.notes)
    assert any("0.27 of Bielik-1.5B (0.28), 0.42 of Llama-3.2-1B (0.35), 0.44" in note for note in found.notes)
    _, (measured, printed, exact) = found.tables[1]
    assert measured[1:4] == ("200", "42%", "85%")
    assert printed[2:] == ("45%", "83%", "121%", "159%")
    assert exact[2:] == ("49%", "85%", "122%", "160%")


METHODS = ("plain", "assistant@fixed:2", "assistant@fixed:4", "auto", "lookup@fixed:4")
QUICK: dict[str, Any] = {"peers": (), "tasks": ("wikipedia",), "languages": ("pl",), "prompts": 12, "stall": False}


def measured(folder: Path, **how: Any) -> Summary:
    """A made run whose entries say how large their drafts are, and which have a draft model."""
    run = made_run(folder, **{"methods": METHODS, **QUICK, **how})
    for entry in run.about.entries:
        _, fixed, size = entry["name"].partition("@fixed:")
        entry["planner"] = f"fixed:{size}" if fixed else "adaptive"
        entry["draft_model"] = "pocket-draft" if entry["name"].startswith(("assistant", "auto")) else None
    write_about(run)
    return opened(folder)


def test_a_run_has_its_table_5_and_table_7(tmp_path: Path) -> None:
    run = measured(tmp_path / "run")
    found = of_runs([run], 0.05, 100.0)
    (head, rows), (_, lines), (columns, fits) = found.tables
    assert head[1:] == ("k = 2", "k = 4", "planned k")
    assert [row[0] for row in rows] == [f"wikipedia pl  {name}" for name in ("assistant", "auto", "lookup")]
    assert [[bool(cell) for cell in row[1:]] for row in rows] == [
        [True, True, False],
        [False, False, True],
        [False, True, False],
    ]
    assert [row[6] != "" for row in lines] == [True, True, False, False]  # by equation 5: a draft model, a fixed size
    assert columns[1:] == ("GB/s", "k = 2", "k = 4", "k = 6", "k = 8")
    assert [row[1] for row in fits] == ["100"] * 3
    assert [row[0].partition(" (")[2].partition(",")[0] for row in fits] == ["measured)", *FORMS]


def test_an_observation_is_a_prompt_with_all_its_texts(tmp_path: Path) -> None:
    run = measured(tmp_path / "run", repeats=3)
    one = next(one for one in conditions([run]) if one.entry == "assistant@fixed:4")
    assert (one.k, one.modelled, len(one.points)) == (4, True, 12)
    texts = [text for text in run.records(one.entry) if text.prompt == "wikipedia/pl/0" and text.rounds]
    drafted, accepted = (sum(sum(t.rounds[name]) for t in texts if t.rounds) for name in ("drafted", "accepted"))
    seconds, tokens = sum(text.seconds_decode for text in texts), sum(text.decoded for text in texts)
    assert len(texts) == 3
    assert one.points[0] == (pytest.approx(accepted / drafted), pytest.approx(tokens / seconds))


def test_the_line_of_a_run_is_that_of_its_texts(tmp_path: Path) -> None:
    """A round takes the same time whatever is accepted, so speed rises with acceptance and its floor is the round's."""
    one = next(one for one in conditions([measured(tmp_path / "run", noise=0.0)]) if one.entry == "assistant@fixed:4")
    assert one.line is not None
    assert one.paired is not None
    assert one.line.certain
    assert one.line.r2 > 0.9
    assert one.paired.base == 1
    assert one.paired.break_even.value == pytest.approx(one.line.break_even.value, abs=0.02)


def test_several_runs_are_several_data_sets(tmp_path: Path) -> None:
    runs = [measured(tmp_path / name, seed=seed) for seed, name in enumerate(("wiki", "alpaca"))]
    found = of_runs(runs, 0.05, None)
    assert {row[0].partition(":")[0] for row in found.tables[0][1]} == {"wiki", "alpaca"}
    drawn = [panel.title for panel in found.panels]
    assert drawn == ["wiki: wikipedia pl", "alpaca: wikipedia pl", "Break-even"]


def test_without_a_ratio_there_is_no_formula(tmp_path: Path) -> None:
    found = of_runs([measured(tmp_path / "run")], None, None)
    assert [row[0].endswith("(measured)") for row in found.tables[2][1]] == [True]
    assert any("the formula needs --ratio R" in note for note in found.notes)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"prompts": 1}, "wikipedia pl, assistant@fixed:2: a line needs two texts that have drafts, and there is one"),
        ({"prompts": 2}, "two texts give a line without an interval"),
        ({"methods": ("plain", "auto")}, "no line is of a draft model and a fixed draft length"),
        ({"peers": ("transformers",)}, "wikipedia pl, transformers: another library does not report its drafts"),
    ],
)
def test_what_a_run_cannot_tell_is_told(how: dict[str, Any], said: str, tmp_path: Path) -> None:
    found = of_runs([measured(tmp_path / "run", **how)], 0.05, None)
    assert any(said in note for note in found.notes)
    if found.panels:
        draw(tmp_path / "drawn.svg", found.panels)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"recipe": {"batch": 4}}, "has texts in batches, which share one speed"),
        ({"recipe": {"qps": 2.0}}, "has texts in batches, which share one speed"),
        ({"methods": ("plain",)}, "has plain decoding alone"),
    ],
)
def test_runs_of_another_kind_are_told(how: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        measured(tmp_path / "run", **how)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--ratio", "0.1"], "--ratio belongs to a run"),
        (["run", "--ratio", "0"], "--ratio must be more than 0"),
        (["run", "--bandwidth", "nan"], "--bandwidth must be more than 0"),
        (["nowhere"], "nowhere holds no run"),
    ],
)
def test_bad_options_are_told(given: list[str], said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=said):
        shown("bielik", "breakeven", *given)


def test_the_script_prints_draws_and_notes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    measured(tmp_path / "run")
    options = ["--ratio", "0.05", "--json", "--note", "notes.md", "--svg", "drawn.svg"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["papers/bielik/__main__.py", "breakeven", "run", *options])
    run("bielik", "", ITEMS)
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["beta"].keys() == FORMS.keys()
    assert len(found["conditions"]) == len(METHODS) - 1
    assert all(Claim(**{**one, "ratio": None}).sentence for one in found["claims"])
    assert "`python -m papers.bielik breakeven run --ratio 0.05" in (tmp_path / "notes.md").read_text()
    assert "<svg" in (tmp_path / "drawn.svg").read_text()
