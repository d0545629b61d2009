"""Drafts beside the target or in turns with it: the slow twin, the rest of a window that is used again, and the planner
that chooses between both ways by what was measured."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import paceline
from drafting import context_of
from engine import PROMPT as TABLE_PROMPT
from engine import SIZE, habitual
from paceline.api.model import LanguageModel
from paceline.context import Context, Ending
from paceline.drafters import Ask, Budget, Drafter, make_drafter, trials
from paceline.drafters.base import Awaited, InFlight, Overlaps
from paceline.drafters.compose import Fallback, Union
from paceline.drafters.networks.assistant import Assistant, DraftModel
from paceline.drafters.networks.mirror.drafter import Mirror
from paceline.drafters.networks.mirror.flight import WindowInFlight
from paceline.drafters.networks.mirror.messages import Ahead, Window
from paceline.drafters.networks.mirror.proxies import outcomes
from paceline.drafters.networks.mirror.rollout import Rollout
from paceline.drafters.networks.mirror.twin import TwinMirror, TwinSource
from paceline.drafters.suffix import Suffix
from paceline.drafters.trials import BLOCK, ENOUGH, FEW, MOST, SETTLING, SpeedTrial, TrialFacts
from paceline.engine.loop import Session
from paceline.engine.serial import run
from paceline.errors import DrafterWarning, InputError
from paceline.law import Outlook, Sampling
from paceline.planning.base import Outcome, Planner, Room
from paceline.planning.fixed import Fixed
from paceline.planning.overlap import TurnsOrOverlap
from paceline.planning.specs import make_planner
from paceline.targets.table import TableTarget
from paceline.tree import EMPTY, ROOT, DraftTree
from paceline_lab import Waiting

PROMPT = "The old house stood at the end of"


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    return paceline.load("pocket", dtype="float32", generation_config=False)


def written(lm: LanguageModel, method: Any, count: int = 32, **how: Any) -> Any:
    lm.forget()
    settings = {"temperature": 0.8, "seed": 5, "planner": "fixed:7", **how}
    return lm.generate(PROMPT, method=method, max_new_tokens=count, **settings)


def shape_of(found: Any) -> list[tuple[int, int]]:
    return [(each.drafted, each.accepted) for each in found.rounds]


# --- the slow twin -------------------------------------------------------------------------------------------


def test_the_twin_drafts_what_the_same_model_drafts_in_turns(lm: LanguageModel) -> None:
    """However much of a window was there before the target had decided, and whatever was drafted ahead."""
    turns = written(lm, make_drafter("assistant:length=7", "pocket-draft"))
    for forwards in (0, 3):
        twin = written(lm, TwinMirror(model="pocket-draft", branches="full", forwards=forwards))
        assert twin.tokens == turns.tokens
        assert shape_of(twin) == shape_of(turns)
        ahead = [each.counts["levels_ahead"] for each in twin.rounds if each.counts["rounds_overlapped"]]
        assert max(ahead) == min(forwards, 7), "as many levels as forwards were made"


def test_a_window_that_is_in_flight_is_a_value(lm: LanguageModel) -> None:
    """The drafter gives it away, and takes back any of its own; its state has none."""
    drafter = TwinMirror(model="pocket-draft", gamma=4)
    drafter.fit(lm.target, lm.vocabulary)
    context = context_of([300, 301, 302], temperature=0.0)
    state, twin = (drafter.open(context) for _ in range(2))
    (first,) = drafter.propose([Ask(state, Budget(4, 4))])
    drafter.propose([Ask(twin, Budget(4, 4))])
    context.commit(int(first.tokens[0]))
    (flight,), budget = drafter.begin([state]), Budget(4, 4)
    assert isinstance(flight, WindowInFlight)
    assert (flight.place, flight.landed) == (4, False)
    (held,) = drafter.finish([Awaited(state, budget, flight)])
    (asked,) = drafter.propose([Ask(twin, budget)])
    assert held.tokens.tolist() == asked.tokens.tolist()
    assert flight.landed
    assert flight.result(time.monotonic() + 1) is None, "it is handed out once"
    for each in (state, twin):
        drafter.close(each)


class Recorded(Drafter):
    """Drafts the root again, and notes how it was asked."""

    name = "recorded"
    overlaps = Overlaps.ALWAYS

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.flights = list[InFlight]()

    def propose(self, asks: Sequence[Ask]) -> list[DraftTree]:
        self.asked.append("propose")
        return [DraftTree.chain([ask.state.root] * ask.budget.nodes, source=self.name) for ask in asks]

    def begin(self, states: Sequence[Any]) -> list[InFlight]:
        self.asked.append("begin")
        self.flights = [InFlight() for _ in states]
        return list(self.flights)

    def finish(self, asks: Sequence[Awaited]) -> list[DraftTree]:
        self.asked.append("finish")
        assert [flight for *_, flight in asks] == self.flights
        return [DraftTree.chain([state.root] * budget.nodes, source=self.name) for state, budget, _ in asks]


@pytest.mark.parametrize("compose", [None, Fallback, Union])
def test_the_engine_begins_a_draft_behind_each_verdict_and_finishes_it_in_the_next_round(compose: Any) -> None:
    recorded = Recorded()
    drafter = recorded if compose is None else compose([recorded, Suffix()])
    target = TableTarget(habitual(), SIZE)
    context = Context(TABLE_PROMPT, Sampling(), Ending(max_new_tokens=12))
    session = Session(context, target, target.open(), drafter, Fixed(2), checked=True)
    tokens = [each.token for each in run(session)]
    plain = LanguageModel(target).generate(TABLE_PROMPT, method="plain", max_new_tokens=12)
    assert tokens == plain.tokens
    assert recorded.asked[:5] == ["propose", "begin", "finish", "begin", "finish"]
    assert set(recorded.asked[5:]) <= {"begin", "finish"}
    assert recorded.asked.count("begin") in (recorded.asked.count("finish"), recorded.asked.count("finish") + 1)


class EveryThird(Fixed):
    """Leaves every third round without a draft."""

    rounds = 0

    def plan(self, rooms: Sequence[Room]) -> list[Budget]:
        self.rounds += 1
        return [Budget(0, 0, reason="a rest")] * len(rooms) if self.rounds % 3 == 0 else super().plan(rooms)


def test_a_draft_in_flight_is_dropped_in_a_round_without_one() -> None:
    """It would be finished for a text that has gone on."""
    recorded = Recorded()
    target = TableTarget(habitual(), SIZE)
    session = Session(
        Context(TABLE_PROMPT, Sampling(), Ending(max_new_tokens=16)), target, target.open(), recorded, EveryThird(2)
    )
    written = [each.token for each in run(session)]
    assert written == LanguageModel(target).generate(TABLE_PROMPT, method="plain", max_new_tokens=16).tokens
    assert recorded.asked[:4] == ["propose", "begin", "finish", "begin"]
    assert recorded.asked[4] == "propose", "behind the third round, which had no draft"


# --- the rest of a window ------------------------------------------------------------------------------------


def rollout_of(model: TableTarget, levels: int, top: int = 1) -> Rollout:
    text = Context(TEXT, Sampling(), Ending(max_new_tokens=90))
    return Rollout(Assistant(model=model, length=levels, top=top), text, "m")


def grown(rollout: Rollout, levels: int = 99) -> None:
    network = rollout._assistant.network
    for _ in range(levels):
        if (live := rollout.live) and not network.read_pieces(list({growth.state: None for growth in live})):
            network.add_level(live)


def alone(model: TableTarget, tokens: Sequence[int], top: int, levels: int) -> DraftTree:
    """The draft behind a text that nothing was drafted ahead for."""
    assistant = Assistant(model=model, length=levels, top=top)
    text = Context(tokens, Sampling(), Ending(max_new_tokens=50))
    return assistant.propose([Ask(assistant.open(text), Budget(levels * top, levels))])[0]


TEXT = [1, 2, 3, 4, 5]


@pytest.mark.parametrize("top", [1, 2])
@pytest.mark.parametrize("levels", [2, 3, 9])
def test_a_correction_inside_of_another_window_leaves_the_rest_of_that(top: int, levels: int) -> None:
    """The outcome is that the text goes on with a drafted token. The target accepts that, and corrects the next one to
    what the window behind it has there; so the window's rest is the next draft, and grows on."""
    model = TableTarget(habitual(memory=1), SIZE)
    first = int(alone(model, TEXT, 1, 1).tokens[0])
    window = alone(model, [*TEXT, first], 1, 6).tokens.tolist()
    wrong = (window[0] + 1) % SIZE
    rollout = Rollout(
        Assistant(model=model, length=6, top=top), Context(TEXT, Sampling(), Ending(max_new_tokens=50)), "m"
    )
    rollout.ahead(Ahead(6, np.array([first, wrong]), np.array([ROOT, 0]), np.array([ROOT]), np.array([first])))
    grown(rollout, levels)
    rollout.go([first, window[0]], 6)
    before = rollout.forwards
    grown(rollout)
    found = rollout.window()
    assert found is not None
    place, drafted = found
    assert place == len(TEXT) + 2
    assert (drafted.inside, drafted.ready) == (1, min(levels, 6) - 1)
    again = alone(model, [*TEXT, first, window[0]], top, 6)
    assert drafted.tree.tokens.tolist() == again.tokens.tolist()
    assert drafted.tree.parents.tolist() == again.parents.tolist()
    assert drafted.tree.scores.tolist() == pytest.approx(again.scores.tolist())
    assert before == 0


