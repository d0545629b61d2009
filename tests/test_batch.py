"""Many sequences at once: each is the one that the serial driver writes, and none leaves anything behind."""

import gc
import inspect
import itertools
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from batches import STEPS, WARM, Spied, Wish, any_wish, check_rows, finish, told
from clock import MadeClock
from engine import METHODS, SIZE, Erratic, Watched, habitual
from families import VOCAB
from paceline.drafters import Budget, Plain, Seen, make_drafter
from paceline.drafters.compose import Union
from paceline.engine.batch import Batch
from paceline.engine.loop import Session
from paceline.planning.base import Cut, Draft, Outcome, Planner, Room
from paceline.targets.table import TableTarget
from paceline.tree import DraftTree
from scoring import target_of
from thinning import crossed, thinned

EVERY_METHOD = pytest.mark.parametrize("method", METHODS)


# --- the same sequences -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "shared"), crossed(METHODS, [False, True]))
def test_sequences_are_those_of_the_serial_driver(method: str, shared: bool) -> None:
    """Tokens, reasons, log-probabilities, sources and rounds; joining late, waiting for seats, leaving early."""
    target = TableTarget(habitual(), SIZE)
    for seed in range(5):
        random = np.random.default_rng(seed)
        wishes = [any_wish(random) for _ in range(9)]
        drafters = [METHODS[method]()] * 9 if shared else [METHODS[method]() for _ in wishes]
        sessions = [wish.session(target, drafter) for wish, drafter in zip(wishes, drafters, strict=True)]
        given: dict[Session, list[Any]] = {session: [] for session in sessions}
        leaves = {session: int(random.integers(1, 5)) for session in sessions if random.random() < 0.3}
        late = iter(sessions)
        ended = set[Session]()
        with Batch(target, at_once=[1, 2, 4, None][seed % 4], prompt_rows=int(random.integers(1, 16))) as batch:
            for _ in range(STEPS):
                for session in itertools.islice(late, int(random.integers(3))):
                    batch.join(session)
                for turn in batch.step():
                    assert turn.error is None
                    assert turn.ended == (turn.session.context.finish is not None)
                    given[turn.session] += turn.emissions
                    ended |= {turn.session} if turn.ended else set()
                    if len(given[turn.session]) > leaves.get(turn.session, 99) and not turn.ended:
                        batch.leave(turn.session)
                        check_rows(turn.session)
        for session, wish in zip(sessions, wishes, strict=True):
            alone = wish.alone(target, METHODS[method]())
            written = given[session]
            assert written == session.emissions
            assert told(session)[0] == told(alone)[0][: len(written)]
            if session in ended:
                assert told(session) == told(alone)
            else:
                assert session in leaves
                assert len(written) > leaves[session]
        assert ended


@pytest.mark.parametrize("name", thinned(["gemma2", "gpt_oss", "falcon", "bloom"], every=2))
def test_so_it_is_with_models_of_every_attention(name: str) -> None:
    """With windows, with sinks and experts, through masks, and chains only; beginnings are copied on the way."""
    target, drafter = target_of(name), Union([make_drafter("lookup"), Erratic(VOCAB, 3)])
    random, text = np.random.default_rng(1), np.arange(60) * 7 % 13 + 1
    wishes = [
        Wish([*text[: random.integers(60)].tolist(), seed], sampling={"temperature": seed % 2, "seed": seed})
        for seed in range(1, 9)
    ]
    sessions = [wish.session(target, drafter) for wish in wishes]
    batch = Batch(target, at_once=5, prompt_rows=30)
    for session in sessions:
        batch.join(session)
        batch.step()
    finish(batch)
    for session, wish in zip(sessions, wishes, strict=True):
        alone = wish.alone(target, drafter)
        assert session.context.emitted.tolist() == alone.context.emitted.tolist()
    assert max(session.reused for session in sessions) > 20


def test_who_left_may_come_back_and_goes_on() -> None:
    target, drafter = Spied(), Watched(Erratic())
    alone = Wish().alone(target, Erratic())
    session = Wish().session(target, drafter)
    batch, given = Batch(target), list[Any]()
    while session.context.finish is None:
        batch.join(session)
        given += [emission for turn in batch.step() for emission in turn.emissions]
        batch.leave(session)
    assert given == session.emissions
    assert told(session) == told(alone)
    assert drafter.opened == drafter.closed > 1


