"""How deep an expensive part drafts: as deep as pays, for one text and for many, at the price of a few rounds."""

from __future__ import annotations

from threading import Thread

import numpy as np
import pytest

from paceline.drafters import Drafter
from paceline.planning.adaptive import Adaptive
from paceline.planning.costs import Costs
from paceline.planning.levels import Levels
from paceline.planning.timing import Timing
from paceline.tree import EMPTY
from planned import World, chain
from thinning import crossed


class Assisted(Drafter):
    nodes, enriches, costly_levels = 32, True, 4


def seconds(rows: int) -> float:
    """Of a model of which a plain round of eight texts takes 28 ms, and eight rows more 5 ms."""
    return 0.023 + 0.0006 * rows


def world(odds: float, level: float, seed: int = 0) -> World:
    """One without cheap drafts."""
    draft = chain([odds] * 4, name="model")
    return World(lambda *_: EMPTY, seconds, seconds_draft=0.0003, seed=seed, expensive=draft, seconds_level=level)


def test_rounds_of_another_thread_are_noted_after_costs_are_read() -> None:
    """Texts of several threads share the costs of a target."""
    costs = Costs()

    class Slow:
        @property
        def known(self) -> bool:
            thread.start()
            thread.join(0.2)
            return False

    thread = Thread(target=costs.note, args=(Timing(rows=1, seconds=1.0, length=5000),))
    costs._curves[1, 0] = Slow()  # type: ignore[assignment]
    assert not costs.known
    thread.join()
    assert costs.knows_plain(1, 5000) is False
    assert len(costs._curves) == 2


def planner() -> Adaptive:
    """One that begins with a curve timed with a single text, as after a probe."""
    return Adaptive(
        Assisted(), Costs(probed=[Timing(rows=rows, seconds=seconds(rows)) for rows in (1, 2, 4, 8, 16, 32)])
    )


def of_depth(odds: float, level: float, batch: int, depth: int) -> float:
    """Tokens per second with always so many levels."""
    tokens = batch * sum(odds**reached for reached in range(depth + 1))
    return tokens / (seconds(batch * (1 + depth)) + depth * level + (0.0003 if depth else 0.0))


LEAST = {0.0012: 1.0, 0.005: 0.97, 0.015: 0.97, 0.03: 0.95}
"""Seconds of a level -> the least speed of a short text, to the speed without drafts."""


@pytest.mark.parametrize(("batch", "odds", "level"), crossed([1, 8], [0.35, 0.6, 0.8], LEAST))
def test_levels_come_near_the_best_depth_and_a_short_text_hardly_pays_for_learning_it(
    batch: int, odds: float, level: float
) -> None:
    rates = [of_depth(odds, level, batch, depth) for depth in range(5)]
    first, later = [], []
    for seed in range(4):
        made = planner()
        first.append(world(odds, level, seed).ride(made, 63, batch).speed)
        later.append(world(odds, level, 10 + seed).ride(made, 200, batch).speed)
    assert np.mean(first) > LEAST[level] * rates[0]
    assert np.mean(later) > (0.95 if np.argmax(rates) else 0.98) * max(rates)


def test_what_does_not_pay_in_a_batch_is_left_out_as_long_as_for_one_text() -> None:
    """The back-off counts rounds, and not the texts in them."""
    made = planner()
    tried = world(0.35, 0.03).ride(made, 400, 8).levels
    assert 0 < np.count_nonzero(tried) <= 8


def test_a_level_is_asked_for_where_it_brings_more_than_it_takes() -> None:
    levels = Levels()
    assert levels.best(1, 40.0, 4) == levels.best(8, 300.0, 4) == 1
    for _ in range(2):
        levels.took(0.004, 2, 1)
        levels.brought(np.array([0.5, 0.2]))
    assert levels.measured(1)
    assert not levels.measured(8)
    assert levels.seconds(1) == pytest.approx(0.002)
    # 0.5, 0.2, and then 0.5 of the level above for those that were never drafted: 0.1, 0.05
    assert [levels.best(1, rate, 4) for rate in (20.0, 40.0, 80.0, 200.0, 1000.0)] == [4, 3, 2, 1, 1]


def test_gains_that_are_none_ask_for_one_level_and_never_for_a_number_that_is_none() -> None:
    levels = Levels()
    for _ in range(3):
        levels.took(0.004, 1, 1)
        levels.brought(np.array([-0.5]))
    assert levels.best(1, 40.0, 4) == 1
    levels.brought(np.array([0.0, 0.0, 0.0, 0.0]))
    assert levels.best(1, 40.0, 4) == 1
