"""How many streams drafts have: measured, without a part in what is drafted. The seconds here are made up."""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count, cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drafting import context_of
from families import build
from paceline.drafters import Ask, Budget, trials
from paceline.drafters.networks.assistant import Assistant, DraftModel
from paceline.drafters.networks.growth import DraftShape, Growth
from paceline.drafters.networks.mirror.messages import Ahead, Go, Message, MessageKind, Window
from paceline.drafters.networks.mirror.worker import Worker, facts_of
from paceline.drafters.networks.streaming import Streaming, counts
from paceline.drafters.networks.streaming.counts import FEW, LOOKED, MOST, WATCHED, DraftKind, StreamCounts, StreamWatch
from paceline.drafters.networks.streaming.network import StreamingNetwork
from paceline.drafters.trials import BLOCK, SETTLING, KeptChoice, SpeedTrial
from paceline.files import cached_path
from paceline.targets.chains import Chain
from paceline.targets.hf.integers import kernels
from paceline.targets.hf.probe import prepare
from paceline.targets.hf.target import HFTarget
from paceline.tree import DraftTree
from scoring import load_quietly, tokens
from streaming import made_adapter, saved

FASTEST = {"none": {0: 1.0, 1: 1.1, 2: 1.2, 3: 1.3}, "one": {0: 1.0, 1: 0.8, 2: 0.85, 3: 0.95}}
"""Seconds of a drafted token by the number of streams."""
FASTEST |= {"three": {0: 1.0, 1: 1.02, 2: 0.9, 3: 0.7}, "no gain": dict.fromkeys(range(4), 1.0)}
BEST = {"none": 0, "one": 1, "three": 3, "no gain": 0}


@pytest.fixture(scope="module")
def model() -> HFTarget:
    return load_quietly(build("llama").requires_grad_(False))


@pytest.fixture(scope="module")
def head(model: HFTarget, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(made_adapter(model), tmp_path_factory.mktemp("adapter"), model)


@pytest.fixture(autouse=True)
def own_facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "FOLDER", f"trials of {tmp_path.name}")


# --- trials of several ways ---


def tried(seconds: Mapping[int, float], seed: int, stall: float = 0.0) -> SpeedTrial:
    """A trial of pieces that take so long, a tenth more or less, and bring from 4 to 7 tokens."""
    trial, coins = SpeedTrial(len(seconds), few=5, enough=30, most=120, stalled=1.5), np.random.default_rng(seed)
    while trial.best is None:
        brought = float(coins.integers(4, 8))
        took = brought * seconds[trial.way] * float(coins.uniform(0.9, 1.1)) + stall * float(coins.random() < 0.05)
        trial.note(trial.way, brought, took)
    return trial


@pytest.mark.parametrize("stall", [0.0, 200.0])
@pytest.mark.parametrize("of", FASTEST)
def test_a_trial_finds_the_fastest_way(of: str, stall: float) -> None:
    """Or one within a twentieth of it, and none that is slower than way 0."""
    found = [tried(FASTEST[of], seed, stall).best or 0 for seed in range(20)]
    took = FASTEST[of]
    assert max(took[best] for best in found) <= (1.0 if BEST[of] else 1.02)
    assert sum(took[best] <= 1.07 * took[BEST[of]] for best in found) >= 18


def test_a_way_that_clearly_loses_has_no_more_blocks() -> None:
    trial = tried({0: 1.0, 1: 2.0, 2: 0.9}, 1)
    assert len(trial.tokens[1]) <= 2 * BLOCK
    assert (trial.leader, set(trial.out)) == (2, {0, 1})
    longest = tried(FASTEST["no gain"], 3)
    assert max(map(len, longest.tokens)) <= MOST + BLOCK


def tries(found: StreamCounts, kind: DraftKind) -> bool:
    """Whether a trial is under way for drafts of a kind."""
    return found._choices[kind].trial is not None


# --- drafts ---


class MadeUp:
    """A clock by which each drafted token takes as long as its number of streams says."""

    def __init__(self, seconds: Mapping[int, float]) -> None:
        self.seconds, self.now, self.used = seconds, 0.0, list[int]()

    def __call__(self) -> float:
        return self.now

    def over(self, network: StreamingNetwork) -> None:
        honest = network._grown

        def grown(growths: Sequence[Growth], grow: Callable[..., None], streams: int) -> int:
            found = honest(growths, grow, streams)
            if found:
                self.used.append(streams)
            self.now += self.seconds[streams] * found / len(growths)
            return found

        network._grown = grown  # type: ignore[method-assign]
        network.counts = self.counts = StreamCounts("made up", self)

    @property
    def settled(self) -> bool:
        """Whether drafts were compared, and are no more."""
        trials = [each.trial for each in self.counts._choices.values()]
        return len(self.used) > BLOCK and not any(each and each.seconds[0] for each in trials)