def test_the_next_round_goes_on_from_the_rest_of_a_window() -> None:
    """The rows of the rest become text as those of any draft do."""
    coins, inside = random.Random(2), 0
    model = TableTarget(habitual(memory=2), SIZE)
    for _ in range(40):
        rollout = Rollout(
            Assistant(model=model, length=4, top=2), Context(TEXT, Sampling(), Ending(max_new_tokens=90)), "m"
        )
        text = list(TEXT)
        draft = alone(model, text, 2, 4)
        for _ in range(4):
            stops = [ROOT, *(node for node in range(len(draft)) if coins.random() < 0.6)]
            below = [int(draft.tokens[node]) for node in range(len(draft)) if draft.parents[node] == ROOT]
            proxies = [below[0], *(coins.randrange(SIZE) for _ in stops[1:])]
            rollout.ahead(Ahead(4, draft.tokens, draft.parents, np.array(stops), np.array(proxies)))
            grown(rollout, coins.randrange(6))
            window = alone(model, [*text, below[0]], 2, 4).trunk().tokens.tolist()
            gone = [below[0], *window[: coins.randrange(3)]] if coins.random() < 0.7 else [coins.randrange(SIZE)]
            text += gone
            rollout.go(gone, 4)
            grown(rollout)
            found = rollout.window()
            assert found is not None
            inside += found[1].inside
            draft, again = found[1].tree, alone(model, text, 2, 4)
            assert (draft.tokens.tolist(), draft.parents.tolist()) == (again.tokens.tolist(), again.parents.tolist())
            rollout._text.rows.check()
    assert inside > 20


