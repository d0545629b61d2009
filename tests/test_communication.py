"""What all-reduces cost: the law fits through stalls, counts what forwards add up, and plans for more devices."""

import argparse
import subprocess
import sys
from itertools import pairwise
from typing import Any

import pytest

from paceline.errors import InputError
from paceline_lab.commands import advise
from paceline_lab.machine import communication
from paceline_lab.machine.communication import SIZES, AllReduceLaw, Devices, Sums, measure
from paceline_lab.machine.overlap import RoundParts
from paceline_lab.machine.overlap_advice import Overlap, OverlapAdvice, OverlapTurns

LAW = AllReduceLaw(20e-6, 4e-10)
PARTS = RoundParts(lower=0.040, exit=0.001, upper=0.040, end=0.001, first=0.004, level=0.003, single=0.002)


def test_the_law_is_found_though_a_machine_stalls() -> None:
    seconds = {size: LAW.seconds(size, 4) * (1.03 if number % 2 else 0.97) for number, size in enumerate(SIZES)}
    stalled = seconds | {SIZES[2]: 9 * seconds[SIZES[2]], SIZES[8]: 3 * seconds[SIZES[8]]}
    for measured in (seconds, stalled):
        found = AllReduceLaw.fit(measured, 4)
        assert found.alpha == pytest.approx(LAW.alpha, rel=0.06)
        assert found.beta == pytest.approx(LAW.beta, rel=0.06)


def test_the_law_of_more_devices() -> None:
    assert LAW.seconds(1000, 1) == 0
    assert LAW.seconds(1000, 8) == pytest.approx(3 * 20e-6 + 4e-7)


def test_forwards_add_up_twice_a_layer_or_twice_in_all() -> None:
    target, draft = Sums.of_target(32, 5, 4096, 2), Sums.of_draft(5, 1024, 32_000, 2)
    assert target.sizes == (5 * 4096 * 2,) * 64
    assert draft.sizes == (5 * 1024 * 2, 5 * 32_000 * 2), "states, then logits"
    assert target.seconds(LAW, 2) == pytest.approx(64 * (20e-6 + 4e-10 * 40960))


def devices(count: int, law: AllReduceLaw = LAW) -> Devices:
    return Devices(count=count, law=law, layers=32, width=4096, draft_width=1024, vocabulary=32_000)


def test_devices_divide_the_work_and_add_their_sums() -> None:
    how = {"levels": 4, "branches": 8, "exit": 0.25}
    free = devices(4, AllReduceLaw(0.0, 0.0)).parts(PARTS, **how)
    assert (free.lower, free.upper, free.level, free.end) == (0.010, 0.010, 0.00075, PARTS.end)
    sums = Sums.of_target(32, 5, 4096).seconds(LAW, 4)
    found = devices(4).parts(PARTS, **how)
    assert found.lower == pytest.approx(0.010 + 0.25 * sums)
    assert found.upper == pytest.approx(0.010 + 0.75 * sums)
    assert found.single == pytest.approx(0.0005 + LAW.seconds(4096, 4) + LAW.seconds(4 * 32_000, 4))
    plain = [devices(count).turns(0.080, 0) for count in (1, 2, 4, 8)]
    assert plain[0] == 0.080
    assert all(more < fewer for fewer, more in pairwise(plain))
    slow = [devices(count, AllReduceLaw(2e-3, 0.0)).turns(0.080, 0) for count in (1, 2, 8)]
    assert slow[0] < slow[1] < slow[2], "where sums cost more than the work they save, one device is fastest"


def test_advice_for_devices_says_that_it_is_simulated() -> None:
    together = [Overlap(exit=0.5, gamma=4, branches=4, seconds=0.01, tokens=3.0, anew=0.1, hidden=True)]
    advice = OverlapAdvice(together, [OverlapTurns(length=4, seconds=0.02, tokens=3.0)], 0.02, devices(8))
    options = argparse.Namespace(draft_model="small")
    said = " ".join(advise._overlap_lines(advice, options))
    assert said.startswith("Simulated for 8 devices for each model, not measured")
    assert "takes 20 microseconds for each doubling of the devices and 400 for each megabyte" in said.replace("\n", " ")
    here = OverlapAdvice(together, advice.turns, 0.02)
    assert "imulated" not in " ".join(advise._overlap_lines(here, options))


def test_two_processes_are_measured() -> None:
    forward = Sums.of_target(4, 4, 256)
    found = measure([forward], rounds=6)
    assert list(found.single) == list(SIZES)
    assert min(found.single.values()) > 0
    ((sums, predicted, seconds),) = found.compared()
    assert sums == forward
    assert seconds > 0
    assert predicted == pytest.approx(len(sums.sizes) * found.law.seconds(sums.sizes[0], 2))


def test_a_process_that_fails_is_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one would wait for it."""
    started = subprocess.Popen

    def popen(command: list[str], **how: Any) -> Any:
        ends = [sys.executable, "-c", "raise SystemExit('no room here')"]
        return started(ends if how["env"]["RANK"] == "1" else command, **how)

    monkeypatch.setattr(communication, "PATIENCE", 60.0)
    monkeypatch.setattr(subprocess, "Popen", popen)
    with pytest.raises(InputError, match="not measured on this machine: no room here"):
        measure(rounds=2)


@pytest.mark.slow
def test_the_law_predicts_both_kinds_of_forwards() -> None:
    """Within 20% on a quiet machine; of three tries the best counts, for others may work here, too."""
    forwards = [
        Sums.of_target(24, 8, 896),
        Sums.of_draft(8, 128, 8192),
        Sums.of_target(6, 8, 256),
        Sums.of_draft(1, 128, 8192),
    ]
    worst = []
    for _ in range(3):
        ratios = [predicted / seconds for _, predicted, seconds in measure(forwards).compared()]
        worst.append(max(max(ratio, 1 / ratio) for ratio in ratios))
    assert min(worst) < 1.2, worst
