"""Intervals hold the truth as often as they say, also with few prompts and a machine that stalls; many looks together
are no more often wrong than one."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from paceline_lab.bench.statistics import (
    Estimate,
    difference,
    holm,
    mean_of,
    mean_of_means,
    mean_of_ratios,
    median_of,
    ratio_of_sums,
)

REPEATS = 2


class World:
    """Prompts that differ in how long and how predictable they are, on a machine that is noisy and sometimes stalls."""

    def __init__(self, seed: int, *, spread: float = 0.3, noise: float = 0.05, stalls: float = 0.02) -> None:
        self.rng = np.random.default_rng(seed)
        self.spread, self.noise, self.stalls = spread, noise, stalls

    def times(self, prompts: int) -> np.ndarray:
        """A factor for each text."""
        shape = prompts, REPEATS
        slow = np.exp(self.noise * self.rng.standard_normal(shape))
        stalled = self.rng.random(shape) < self.stalls
        return slow * np.where(stalled, 1 + self.rng.exponential(1.0, shape), 1)

    def rows(self, prompts: int) -> np.ndarray:
        """Of every text: tokens, its seconds, plain's seconds, the prompt."""
        tokens = np.exp(4 + 0.5 * self.rng.standard_normal((prompts, 1)))
        worth = 2 * np.exp(self.spread * self.rng.standard_normal((prompts, 1)))
        seconds, plain = tokens / worth * self.times(prompts), tokens * self.times(prompts)
        number = np.broadcast_to(np.arange(prompts)[:, None], seconds.shape)
        return np.stack([np.broadcast_to(tokens, seconds.shape), seconds, plain, number], axis=-1).reshape(-1, 4)


def of_ratios(rows: np.ndarray) -> Estimate:
    return mean_of((rows[:, 2] / rows[:, 1]).tolist(), rows[:, 3].tolist())


def of_means(rows: np.ndarray) -> Estimate:
    return ratio_of_sums(rows[:, [0, 1, 0, 2]].tolist(), rows[:, 3].tolist())


def of_medians(rows: np.ndarray) -> Estimate:
    return median_of(rows[:, 1].tolist(), rows[:, 3].tolist())


def coverage(estimate: Callable[[np.ndarray], Estimate], prompts: int, times: int = 300) -> float:
    everything = World(1).rows(100_000)
    truth = estimate_of_all(estimate, everything)
    world = World(2)
    found = [estimate(world.rows(prompts)) for _ in range(times)]
    return float(np.mean([one.low <= truth <= one.high for one in found]))


def estimate_of_all(estimate: Callable[[np.ndarray], Estimate], rows: np.ndarray) -> float:
    """The value alone: all prompts as one cluster."""
    return estimate(np.column_stack([rows[:, :3], np.zeros(len(rows))])).value


@pytest.mark.parametrize("prompts", [4, 6, 12, 40])
@pytest.mark.parametrize("estimate", [of_ratios, of_means, of_medians])
def test_intervals_hold_the_truth_as_often_as_they_say(
    estimate: Callable[[np.ndarray], Estimate], prompts: int
) -> None:
    assert 0.915 <= coverage(estimate, prompts) <= 0.99


def test_repeats_of_a_prompt_are_no_new_evidence() -> None:
    rng = np.random.default_rng(0)
    ratios = np.exp(0.3 * rng.standard_normal(6))
    once = mean_of(ratios.tolist())
    repeated = mean_of(np.repeat(ratios, 20).tolist(), np.repeat(np.arange(6), 20).tolist())
    believed = mean_of(np.repeat(ratios, 20).tolist())
    assert (repeated.low, repeated.high) == pytest.approx((once.low, once.high))
    assert believed.high - believed.low < 0.3 * (once.high - once.low)


def test_one_prompt_gives_no_interval_and_excludes_nothing() -> None:
    for found in (
        mean_of([2.0, 2.1], ["a", "a"]),
        median_of([2.0, 2.1], ["a", "a"]),
        ratio_of_sums([(1, 1, 1, 2)], ["a"]),
        difference([2.0, 2.1], ["a", "a"]).ratio,
    ):
        assert found.value > 1.9
        assert not found.bounded
        assert math.isnan(found.low)
        assert math.isnan(found.high)
        assert not found.excludes(1)
    assert math.isnan(difference([2.0], ["a"]).p)


