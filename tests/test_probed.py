"""Forwards that are timed before the first text: what they tell planners, and that they tell texts nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

import paceline
from clock import MadeClock
from paceline.files import CACHE
from paceline.planning import probed as probing
from paceline.planning.adaptive import Adaptive, costs_of
from paceline.planning.costs import Costs
from paceline.planning.probed import LIMIT, PASSES, SIZES, measure, path_of, probed
from paceline.planning.stored import Profile
from paceline.planning.timing import Timing
from paceline.targets.base import NOTHING, Pending, Request
from paceline.targets.setup import kernels, setup_of
from paceline.targets.table import TableTarget
from planned import Seconds, World, chain
from profiles import save, timings
from test_adaptive import Sized


class Timed(TableTarget):
    """A table whose forwards move a made clock."""

    def __init__(self, clock: MadeClock, seconds: Seconds) -> None:
        super().__init__(lambda history: [1, 0, 2, 0], vocab_size=4)
        self.probing = True
        self.rows: list[int] = []
        self._clock, self._seconds = clock, seconds

    def submit(self, requests: Sequence[Request]) -> Pending:
        self.rows.append(sum(len(request.tokens) for request in requests))
        self._clock.now += self._seconds(self.rows[-1])
        return super().submit(requests)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE, str(tmp_path))
    return tmp_path


def steep(rows: int) -> float:
    return 0.002 * rows


def test_every_size_is_timed_and_the_shortest_time_counts(clock: MadeClock) -> None:
    stalls = iter([0.0, *[0.1] * len(SIZES)])
    found = measure(Timed(clock, lambda rows: steep(rows) + next(stalls, 0.0)))
    assert [timing.rows for timing in found] == sorted(SIZES)
    assert [timing.seconds for timing in found] == pytest.approx(
        [steep(n) for n in sorted(SIZES)], abs=1.5 * clock.TICK
    )


@pytest.mark.parametrize("row", [0.02, 0.05, 0.3, 0.9, 5.0])
def test_it_ends_in_time_and_a_curve_has_two_sizes_or_is_none(clock: MadeClock, row: float) -> None:
    target = Timed(clock, lambda rows: row if rows < 8 else 2 * row)
    found = measure(target)
    assert clock.now <= max(LIMIT, 2 * row) + 0.1, "the prompt's forward apart, nothing begins that cannot end in time"
    assert len(found) != 1
    assert len(found) == len(SIZES) or row > 0.05
    assert len(target.rows) <= 1 + PASSES * len(SIZES)


def test_what_is_not_asked_for_is_not_timed(clock: MadeClock) -> None:
    target = Timed(clock, steep)
    target.probing = False
    assert probed(target) == ()
    assert target.rows == []
    assert paceline.load("pocket").target.probing is False, "a small model teaches a planner in milliseconds"


def test_sizes_stay_within_what_can_be_drafted(clock: MadeClock) -> None:
    target = Timed(clock, steep)
    target.context_length = 20
    assert measure(target) == ()


def test_a_machine_times_a_model_once(clock: MadeClock) -> None:
    first, second = Timed(clock, steep), Timed(clock, steep)
    assert probed(first) == probed(first) == probed(second) != ()
    assert first.rows
    assert second.rows == []


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: json.dumps({**json.loads(text), "kernels": "of another machine"}),
        lambda text: json.dumps({**json.loads(text), "versions": {"torch": "0"}}),
        lambda text: json.dumps({**json.loads(text), "timings": []}),
    ],
)
def test_what_cannot_be_used_is_timed_again(clock: MadeClock, spoil: object) -> None:
    target, again = Timed(clock, steep), Timed(clock, steep)
    probed(target)
    path = path_of(setup_of(target))
    assert path is not None
    whole = path.read_text(encoding="utf8")
    path.write_text(spoil(whole), encoding="utf8")  # type: ignore[operator]
    assert probed(again)
    assert again.rows
    assert json.loads(path.read_text(encoding="utf8")).keys() == json.loads(whole).keys()


def test_other_instructions_are_another_machine(monkeypatch: pytest.MonkeyPatch, clock: MadeClock) -> None:
    setup = setup_of(Timed(clock, steep))
    before = kernels(), path_of(setup)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "SSE41")
    assert kernels() != before[0]
    assert path_of(setup) != before[1]


def test_a_cache_that_cannot_be_written_costs_only_time(clock: MadeClock, cache: Path) -> None:
    (cache / "probes").write_text("a file in the way")
    assert probed(Timed(clock, steep))


def test_a_calibration_goes_before(clock: MadeClock) -> None:
    target = Timed(clock, steep)
    save(Profile.now(setup_of(target), tuple(timings())))
    assert costs_of(target, NOTHING).seconds(1)[1] == pytest.approx(0.05)
    assert target.rows == []


# costs

CURVE = [Timing(rows=rows, seconds=steep(rows)) for rows in sorted(SIZES)]


def test_costs_begin_with_the_curve_for_every_batch_and_go_on_behind_it() -> None:
    costs = Costs(probed=CURVE)
    assert costs.knows_plain(1, 10)
    for batch in (1, 8):
        costs.note(Timing(rows=batch, seconds=steep(batch), sequences=batch))
        found = costs.seconds(64, sequences=batch)
        assert found[[8, 32]] == pytest.approx([steep(8), steep(32)], rel=0.25)
        assert found[64] > 1.7 * found[32]


def test_rounds_correct_it() -> None:
    costs = Costs(probed=CURVE)
    for _ in range(100):
        costs.note(Timing(rows=1, seconds=steep(1)))
        costs.note(Timing(rows=8, seconds=2 * steep(1)))
    assert costs.seconds(8)[8] == pytest.approx(2 * steep(1), rel=0.1)


def test_what_was_learnt_is_not_forgotten_in_longer_texts_or_larger_batches() -> None:
    """Behind long texts every row costs more than what was probed behind a short one."""

    def learnt(rows: int) -> float:
        return 2 * steep(rows)

    costs = Costs(probed=CURVE)
    for _ in range(20):
        for rows in (1, 8, 16):
            costs.note(Timing(rows=rows, seconds=learnt(rows), length=1500))
    costs.note(Timing(rows=1, seconds=learnt(1), length=2100))
    costs.note(Timing(rows=4, seconds=learnt(4), length=2100, sequences=4))
    for sequences in (1, 4):
        found = costs.seconds(16, sequences=sequences, length=2100)
        assert found[[8, 16]] == pytest.approx([learnt(8), learnt(16)], rel=0.15)


def test_a_text_that_is_planned_by_frozen_costs_does_not_depend_on_it() -> None:
    assert (Costs(probed=CURVE).frozen().seconds(64) == Costs().frozen().seconds(64)).all()


def test_a_short_text_does_not_try_what_cannot_pay() -> None:
    """On a machine where every row costs as much as the first, a weak drafter's rows are hardly ever scored."""

    def rides(costs: Costs) -> World:
        return World(chain([0.25] * 16), steep).ride(Adaptive(Sized(), costs), 64)

    informed, learning = rides(Costs(probed=CURVE)), rides(Costs())
    assert sum(informed.sent) <= min(4, sum(learning.sent) / 4)


def test_where_rows_are_cheap_the_first_round_drafts() -> None:
    def cheap(rows: int) -> float:
        return 0.03 + 0.0001 * rows

    curve = [Timing(rows=rows, seconds=cheap(rows)) for rows in sorted(SIZES)]
    world = World(chain([0.8] * 16), cheap).ride(Adaptive(Sized(), Costs(probed=curve)), 2)
    assert all(world.sent)


def test_texts_are_the_same_with_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "LIMIT", 0.2)
    settings = {"max_new_tokens": 24, "temperature": 0.8, "seed": 3}
    texts = []
    for asked in (False, True):
        lm = paceline.load("pocket")
        lm.target.probing = asked
        texts += [lm.generate("It was", rule=rule, **settings).tokens for rule in ("coupled", "rejection")]  # type: ignore[arg-type]
    assert list(texts[0]) == list(texts[2])
    assert list(texts[1]) == list(texts[3])