class Drafting:
    """Texts as two drafters write them, the draft model alone and with measured streams."""

    def __init__(self, model: HFTarget, head: Path, clock: MadeUp | None = None) -> None:
        self.plain = Assistant(model=DraftModel(model), length=6)
        self.ours = Streaming(model=DraftModel(model), head=head, length=6)
        for drafter in (self.plain, self.ours):
            drafter.fit(model)
        if clock is not None:
            clock.over(self.ours.network)

    def agree(self, rounds: int, *, several: int = 1, hidden: bool = False, **settings: Any) -> None:
        """Drafts behind texts that go on with a part of each, and another token."""
        coins, texts = np.random.default_rng(5), list[list[Any]]()
        for drafter in (self.plain, self.ours):
            contexts = [context_of(tokens(5 + 3 * number, number).tolist(), **settings) for number in range(several)]
            for context in contexts:
                context.foreseeable = not hidden
            texts.append([(context, drafter.open(context)) for context in contexts])
        for _ in range(rounds):
            plain, ours = (
                drafter.propose([Ask(state, Budget(6, 6)) for _, state in own])
                for drafter, own in zip((self.plain, self.ours), texts, strict=True)
            )
            for number, (one, other) in enumerate(zip(plain, ours, strict=True)):
                same(one, other)
                follows = [*one.tokens[: int(coins.integers(0, 7))].tolist(), int(coins.integers(0, 97))]
                for own in texts:
                    for token in follows:
                        own[number][0].commit(token)
        for _, state in texts[1]:
            state.rows.check()


def same(one: DraftTree, other: DraftTree) -> None:
    assert one.tokens.tolist() == other.tokens.tolist()
    assert one.parents.tolist() == other.parents.tolist()
    assert np.allclose(one.scores, other.scores, atol=1e-3)
    assert one.drawn.keys() == other.drawn.keys()