def test_a_token_that_no_window_has_is_drafted_behind_anew() -> None:
    model = TableTarget(habitual(memory=1), SIZE)
    rollout = rollout_of(model, 3)
    first = int(alone(model, TEXT, 1, 1).tokens[0])
    (second,) = alone(model, [*TEXT, first], 1, 1).tokens.tolist()
    rollout.ahead(Ahead(3, np.array([first]), np.array([ROOT]), np.array([ROOT]), np.array([first])))
    grown(rollout, 2)
    rollout.go([first, (second + 1) % SIZE], 3)
    grown(rollout)
    found = rollout.window()
    assert found is not None
    assert (found[1].ready, found[1].inside) == (-1, 0)


def test_proxies_as_published_are_the_best_tokens_of_the_exit_with_the_drafted_one() -> None:
    tree = DraftTree.build([3, 4], [ROOT, 0], source="m", scores=[-0.1, -0.5])
    context = context_of([1, 2], temperature=0.0)
    logits = np.zeros((3, SIZE))
    logits[:, [3, 5]] = [[4.0, 3.0], [0.0, 5.0], [6.0, 0.0]]  # behind the root 3 is best, which is drafted there
    import torch

    how: dict[str, Any] = {"kappa": 1, "shared": False}
    rows, outlook = torch.tensor(logits), Outlook(context.sampling, 2)
    new = outcomes(rows, tree, context, outlook, **how)
    top = outcomes(rows, tree, context, outlook, drafted=True, **how)
    assert set(zip(new.stops.tolist(), new.proxies.tolist(), strict=True)) == {(ROOT, 5), (0, 5), (1, 3)}
    assert set(zip(top.stops.tolist(), top.proxies.tolist(), strict=True)) == {(ROOT, 3), (0, 5), (1, 3)}
    assert float(top.chances[top.proxies.tolist().index(3)]) > 0.5, "the walk goes on with it, as the draft model says"