# --- nothing is left behind ---------------------------------------------------------------------------------


def schedule(seed: int, flows: list[Any]) -> list[Any]:
    """Joins, cancels, stops and failures in any order; weak references to all that took part."""
    random = np.random.default_rng(seed)
    target, at_once = Spied(), [1, 3, 8, None][seed % 4]
    names = random.choice(list(METHODS), 3)
    errors = random.choice(["open", "propose", "observe", "", "", ""], 3)
    drafters = [
        Watched(METHODS[name](), fails=fails, after=int(random.integers(6)))
        for name, fails in zip(names, errors, strict=True)
    ]
    sessions = list[Session]()
    batch = Batch(target, at_once=at_once, prompt_rows=int(random.integers(1, 20)))
    failed = set[Session]()
    for _ in range(int(random.integers(3, 25))):
        if random.random() < 0.6:
            sessions.append(any_wish(random).session(target, drafters[random.choice(3)]))
            batch.join(sessions[-1])
        if sessions and random.random() < 0.3:
            batch.leave(sessions[random.choice(len(sessions))])
        failed |= {turn.session for turn in batch.step() if turn.error is not None}
    if random.random() < 0.5:
        finish(batch)
    batch.close()
    assert len(batch) == 0
    assert batch.sessions == batch.step() == []
    assert max(map(len, target.seen), default=0) <= (at_once or 99)
    assert all(drafter.opened == drafter.closed for drafter in drafters)
    assert {inspect.getgeneratorstate(flow) for flow in flows} <= {inspect.GEN_CLOSED}
    assert len(flows) >= sum(bool(session.emissions) for session in sessions)
    for session in sessions:
        if session not in failed:
            check_rows(session)
    return [weakref.ref(thing) for thing in [batch, *drafters, *sessions]]