@pytest.mark.parametrize(("tasks", "prompts"), [(7, 2), (3, 4), (2, 20), (1, 6)])
def test_means_of_tasks_hold_the_truth_as_often_as_they_say(tasks: int, prompts: int) -> None:
    """Tasks differ in what drafting is worth, and the first has two texts a prompt."""
    rng, worth = np.random.default_rng(5), 1 + np.arange(tasks) / 2
    texts = [(task, (task, n)) for task in range(tasks) for n in range(prompts) for _ in range(2 if task == 0 else 1)]
    groups, clusters = zip(*texts, strict=True)
    hits = [0, 0]
    for _ in range(300):
        own = {key: math.exp(0.3 * rng.standard_normal() - 0.045) for key in dict.fromkeys(clusters)}
        values = [worth[task] * own[key] for task, key in texts]
        rows = np.array([(value, 1.0, 1.0, 1.0) for value in values])
        how = groups, clusters, [1.0] * tasks
        for place, found in enumerate((mean_of_means(values, *how), mean_of_ratios(rows, *how))):
            hits[place] += found.low <= worth.mean() <= found.high
    assert all(0.89 <= count / 300 <= 0.99 for count in hits)


def test_the_mean_of_one_task_is_its_ratio_of_means() -> None:
    rows = np.array(
        [(100.0, 10.0, 100.0, 20.0), (90.0, 10.0, 95.0, 18.0), (110.0, 10.0, 100.0, 22.0), (99.0, 9.0, 99.0, 19.0)]
    )
    one, other = mean_of_ratios(rows, ["a"] * 4, [0, 1, 2, 3], [1]), ratio_of_sums(rows, [0, 1, 2, 3])
    assert one.value == pytest.approx(other.value)
    assert math.log(one.high / one.low) == pytest.approx(math.log(other.high / other.low), rel=0.3), (
        "to the first order"
    )
    two = mean_of_ratios(np.vstack([rows, rows]), ["a"] * 4 + ["b"] * 4, range(8), [1, 1])
    assert two.value == pytest.approx(one.value)
    assert two.high < one.high
    assert not mean_of_ratios(rows[:2], ["a", "b"], [0, 1], [1, 1]).bounded, "no task shows a spread"


def test_a_task_weighs_what_it_is_given_however_many_texts_it_has() -> None:
    found = mean_of_means([1.0, 1.0, 1.0, 2.0], ["a", "a", "a", "b"], [0, 1, 2, 3], [1, 1])
    assert found.value == 1.5
    assert found.low == found.high == 1.5, "no prompt lies off the mean of its task"
    alone = mean_of_means([1.0, 2.0], ["a", "b"], [0, 1], [3, 1])
    assert (alone.value, alone.bounded) == (1.25, False), "no task shows a spread"
    assert mean_of_means([2.0, 4.0], ["a", "a"], [0, 1], [1]).value == 3


def test_the_same_data_give_the_same_interval() -> None:
    rows = World(3).rows(7)
    for estimate in (of_ratios, of_means, of_medians):
        assert estimate(rows) == estimate(rows)


def test_mean_of_ratios_and_ratio_of_means_are_told_apart() -> None:
    """A short text that gains much and a long one that gains nothing."""
    rows = [(10.0, 1.0, 10.0, 3.0), (1000.0, 100.0, 1000.0, 100.0)]
    ratios = [(t / s) / (other / slow) for t, s, other, slow in rows]
    assert mean_of(ratios).value == pytest.approx(2.0)
    assert ratio_of_sums(rows, [0, 1]).value == pytest.approx(103 / 101)


def test_a_difference_turned_round_is_its_inverse() -> None:
    ratios = [1.1, 1.3, 0.9, 1.2]
    there, back = difference(ratios), difference([1 / ratio for ratio in ratios])
    assert there.ratio.value == pytest.approx(1 / back.ratio.value)
    assert there.ratio.low == pytest.approx(1 / back.ratio.high)
    assert there.p == pytest.approx(back.p)


def test_a_difference_of_nothing_is_none() -> None:
    assert difference([1.0, 1.0, 1 + 1e-15]).p == 1
    assert difference([1.1, 1.1, 1.1]).p < 1e-6


@pytest.mark.slow
def test_many_looks_are_as_rarely_wrong_as_one() -> None:
    """Fifteen looks at nothing: uncorrected, about half of the repetitions would see something."""
    world, wrong, uncorrected = World(4, spread=0, stalls=0.0), 0, 0
    for _ in range(300):
        ratios = world.times(15 * 6).reshape(15, -1) / world.times(15 * 6).reshape(15, -1)
        clusters = np.repeat(np.arange(6), REPEATS).tolist()
        p_values = [difference(look.tolist(), clusters).p for look in ratios]
        wrong += any(holm(p_values, 0.05))
        uncorrected += min(p_values) < 0.05
    assert wrong / 300 <= 0.08
    assert uncorrected / 300 > 0.3


def test_holm_steps_down_and_skips_what_has_no_p() -> None:
    assert holm([0.01, 0.04, math.nan, 0.03], 0.05) == [True, False, False, False]
    assert holm([0.01, 0.024, 0.04], 0.05) == [True, True, True]
    assert holm([0.04, 0.04], 0.05) == [False, False]
    assert holm([], 0.05) == []