def test_published_proxies_find_the_rest_of_a_window_when_all_is_accepted(lm: LanguageModel) -> None:
    """One proxy at each place foresees little, and the draft model's own next token is often the target's."""
    common: dict[str, Any] = {"model": "pocket-draft", "gamma": 2, "kappa": 1, "branches": "full"}
    paper = TwinMirror(**common, proxies="top", forwards=4)
    how: dict[str, Any] = {"planner": "fixed:2", "seed": 2, "count": 60}
    found = written(lm, paper, **how)
    assert found.tokens == written(lm, "plain", **how).tokens
    assert found.totals.counts["drafts_inside"] > 0
    own = written(lm, TwinMirror(**common, forwards=4), **how)
    assert shape_of(own) == shape_of(found)
    assert own.totals.counts["drafts_inside"] == 0
    assert paper.presets["paper"] == {"branches": "full", "noise": "none", "overlap": "always", "proxies": "top"}


# --- the choice ----------------------------------------------------------------------------------------------


def trial_of(speed: float, seed: int = 0, stall: float = 0.0) -> tuple[SpeedTrial, int]:
    """A trial whose overlapped rounds take 1 / speed of the time, with tokens by chance; how many these were."""
    trial, coins = SpeedTrial(2), np.random.default_rng(seed)
    while trial.best is None:
        way = trial.way
        seconds = (1 / speed if way else 1.0) * float(coins.uniform(0.95, 1.05)) + stall * float(coins.random() < 0.05)
        trial.note(way, float(coins.integers(1, 5)), seconds)
    return trial, len(trial.tokens[1])


def test_a_trial_ends_soon_where_the_cores_are_shared() -> None:
    ends = [trial_of(0.65, seed) for seed in range(40)]
    assert not any(trial.best for trial, _ in ends)
    counts = [count for _, count in ends]
    assert np.median(counts) <= 3 * FEW
    assert max(counts) <= MOST


def test_a_trial_believes_a_gain_and_no_stall() -> None:
    assert sum(bool(trial_of(1.5, seed)[0].best) for seed in range(40)) >= 36
    assert sum(bool(trial_of(1.5, seed, stall=30.0)[0].best) for seed in range(40)) >= 34
    assert all(count >= ENOUGH for trial, count in (trial_of(1.5, seed) for seed in range(40)) if trial.best)


def test_rounds_at_the_beginning_of_a_block_are_not_compared() -> None:
    trial = SpeedTrial(2)
    ways = []
    for _ in range(4 * BLOCK):
        ways.append(trial.way)
        trial.note(1 - trial.way, 1.0, 1.0)  # of a text that was planned before
        trial.note(trial.way, 1.0, 1.0)
    assert ways == ([0] * BLOCK + [1] * BLOCK) * 2
    assert len(trial.tokens[1]) == 2 * (BLOCK - SETTLING)


class Machine(Drafter):
    """A drafter that says what its process would have done."""

    name = "machine"
    overlaps = Overlaps.CHOICE
    overlap_setup = "a machine"

    def __init__(self, works: bool = True) -> None:
        self.done: list[str] = []
        self._works = works

    def prepare_overlap(self) -> None:
        self.done.append("prepare")
        if not self._works:
            raise InputError("there is no device")

    def end_overlap(self) -> None:
        self.done.append("end")


@pytest.fixture
def own_facts(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))


TARGET = TableTarget(habitual(), SIZE)


def planner_of(machine: Machine) -> TurnsOrOverlap:
    found = make_planner("fixed:3", machine, TARGET)
    assert isinstance(found, TurnsOrOverlap)
    return found


def ways_of(planner: Planner, speed: float, rounds: int, texts: int = 1, foreseeable: bool = True) -> list[bool]:
    """The ways of rounds that take a second in turns."""
    contexts, ways = [context_of([1, 2]) for _ in range(texts)], list[bool]()
    for each in contexts:
        each.foreseeable = foreseeable
    for _ in range(rounds):
        budgets = planner.plan([Room(each, 9) for each in contexts])
        assert len({budget.overlapped for budget in budgets}) == 1
        ways.append(budgets[0].overlapped)
        seconds = 1 / speed if ways[-1] else 1.0
        planner.review([Outcome(each, EMPTY, EMPTY, (1, 1), 0.0, seconds) for each in contexts])
    return ways