@pytest.mark.parametrize("first", thinned(range(0, 200, 20), every=5))
def test_no_schedule_of_joins_cancels_and_stops_leaves_anything(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    held, flow = list[Any](), Session.flow

    def holding(session: Session) -> Any:
        held.append(flow(session))
        return held[-1]

    monkeypatch.setattr(Session, "flow", holding)
    references = list[Any]()
    for seed in range(first, first + 20):
        references += schedule(seed, held)
        held.clear()
    gc.collect()
    assert not [reference for reference in references if reference() is not None]


# --- who is asked what --------------------------------------------------------------------------------------


class Noted(Erratic, Planner):
    """Notes how many are asked for at once."""

    def __init__(self, asked: Counter[tuple[str, int]]) -> None:
        super().__init__()
        self.asked = asked

    def propose(self, asks: Sequence[Any]) -> list[DraftTree]:
        self.asked["propose", len(asks)] += 1
        return super().propose(asks)

    def observe(self, seen: Sequence[Seen]) -> None:
        self.asked["observe", len(seen)] += 1

    def plan(self, rooms: Sequence[Room]) -> list[Budget]:
        self.asked["plan", len(rooms)] += 1
        return [Budget(3, room.depth) for room in rooms]

    def cut(self, drafts: Sequence[Draft]) -> list[Cut]:
        self.asked["cut", len(drafts)] += 1
        return super().cut(drafts)

    def review(self, outcomes: Sequence[Outcome]) -> None:
        self.asked["review", len(outcomes)] += 1


def test_everyone_is_asked_once_a_step_for_all() -> None:
    target = Spied()
    one, other = Noted(Counter()), Noted(Counter())
    wish = Wish([1], ending={"max_new_tokens": 99})
    with Batch(target) as batch:
        for drafter, planner in ((one, one), (one, other), (other, one), (one, one), (other, one)):
            batch.join(wish.session(target, drafter, planner))
        for step in range(1, 9):
            batch.step()
            assert one.asked == {
                **{(what, 4): step for what in ("plan", "review")},
                **{(what, 3): step for what in ("propose", "observe")},
                ("cut", 4): step,
            }
            assert other.asked == {
                **{(what, 1): step for what in ("plan", "cut", "review")},
                **{(what, 2): step for what in ("propose", "observe")},
            }
            assert [len(forward) for forward in target.seen] == [5] * step


def test_what_a_forward_taught_is_told_of_all_its_sequences_at_once() -> None:
    """Also where some accept more of their drafts than others, and so ask for more laws."""
    everyone, emitted = Noted(Counter()), Counter[int]()
    target = TableTarget(habitual(), SIZE)
    with Batch(target) as batch:
        for seed in range(5):
            wish = Wish([1, seed], sampling={"temperature": 1.0, "seed": seed}, ending={"max_new_tokens": 99})
            batch.join(wish.session(target, everyone, everyone))
        while {turn.session for turn in batch.step()} < set(batch.sessions):
            pass
        everyone.asked.clear()
        for _ in range(12):
            emitted.update(len(turn.emissions) for turn in batch.step())
        assert len(emitted) > 1
        assert {(what, 5): 12 for what in ("plan", "propose", "cut", "observe", "review")} == everyone.asked


@pytest.mark.parametrize(("chunk", "limit", "at_most"), [(4, 10, 8), (4, 4, 4), (9, 4, 9), (3, 99, 12)])
def test_readers_do_not_hold_up_writers_nor_each_other_for_ever(chunk: int, limit: int, at_most: int) -> None:
    target = Spied(prefill_chunk=chunk)
    writers = [Wish([token], ending={"max_new_tokens": 500}).session(target, Plain()) for token in range(3)]
    readers = [Wish([token] * 37).session(target, Plain()) for token in range(4)]
    with Batch(target, prompt_rows=limit) as batch:
        for session in (*writers[:2], *readers, writers[2]):
            batch.join(session)
        for step in itertools.count(1):
            first = next((session for session in readers if session.rows.committed < 36), None)
            if first is None:
                break
            before = first.rows.committed
            batch.step()
            read = min(before + chunk, 36)
            assert first.rows.committed == read + (read == 36)  # the first token comes with the end of the prompt
            assert [len(session.emissions) for session in writers] == [step] * 3
    assert max(target.prompt_rows) == at_most
    assert sum(target.prompt_rows) == 4 * 36


@pytest.mark.parametrize("at_once", [1, 2, None])
def test_those_left_out_of_steps_give_their_seats_up_and_go_on_later(at_once: int | None) -> None:
    random, target, drafter = np.random.default_rng(3), Spied(), Watched(Erratic())
    wishes = [replace(WARM, prompt=[number] * 9, sample=number) for number in range(6)]
    sessions = [wish.session(target, drafter) for wish in wishes]
    batch = Batch(target, at_once=at_once)
    for session in sessions:
        batch.join(session)
    together = 0
    while len(batch):
        out = {session for session in sessions if random.random() < 0.5}
        before = {session: len(session.emissions) for session in out}
        written = [turn.session for turn in batch.step(out)]
        assert before == {session: len(session.emissions) for session in out}
        assert len(written) <= (at_once or 6)
        together = max(together, len(batch.sessions) - len(batch._waiting))
    assert [told(session) for session in sessions] == [told(wish.alone(target, Erratic())) for wish in wishes]
    assert together > (at_once or 5), "more were begun than had seats"
    assert drafter.opened == drafter.closed == 6
    batch.step(sessions)


# --- time ---------------------------------------------------------------------------------------------------


def test_pauses_between_steps_are_not_counted(clock: MadeClock) -> None:
    target = Spied(prefill_chunk=3)
    sessions = [Wish([number] * 9, nodes=number).session(target, Erratic()) for number in range(4)]
    batch, inside = Batch(target, prompt_rows=6), 0.0
    for number in itertools.count():
        clock.sleep(1000)
        if number < 8 and number % 2:
            batch.join(sessions[number // 2])
        began = clock()
        batch.step({sessions[number % 5]} if number > 8 and number % 5 < 4 else ())
        inside += clock() - began
        if number > 8 and not len(batch):
            break
    for session in sessions:
        parts = [(r.seconds_draft, r.seconds_score, r.seconds_read, r.seconds_judge) for r in session.rounds]
        spent = [session.seconds_prefill, *itertools.chain(*parts)]
        assert min(spent) >= 0
        assert 0 < sum(spent) < inside < 1000