@pytest.mark.parametrize("of", ["none", "one", "three"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_fastest_number_is_found_and_drafts_stay_the_same(
    model: HFTarget, head: Path, of: str, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counts, "WATCHED", 10**9)  # trials alone
    clock = MadeUp(FASTEST[of])
    drafting = Drafting(model, head, clock)
    while not clock.settled:
        drafting.agree(20, temperature=temperature, seed=3)
    assert set(clock.used) == {0, 1, 2, 3}, "each was tried"
    assert clock.used[:BLOCK] == [0] * BLOCK
    del clock.used[:]
    drafting.agree(3, temperature=temperature, seed=4)
    assert set(clock.used) == {BEST[of]}


def watched(seconds: Mapping[int, float], drafts: int, seed: int = 0) -> tuple[list[int], bool]:
    """The numbers of streams of drafts after a trial that found 3, and whether none is found to be better by now."""
    chance, watch, used = np.random.default_rng(seed), StreamWatch(3), list[int]()
    for _ in range(drafts):
        count = watch.count()
        used.append(count)
        if watch.note(count, 7.0, 7 * seconds[count] * (1 + 0.05 * chance.random())):
            return used, True
    return used, False


def test_a_number_that_has_become_slower_than_none_is_left() -> None:
    used, lost = watched({0: 1.0, 3: 1.1}, 1000)
    assert lost
    assert used[:WATCHED] == [3] * WATCHED
    assert set(used) == {0, 3}
    assert len(used) < 2 * WATCHED


def test_a_number_that_stays_the_best_costs_few_drafts_without() -> None:
    used, lost = watched({0: 1.0, 3: 0.9}, 20_000)
    assert not lost
    assert 0 < used.count(0) < 0.02 * len(used)


def test_the_machine_changes_and_so_does_the_number(model: HFTarget, head: Path) -> None:
    clock = MadeUp(FASTEST["three"])
    drafting = Drafting(model, head, clock)
    while not clock.settled:
        drafting.agree(20, temperature=1.0, seed=3)
    clock.seconds = FASTEST["none"]
    for _ in range(60):
        drafting.agree(20, temperature=1.0, seed=3)
        if all(not each.best for each in clock.counts._choices.values()):
            break
    del clock.used[:]
    drafting.agree(3, temperature=1.0, seed=4)
    assert set(clock.used) == {0}
    assert all(not KeptChoice.known(each.setup, 4).best for each in clock.counts._choices.values())


def test_a_number_that_changes_with_every_level_changes_no_draft(
    model: HFTarget, head: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guesses of a level with streams are left where the next one has none, and made again later."""
    turns = cycle([3, 0, 1, 0, 0, 2, 3, 3])
    monkeypatch.setattr(StreamCounts, "count", lambda self, kind: min(next(turns), kind.most))
    monkeypatch.setattr(StreamCounts, "note", lambda *of: None)
    drafting = Drafting(model, head)
    for several in (1, 3):
        for temperature in (0.0, 0.8, 3.0):
            drafting.agree(10, several=several, temperature=temperature, seed=7)


def test_without_streams_the_model_does_no_more_than_alone(
    model: HFTarget, head: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same forwards over the same rows, no states of layers, and no second pass."""
    monkeypatch.setattr(StreamCounts, "count", lambda self, kind: 0)
    monkeypatch.setattr(StreamCounts, "note", lambda *of: None)
    asked, honest = list[tuple[list[int], object]](), HFTarget.submit

    def submitted(self: HFTarget, requests: Sequence[Any]) -> Any:
        asked.extend((each.tokens.tolist(), each.want) for each in requests)
        return honest(self, requests)

    monkeypatch.setattr(HFTarget, "submit", submitted)
    monkeypatch.setattr(HFTarget, "streamed", lambda *of: pytest.fail("streams are computed"))
    drafting = Drafting(model, head)
    works = []
    for drafter in (drafting.plain, drafting.ours):
        state = drafter.open(context_of(tokens(9, 2).tolist(), temperature=1.0, seed=1))
        del asked[:]
        drafter.propose([Ask(state, Budget(6, 6))])
        works.append(list(asked))
    assert works[0] == works[1]
    assert len(works[0]) == 6


def test_no_clock_decides_where_drafts_are_sampled(model: HFTarget, head: Path) -> None:
    """Under the rejection rule the laws of a draft are a part of the text's."""
    drafting = Drafting(model, head, clock := MadeUp(FASTEST["three"]))
    drafting.agree(8, hidden=True, temperature=1.0, seed=3)
    assert set(clock.used) == {0}
    drafting.agree(2 * BLOCK, hidden=True)
    assert 1 in clock.used, "a greedy draft is no sample"


@pytest.mark.parametrize(("several", "most"), [(1, 3), (3, 2), (9, 1)])
def test_a_batch_has_no_more_than_the_paper_gives_it(model: HFTarget, head: Path, several: int, most: int) -> None:
    drafting = Drafting(model, head, clock := MadeUp(FASTEST["three"]))
    drafting.agree(6 if several > 3 else 10, several=several, temperature=1.0)
    assert set(clock.used) == set(range(most + 1))


# --- what is kept ---

KIND = DraftKind(whole=True, texts=1, depth=3, heat=2, most=3)


def settle(found: StreamCounts, kind: DraftKind, seconds: Mapping[int, float]) -> int:
    """Drafts until its trial is over."""
    for drafts in count():
        streams = found.count(kind)
        if not tries(found, kind):
            return drafts
        found.note(kind, streams, 7.0, seconds[streams])
    raise AssertionError


def test_the_next_program_begins_with_what_is_known_and_tries_ever_more_seldom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [1e9]
    monkeypatch.setattr(time, "time", lambda: now[0])
    assert settle(StreamCounts("one"), KIND, FASTEST["one"]) <= 4 * (MOST + MOST // BLOCK * SETTLING + BLOCK)
    again = StreamCounts("one")
    assert (again.count(KIND), tries(again, KIND)) == (1, False)
    assert StreamCounts("another").count(KIND) == 0
    other = StreamCounts("one")
    greedy = KIND._replace(heat=0)
    assert (other.count(greedy), tries(other, greedy)) == (0, True)
    tried_at = [0.0]
    for minutes in (5, 11, 60, 100, 600, 6000, 60000):
        now[0] = 1e9 + 60 * minutes
        if settle(StreamCounts("one"), KIND, FASTEST["none"]):
            tried_at.append(minutes)
    assert tried_at == [0, 11, 100, 6000, 60000], "each waits eight times as long"
    assert StreamCounts("one").count(KIND) == 0


def test_short_programs_share_a_trial(tmp_path: Path) -> None:
    """Each drafts for one text, and goes on where the one before it has stopped."""
    programs = 0
    while True:
        found = StreamCounts("one")
        streams = found.count(KIND)
        if not tries(found, KIND):
            break
        programs += 1
        for _ in range(25):
            found.note(KIND, streams, 7.0, FASTEST["one"][streams])
            streams = found.count(KIND)
    assert streams == 1
    assert 2 < programs < 12


def test_a_program_that_is_slower_leaves_another_ones_result() -> None:
    """Two programs try at once. One has found the best number; the other is stopped before it has."""
    quick, slow = StreamCounts("one"), StreamCounts("one")
    slow.note(KIND, slow.count(KIND), 7.0, 1.0)
    settle(quick, KIND, FASTEST["one"])
    for _ in range(2 * 4 * BLOCK):
        streams = slow.count(KIND)
        slow.note(KIND, streams, 7.0, 1.0)
    assert tries(slow, KIND), "it has found nothing"
    assert StreamCounts("one").count(KIND) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"tokens": [[1.0], [], []]},
        {"seconds": [[0.0], [], [], []], "tokens": [[1.0], [], [], []]},
        {"leader": 9},
        {"out": [0]},
        {"out": [1], "way": 1},
        {"out": [2, 2]},
        {"out": [4]},
        {"ways": -1},
        {"way": "x"},
    ],
)
def test_a_damaged_trial_is_begun_again(wrong: dict[str, Any]) -> None:
    found = StreamCounts("one")
    for _ in range(2 * BLOCK):
        found.note(KIND, streams := found.count(KIND), 7.0, 1.0 + streams)
    path = cached_path(trials.FOLDER, found._choices[KIND].setup)
    assert path is not None
    said = json.loads(path.read_text())
    assert len(said["trial"]["seconds"][0]) == BLOCK - SETTLING
    again = StreamCounts("one")
    again.count(KIND)
    assert again._choices[KIND].trial.seconds[0]  # type: ignore[union-attr]
    said["trial"] |= wrong
    path.write_text(json.dumps(said))
    new = StreamCounts("one")
    assert new.count(KIND) == 0
    assert not new._choices[KIND].trial.seconds[0]  # type: ignore[union-attr]


def test_a_long_program_tries_again_too(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1e9]
    monkeypatch.setattr(time, "time", lambda: now[0])
    found = StreamCounts("one")
    settle(found, KIND, FASTEST["none"])
    now[0] += 1e6
    for _ in range(LOOKED):
        found.count(KIND)
    assert tries(found, KIND)
    settle(found, KIND, FASTEST["three"])
    assert found.count(KIND) == 3


def test_kinds_of_drafts_are_told_apart(model: HFTarget, head: Path) -> None:
    drafter = Drafting(model, head).ours

    def kind(depth: int = 6, texts: int = 1, **settings: Any) -> DraftKind:
        state = drafter.open(context_of(tokens(9, 2).tolist(), **settings))
        growth = drafter.growth(Ask(state, Budget(depth, depth)))
        return DraftKind.of(growth, texts, 3, whole=False)

    assert kind(temperature=0.0).heat == 0
    assert kind(temperature=0.8) == kind(temperature=1.0) != kind(temperature=0.3)
    assert kind(5) == kind(6) != kind(4) == kind(3) != kind(2)
    assert kind(1).depth == 0
    assert kind(texts=2) == kind(texts=3) != kind(texts=4)


# --- compiled, and in the process of `mirror` ---


compiles = pytest.mark.skipif(kernels.without_numba() is not None, reason="nothing is compiled here")


def compiled() -> HFTarget:
    target = HFTarget(build("llama").requires_grad_(False))
    target.compiles = True
    return prepare(target)


@compiles
def test_compiled_drafts_without_streams_are_the_plain_chains(head: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = compiled()
    asked, honest = list[list[Chain]](), HFTarget.drafted

    def drafted(self: HFTarget, chains: Sequence[Chain]) -> Any:
        asked.append(list(chains))
        return honest(self, chains)

    monkeypatch.setattr(HFTarget, "drafted", drafted)
    drafting = Drafting(target, head, clock := MadeUp(FASTEST["none"]))
    while not clock.settled:
        drafting.agree(20, temperature=0.8, seed=1)
    assert set(clock.used) == {0, 1, 2, 3}
    assert len(clock.used) >= 4 * FEW, "a draft is one piece of work"
    del asked[:]
    drafting.agree(4, temperature=0.8, seed=2)
    chains = [chain for call in asked for chain in call]
    assert len(chains) == 8, "one call for each draft"
    assert all(chain.streams is None and chain.guesses == 0 for chain in chains)


class Link:
    """Takes what a worker says."""

    def __init__(self) -> None:
        self.windows, self.forwards = list[Window](), 0

    def send_bytes(self, packed: bytes) -> None:
        message = Message.of(packed)
        self.forwards += message.kind is MessageKind.FORWARD
        if message.kind is MessageKind.WINDOW:
            self.windows.append(Window.of(message.said, 97, 5, "mirror"))


def windows_of(model: HFTarget, head: Path | None, rounds: int) -> tuple[list[Window], Worker]:
    """Windows of the worker behind outcomes of which one comes, or none, after some forwards."""
    link: Any = Link()
    worker = Worker(link, queue.SimpleQueue(), DraftModel(model), None if head is None else str(head))
    text = tokens(9, 2).tolist()
    facts = facts_of(context_of(text, temperature=1.0, seed=3), 97, DraftShape(length=5), "mirror")
    worker._hear(Message(MessageKind.OPEN, 1, 9, facts | {"prompt": text}))
    follows, coins = list[int](), np.random.default_rng(1)
    for number in range(rounds):
        worker._hear(Message(MessageKind.GO, 1, len(text), Go(5, np.array(follows, np.int64)).said()))
        while worker.busy(1):
            worker.work()
        draft = link.windows[-1].tree
        stops, proxies = np.array([-1, 0, 1]), coins.integers(0, 97, 3)
        worker._hear(Message(MessageKind.AHEAD, 1, 9, Ahead(5, draft.tokens, draft.parents, stops, proxies).said()))
        for _ in range(number % 4):
            worker.work()
        follows = [*draft.tokens[:2].tolist(), int(proxies[2] if number % 3 else 5)]
    return link.windows, worker


@pytest.mark.parametrize("of", ["none", "three"])
def test_the_process_of_mirror_chooses_too(
    model: HFTarget, head: Path, of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, made = MadeUp(FASTEST[of]), StreamingNetwork.__init__

    def begun(self: StreamingNetwork, *given: Any) -> None:
        made(self, *given)
        clock.over(self)

    alone, _ = windows_of(model, None, 60)
    monkeypatch.setattr(StreamingNetwork, "__init__", begun)
    monkeypatch.setattr(counts, "MOST", 20)
    ours, worker = windows_of(model, head, 60)
    assert [each.tree.tokens.tolist() for each in ours] == [each.tree.tokens.tolist() for each in alone]
    network: Any = worker._network
    assert set(clock.used) == {0, 1, 2, 3}
    assert network.counts.count(DraftKind(False, 1, 3, 2, 3)) == BEST[of]


@compiles
@pytest.mark.parametrize("streams", [False, True])
def test_a_window_that_is_begun_when_it_is_waited_for_is_one_call(
    head: Path, streams: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The windows are those that grow level by level. Others go on that way, for a message may end them."""
    target, calls, honest = compiled(), list[int](), HFTarget.drafted

    def drafted(self: HFTarget, chains: Sequence[Chain]) -> Any:
        calls.extend(chain.depth for chain in chains)
        return honest(self, chains)

    given = head if streams else None
    monkeypatch.setattr(StreamCounts, "count", lambda self, kind: 2 if kind.whole else 0)
    monkeypatch.setattr(StreamCounts, "note", lambda *of: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HFTarget, "drafted", lambda *of: None)
        alone, _ = windows_of(target, None, 12)
    monkeypatch.setattr(HFTarget, "drafted", drafted)
    ours, worker = windows_of(target, given, 12)
    assert [each.tree.tokens.tolist() for each in ours] == [each.tree.tokens.tolist() for each in alone]
    anew = [each for each in ours if each.ready < 0]
    assert calls == [5] * len(anew)
    assert 0 < len(anew) < len(ours)
    assert all(each.forwards > 0 for each in ours)
    link: Any = worker._link
    ahead = sum(one.forwards for one, other in zip(ours, alone, strict=True) if one.ready >= 0)
    assert 0 < ahead <= link.forwards