@pytest.mark.usefixtures("own_facts")
def test_where_turns_win_nothing_is_prepared_again_until_much_later(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1e9]
    monkeypatch.setattr(time, "time", lambda: now[0])
    machine = Machine()
    ways = ways_of(planner_of(machine), 0.65, 100)
    assert machine.done == ["prepare", "end"]
    assert ways[:BLOCK] == [False] * BLOCK
    assert sum(ways) <= BLOCK, "a clear loss ends the trial within its first block"
    assert not any(ways[2 * BLOCK :])
    after = [0.0]
    for days in (0.001, 0.05, 0.8, 8, 40, 80, 160, 300):
        now[0] = 1e9 + days * 86400
        again = Machine()
        ways_of(planner_of(again), 0.65, 100)
        if again.done:
            after.append(days)
    gaps = np.diff(after)
    assert len(gaps) >= 4
    assert (gaps[1:] > 2 * gaps[:-1]).sum() >= 2, "each waits longer"


@pytest.mark.usefixtures("own_facts")
def test_where_overlap_wins_it_is_used_from_the_first_round_of_the_next_program() -> None:
    assert ways_of(planner_of(Machine()), 1.4, 200)[-50:] == [True] * 50
    machine = Machine()
    assert all(ways_of(planner_of(machine), 1.4, 20))
    assert machine.done == ["prepare"]


@pytest.mark.usefixtures("own_facts")
def test_texts_under_the_rejection_rule_are_drafted_for_in_turns() -> None:
    ways_of(planner_of(Machine()), 1.4, 200)
    assert not any(ways_of(planner_of(Machine()), 1.4, 20, foreseeable=False))


@pytest.mark.usefixtures("own_facts")
def test_a_batch_has_its_own_choice_unless_one_text_has_lost() -> None:
    machine = Machine()
    planner = planner_of(machine)
    assert ways_of(planner, 1.4, 200)[-1]
    assert not ways_of(planner, 0.5, 200, texts=4)[-1]
    assert ways_of(planner, 1.4, 9)[-1]
    assert machine.done == ["prepare", "prepare"]
    lost = planner_of(other := Machine())
    assert not ways_of(lost, 0.5, 9, texts=4)[-1], "that is known"
    assert other.done == ["prepare"]


@pytest.mark.usefixtures("own_facts")
def test_a_machine_that_cannot_overlap_drafts_in_turns_and_says_so() -> None:
    machine = Machine(works=False)
    with pytest.warns(DrafterWarning, match="drafts are made in turns .* there is no device"):
        planner = planner_of(machine)
    assert not any(ways_of(planner, 2.0, 60))


def test_measurements_of_other_versions_are_not_used(own_facts: None, monkeypatch: pytest.MonkeyPatch) -> None:
    ways_of(planner_of(Machine()), 0.65, 100)
    monkeypatch.setattr(trials, "versions", lambda: {"paceline": "0"})
    machine = Machine()
    planner_of(machine)
    assert machine.done == ["prepare"]
    assert TrialFacts(setup="", versions={}, trials=3, when=0.0).due


# --- mirror by default ---------------------------------------------------------------------------------------


