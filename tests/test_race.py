"""The race engine: balanced turns, what is timed, when it stops, and where texts part."""

import gc
import itertools
import time
import weakref
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from paceline_lab.bench.race import Clock, Contestant, Race, order
from paceline_lab.bench.texts import Texts, first_difference


class Time:
    """A clock that moves when a contestant works."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Runner(Contestant[str, str]):
    """Takes so many seconds for a task, and says what it does."""

    def __init__(self, name: str, clock: Time, seconds: float = 1.0, said: list[str] | None = None) -> None:
        self.name, self._clock, self._seconds = name, clock, seconds
        self.said: list[str] = [] if said is None else said

    def begin(self) -> None:
        self._clock.now += 100.0

    def do(self, task: str, clock: Clock) -> str:
        self._clock.now += self._seconds
        self.said.append(self.name + task)
        return task + self.name


def runners(names: str, **race: Any) -> tuple[Race[str, str], list[str]]:
    """A race of contestants with one letter each, and what they will have done."""
    clock, said = Time(), list[str]()
    contestants = [Runner(name, clock, 1.0 + place, said) for place, name in enumerate(names)]
    return Race(contestants=contestants, clock=clock, **race), said


@pytest.mark.parametrize("count", range(2, 9))
def test_everybody_comes_after_everybody_else_equally_often(count: int) -> None:
    members = range(count)
    heats = count if count % 2 == 0 else 2 * count
    for turn in range(3):
        orders = [order(members, turn, task) for task in range(heats)]
        assert all(sorted(found) == list(members) for found in orders)
        places = Counter((member, place) for found in orders for place, member in enumerate(found))
        followers = Counter(pair for found in orders for pair in pairwise(found))
        assert set(places.values()) == {heats // count}
        assert set(followers.values()) == {heats // count}
        assert len(followers) == count * (count - 1)
    for task in range(4):
        assert sorted(order(members, turn, task)[0] for turn in range(count)) == list(members)


def test_a_heat_has_every_contestant_in_order_and_only_its_own_work_is_timed() -> None:
    race, said = runners("abc")
    heats = list(race.run(["1", "2"], passes=2, warm_up=["w"]))
    assert said[:3] == ["aw", "bw", "cw"]
    assert [(heat.turn, heat.task) for heat in heats] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert said[3:] == [name + "12"[heat.task] for heat in heats for name in order("abc", heat.turn, heat.task)]
    for heat in heats:
        assert list(heat.laps) == order("abc", heat.turn, heat.task)
        assert [lap.place for lap in heat.laps.values()] == [0, 1, 2]
        assert {name: lap.seconds for name, lap in heat.laps.items()} == {"a": 1.0, "b": 2.0, "c": 3.0}
        assert {name: lap.result for name, lap in heat.laps.items()} == {n: "12"[heat.task] + n for n in "abc"}


@pytest.fixture(autouse=True, scope="module")
def little_to_collect() -> None:
    """Tests here look at what is set aside from collections: at first nothing is."""
    gc.unfreeze()


def test_progress_counts_laps_and_names_contestants() -> None:
    steps: list[tuple[str, int, int]] = []
    race, _ = runners("ab", progress=lambda *step: steps.append(step), doing="here, ")
    list(race.run(["1", "2"], passes=2, warm_up=["w"]))
    assert [(done, total) for _, done, total in steps] == [(number, 10) for number in range(10)]
    assert [doing for doing, _, _ in steps[:4]] == ["here, a, warming up", "here, b, warming up", "here, a", "here, b"]


def test_a_race_that_is_left_keeps_its_heats() -> None:
    race, said = runners("ab")
    going_on = race.run(["1"], passes=9)
    heats = [next(going_on), next(going_on)]
    going_on.close()
    assert [list(heat.laps) for heat in heats] == [["a", "b"], ["b", "a"]]
    assert len(said) == 4
    assert gc.get_freeze_count() == 0


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at the clock of the machine takes a second."""
    clock = itertools.count()
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))


@pytest.mark.usefixtures("ticking")
def test_a_slow_machine_leaves_tasks_out_for_all_alike() -> None:
    race, said = runners("ab")
    heats = list(race.run(list("1234567"), passes=3, seconds=6.0))
    assert 1 <= len(heats) < 7
    assert {heat.turn for heat in heats} == {0}
    assert Counter(one[0] for one in said) == {"a": len(heats), "b": len(heats)}


@pytest.mark.usefixtures("ticking")
@pytest.mark.parametrize(("least", "seconds", "passes"), [(1, 0.0, 1), (3, 0.0, 3), (1, 1e9, 9), (2, 6.0, 3)])
def test_time_that_is_used_up_ends_the_passes(least: int, seconds: float, passes: int) -> None:
    race, _ = runners("ab")
    assert len(list(race.run(["1"], passes=9, least=least, seconds=seconds))) == passes


class Ring:
    def __init__(self) -> None:
        self.ring = self


def test_nothing_is_left_over_for_the_next_contestant() -> None:
    """Neither Python's garbage nor what a device was given to do falls into another's time."""
    rings: list[weakref.ref[Ring]] = []
    events: list[str] = []

    class Careless(Contestant[None, None]):
        name = "careless"

        def do(self, task: None, clock: Clock) -> None:
            assert gc.get_freeze_count() > 0, "what is old is not looked through"
            assert [ring() for ring in rings] == [None] * len(rings)
            rings.append(weakref.ref(Ring()))
            events.append("do")

    class Gauge:
        def start(self) -> None:
            events.append("start")

        def stop(self, seconds: float) -> float:
            events.append("stop")
            return 7.0

    race = Race(contestants=[Careless()], settle=lambda: events.append("settle"), gauges={"joules": Gauge()})
    heats = list(race.run([None], passes=2))
    assert events == 2 * ["settle", "start", "do", "settle", "stop"]
    assert [heat.laps["careless"].gauges for heat in heats] == 2 * [{"joules": 7.0}]
    assert gc.get_freeze_count() == 0
    events.clear()
    with pytest.raises(AssertionError, match="what is old"):
        list(Race(contestants=[Careless()], tidy=False).run([None], passes=1))


# --- where texts part ---------------------------------------------------------------------------------------


def test_the_first_difference_is_where_either_goes_on_alone() -> None:
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([], []) is None
    for place in range(3):
        other = [1, 2, 3]
        other[place] += 1
        assert first_difference([1, 2, 3], other) == first_difference(other, [1, 2, 3]) == place
    assert first_difference([1, 2, 3], [1, 2]) == first_difference([1, 2], [1, 2, 3]) == 2


class Said(Contestant[str, Any]):
    """Writes the next of its texts."""

    def __init__(self, name: str, *texts: list[int]) -> None:
        self.name, self._texts = name, iter(texts)

    def do(self, task: str, clock: Clock) -> Any:
        return Spoken(next(self._texts))


class Spoken:
    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens


def test_texts_are_held_against_the_bases_first_ones_in_every_pass() -> None:
    base, other = Said("base", [1, 2], [3], [1, 2], [4]), Said("other", [1, 2], [3], [1, 2, 5], [3])
    heats = list(Race(contestants=[base, other]).run(["one", "two"], passes=2))
    assert Texts(heats[:2], "base").parting("other") is None
    found = Texts(heats, "base")
    assert str(found.parting("other")) == "parts at token 3 of prompt 1"
    assert found.parting("base") == (1, 0), "a base that does not repeat itself is found"
    assert found.parting("base", Texts(heats[:1], "other")) is None, "of the others there is no text to hold it against"
    assert found.parting("base", Texts(heats[2:], "other")) == (0, 2)
