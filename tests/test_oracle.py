"""The limits of a run, on records whose limits are known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline_lab.bench.oracle import Curve, Oracle, curve_of
from paceline_lab.bench.run.directory import About, Run
from paceline_lab.bench.run.record import Record, TextVerdict
from runs import made_run
from test_cli import say

FORWARD, EACH = 0.010, 0.001
"""A round takes ten milliseconds and one more for every row."""


def text(entry: str, rounds: list[tuple[int, int]], unit: int = 0, slow: float = 1.0, **other: Any) -> Record:
    """A text of rounds that drafted and accepted so many."""
    drafted, accepted = (np.array(column) for column in zip(*rounds, strict=True))
    nothing = [0.0] * len(rounds)
    seconds = slow * (FORWARD + EACH * (drafted + 1))
    tokens = list(range(int((accepted + 1).sum())))
    columns = {"position": nothing, "drafted": drafted.tolist(), "depth": drafted.tolist()}
    columns |= {"accepted": accepted.tolist(), "refused": nothing, "emitted": (accepted + 1).tolist()}
    columns |= {"seconds_draft": nothing, "seconds_score": seconds.tolist()}
    columns |= {"seconds_read": nothing, "seconds_judge": nothing, "rows": (drafted + 1).tolist()}
    columns["proposed"] = columns["drafted"]
    took = float(seconds.sum())
    return Record(
        entry=entry,
        prompt=f"p{unit}",
        unit=unit,
        **({"task": "qa", "language": "en"} | other),
        prompt_tokens=4,
        text="",
        tokens=tokens,
        finish="length",
        seconds=took,
        seconds_first=0.01,
        decoded=len(tokens) - 1,
        seconds_decode=took,
        rounds=columns,
        verdict=TextVerdict.EQUAL,
    )


def run_of(*records: Record, **recipe: Any) -> Run:
    names = list(dict.fromkeys(record.entry for record in records))
    about = About(recipe=recipe, model={}, entries=[{"name": name, "ours": True} for name in names], workload={})
    return Run(Path("made"), about, list(records))


def plain(tokens: int, unit: int = 0, **other: Any) -> Record:
    return text("plain", [(0, 0)] * tokens, unit, **other)


def test_hindsight_takes_away_what_was_refused() -> None:
    """Half of the rounds send three nodes of which one is accepted, the others send two of which both are."""
    rounds = [(3, 1), (2, 2)] * 5
    oracle = Oracle(run_of(plain(25), text("tree", rounds), text("sizes", [(1, 1)] * 12 + [(0, 0)])))
    found = oracle.share("tree")
    took, least = 5 * (14 + 13), 5 * (12 + 13)
    assert found is not None
    assert found.hindsight.value == pytest.approx(least / took)
    assert found.speed_up == pytest.approx((25 / took) / (25 / (25 * 11)))
    assert found.hindsight_speed_up == pytest.approx(25 * 11 / least)


@pytest.mark.parametrize("slow", [1.0, 3.0])
def test_a_slow_moment_moves_both_limits(slow: float) -> None:
    """The machine was slower while the drafting text was written: it still took as many times its own limit."""
    drafting = text("chain", [(3, 3)] * 6 + [(3, 0)], slow=slow)
    oracle = Oracle(run_of(plain(25), *[plain(25, unit) for unit in range(1, 4)], drafting, plain(8, 5)))
    one, chain = oracle.share("plain"), oracle.share("chain")
    assert one is not None
    assert chain is not None
    assert one.hindsight.value == pytest.approx(1)
    assert one.hindsight_speed_up == pytest.approx(one.speed_up) == pytest.approx(1)
    line = oracle.curve.at([1, 4])
    assert chain.hindsight.value == pytest.approx((6 + line[0] / line[1]) / 7)


def test_knowing_writes_the_text_with_the_fastest_size() -> None:
    """With rounds of up to four rows, 25 tokens take six rounds of four rows and one of one row."""
    oracle = Oracle(run_of(plain(25), text("chain", [(3, 3)] * 6 + [(0, 0)]), text("few", [(1, 0)] * 25)))
    chain, few = oracle.share("chain"), oracle.share("few")
    assert chain is not None
    assert few is not None
    assert chain.knowing.value == pytest.approx(1)
    assert few.knowing.value == pytest.approx((6 * 14 + 11) / (25 * 12))
    assert chain.knowing_speed_up == few.knowing_speed_up == pytest.approx(25 * 11 / (6 * 14 + 11))


def test_a_larger_round_that_gains_nothing_is_not_the_best() -> None:
    """From three rows on every row doubles the time."""
    curve = Curve(np.array([1.0, 2, 3, 4, 5]), np.array([1.0, 1.1, 1.2, 2.4, 4.8]))
    assert curve.text(9) == pytest.approx(3 * 1.2)
    assert curve.text(10) == pytest.approx(3 * 1.2 + 1.0)
    assert curve.text(1) == 1.0
    assert curve.most == 5


def test_a_curve_never_falls_and_a_stall_does_not_move_it() -> None:
    rows = np.array([1.0] * 9 + [2.0] * 9 + [3.0] + [4.0] * 9)
    seconds = np.array([1.0] * 8 + [50.0] + [1.2] * 9 + [0.9] + [1.4] * 9)
    curve = curve_of(rows, seconds)
    assert (np.diff(curve.seconds) >= 0).all()
    assert curve.at(1) == 1.0
    assert 1.1 < curve.at(3) <= 1.2
    assert curve.at(4) == 1.4


def test_cells_are_told_apart(tmp_path: Path) -> None:
    run = made_run(tmp_path / "made", noise=0.01)
    oracle = Oracle(run)
    shares = list(oracle.shares())
    assert {(one.task, one.language) for one in shares} == {*oracle.summary.cells(), (None, None)}
    assert {one.entry for one in shares} == {"plain", "lookup", "assistant"}, "another library does not tell its rounds"
    for one in shares:
        assert 0 < one.hindsight.value <= 1.05
        assert one.knowing.value <= one.hindsight.value * 1.02, "who knows the text is no slower than hindsight"
    assert all(one.hindsight.bounded for one in shares)


def test_batches_and_replays_have_no_limit() -> None:
    for recipe in ({"batch": 4}, {"qps": 2.0}):
        with pytest.raises(ValueError, match="several texts at a time"):
            Oracle(run_of(plain(4), **recipe))
    timeless = plain(4)
    assert timeless.rounds is not None
    with pytest.raises(ValueError, match="took no time"):
        Oracle(run_of(replace(timeless, rounds=timeless.rounds | {"seconds_score": [0.0] * 4})))


def test_the_command_prints_both_limits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made_run(tmp_path / "made", noise=0.01)
    code, out, _ = say(["bench", "compare", str(tmp_path / "made"), "--oracle", "--json"], capsys)
    found = json.loads(out.splitlines()[-1])
    assert code == 0
    assert "of hindsight" in out
    assert "of knowing" in out
    assert "up to the 5 rows" in out
    cells = found["oracle"]["made"]["cells"]
    assert len(cells) == 3 * 7
    assert set(found["oracle"]["made"]["seconds_by_rows"]) <= {"1", "2", "3", "4", "5"}