@pytest.fixture
def begun(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> list[TwinSource]:
    """The slow twins that stand in the place of processes."""
    found = list[TwinSource]()

    def started(self: Mirror, place: Any) -> TwinSource:
        found.append(TwinSource(DraftModel.load(place.model, lm.target), 2))
        return found[-1]

    monkeypatch.setattr(Mirror, "_started", started)
    return found


class Overlapped(Fixed):
    """Asks for overlapped drafts in all rounds but every fourth."""

    rounds = 0

    def plan(self, rooms: Sequence[Room]) -> list[Budget]:
        self.rounds += 1
        return [replace(budget, overlapped=self.rounds % 4 > 0) for budget in super().plan(rooms)]


@pytest.mark.parametrize("spec", ["mirror", "mirror+suffix", "mirror,suffix"])
def test_a_text_may_change_between_both_ways(spec: str, lm: LanguageModel, begun: list[TwinSource]) -> None:
    """Alone and in a batch, where others come later: each has the drafts that it has in turns."""
    drafter = make_drafter(spec, "pocket-draft")
    drafter.fit(lm.target, lm.vocabulary)
    drafter.prepare_overlap()
    found = written(lm, drafter, planner=Overlapped(7))
    turns = written(lm, drafter, planner=Fixed(7))
    assert found.tokens == turns.tokens == written(lm, "plain").tokens
    overlapped = [each.counts["rounds_overlapped"] for each in found.rounds if not each.prefill]
    assert 0 < sum(overlapped) < len(overlapped)
    assert overlapped[:9] == [1, 1, 1, 0, 1, 1, 1, 0, 1]
    if spec == "mirror":
        assert shape_of(found) == shape_of(turns)
    assert not turns.totals.counts["rounds_overlapped"]
    prompts = [PROMPT, "Once upon a time"]
    how: dict[str, Any] = {"temperature": 0.8, "seed": 2, "max_new_tokens": 16}
    plain = lm.generate_batch(prompts, method="plain", **how)
    batch = lm.generate_batch(prompts, method=drafter, planner=Overlapped(7), **how)
    assert [one.tokens for (one,) in batch] == [one.tokens for (one,) in plain]
    assert sum(one.totals.counts["rounds_overlapped"] for (one,) in batch) > 3
    assert len(begun) == 1


def test_a_text_whose_process_is_lost_goes_on_in_turns(lm: LanguageModel, begun: list[TwinSource]) -> None:
    drafter = make_drafter("mirror", "pocket-draft")
    drafter.fit(lm.target, lm.vocabulary)
    drafter.prepare_overlap()
    text = lm.write(PROMPT, method=drafter, planner=Overlapped(7), max_new_tokens=48, temperature=0.8, seed=5)
    pieces = text.pieces()
    first = [next(pieces) for _ in range(16)]
    begun[0].lost = "it is gone"
    with pytest.warns(DrafterWarning, match=r"was lost \(it is gone\); drafts are made in turns"):
        rest = list(pieces)
    assert [each.token for each in first + rest] == written(lm, "plain", 48).tokens
    rounds = text.result().rounds
    assert rounds[1].counts["rounds_overlapped"]
    assert not rounds[-3].counts["rounds_overlapped"]
    assert rounds[-3].drafted == 7


@pytest.mark.usefixtures("own_facts")
def test_mirror_tries_both_ways_and_writes_the_same_text(lm: LanguageModel, begun: list[TwinSource]) -> None:
    """With the slow twin in the place of the process, so that its speed is known: it is the slower way."""
    drafter = make_drafter("mirror", "pocket-draft")
    slow = LanguageModel(Waiting(lm.target, 0.004), lm.vocabulary)
    first = written(slow, drafter, 100)
    assert first.tokens == written(lm, "plain", 100).tokens
    overlapped = [each.counts["rounds_overlapped"] for each in first.rounds]
    assert len(begun) == 1
    assert FEW < sum(overlapped) < len(overlapped) / 2
    assert not any(overlapped[: BLOCK + 1]), "in turns first, behind the prompt"


def test_mirror_in_turns_is_the_assistant(lm: LanguageModel) -> None:
    """Round by round, under the rejection rule, too, where it samples; and the target computes no early exit."""
    drafter = make_drafter("mirror", "pocket-draft")
    for how in ({"temperature": 0.8}, {"temperature": 0.8, "rule": "rejection"}):
        ours = written(lm, drafter, planner=Fixed(7), **how)
        twin = written(lm, make_drafter("assistant:length=7", "pocket-draft"), planner=Fixed(7), **how)
        assert ours.tokens == twin.tokens
        assert shape_of(ours) == shape_of(twin)
        assert ours.totals.counts["draft_forwards"] == twin.totals.counts["draft_forwards"] > 0
        assert ours.totals.counts["bytes_exchanged"] == ours.totals.counts["rounds_overlapped"] == 0


def test_a_message_says_whether_a_window_is_the_rest_of_another() -> None:
    window = Window(DraftTree.build([3], [ROOT], scores=[-0.1]), 2, 3, 9, 1)
    assert Window.of(window.said(), SIZE, 4, "mirror").inside == 1
