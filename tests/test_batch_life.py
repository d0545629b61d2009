"""A batch's life: who fails, who is gone, and who begins like another one."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from batches import WARM, Spied, Wish, finish, told
from engine import PROMPT, Erratic, Shown, Watched
from paceline.context import Ints
from paceline.drafters import Budget, Drafter, Plain, make_drafter
from paceline.engine.batch import Batch, Turn
from paceline.engine.loop import Session
from paceline.errors import DrafterError
from paceline.planning.base import Room
from paceline.planning.fixed import Fixed
from paceline.targets.base import Target
from paceline.targets.hf.target import HFTarget
from paceline.targets.lending import WORTH_WAITING
from paceline.tree import EMPTY, DraftTree
from scoring import filled, random_tree, score, target_of, tokens
from test_rope_switch import SWITCH, every_kind, switching

# --- failures -----------------------------------------------------------------------------------------------


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*given: Any) -> Any:
        raise error

    return fail


def check_goes_on(batch: Batch, target: Target) -> None:
    """After whatever happened the batch writes as if nothing had."""
    batch.join(again := Wish().session(target, Erratic()))
    assert finish(batch)[-1].ended
    assert told(again) == told(Wish().alone(target, Erratic()))


def failing(result: Callable[..., Any]) -> Callable[..., Any]:
    """A processor or a criterion that breaks down at its fourth token."""

    def fail(*given: Any) -> Any:
        if given[0].shape[-1] == len(PROMPT) + 3:
            raise OSError("callback")
        return result(*given)

    return fail


class Sullen(Watched):
    """Fails to close, or to answer for all."""

    def __init__(self, *, closes: bool = True, few: int = 0) -> None:
        super().__init__(Erratic())
        self._closes, self._few = closes, few

    def propose(self, asks: Sequence[Any]) -> list[DraftTree]:
        return super().propose(asks)[: len(asks) - self._few]

    def close(self, state: Any) -> None:
        super().close(state)
        if not self._closes:
            raise OSError("will not close")


class Planless(Fixed):
    def plan(self, rooms: Sequence[Room]) -> list[Budget]:
        if len(rooms[0].context) > len(PROMPT) + 3:
            raise OSError("no plan")
        return super().plan(rooms)


BROKEN_WISHES = {
    "criterion": replace(WARM, ending={"criteria": (failing(lambda text: False),)}),
    "processor": replace(WARM, processors=lambda: (failing(lambda ids, row: row),)),
}
BROKEN_DRAFTERS: dict[str, Callable[[], Watched]] = {
    "open": lambda: Watched(Erratic(), fails="open"),
    "propose": lambda: Watched(Erratic(), fails="propose", after=2),
    "observe": lambda: Watched(Erratic(), fails="observe", after=3),
    "few": lambda: Sullen(few=1),
    "close": lambda: Sullen(closes=False),
}
PLACE = re.compile(r" \([\w.]+, line \d+\)")
FAILURES = {
    "criterion": (1, "the stopping criterion failing.<locals>.fail failed: OSError: callback"),
    "processor": (1, "the logits processor failing.<locals>.fail failed: OSError: callback"),
    "adopt": (1, "there is not enough memory for the KV rows of this text; write fewer texts at once, or shorter ones"),
    "open": (2, "drafter 'watched' failed in open: OSError: open"),
    "propose": (2, "drafter 'watched' failed in propose: OSError: propose"),
    "observe": (2, "drafter 'watched' failed in observe: OSError: observe"),
    "few": (2, "drafter 'watched' was asked to propose for 2 texts and answered for 1"),
    "close": (2, "drafter 'watched' failed in close: OSError: will not close"),
    "planner": (2, "planner 'Planless' failed in plan: OSError: no plan"),
    "target": (4, "breaks down"),
}


@pytest.mark.parametrize("kind", FAILURES)
def test_an_error_belongs_to_whom_it_happened_to(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four, the first two share a drafter and a planner and the first has callbacks, the others share another."""
    target, (count, said) = Spied(), FAILURES[kind]
    drafter = BROKEN_DRAFTERS.get(kind, lambda: Watched(Erratic()))()
    beside = Watched(make_drafter("lookup"))
    planner = Planless(6) if kind == "planner" else Fixed(6)
    first = BROKEN_WISHES.get(kind, WARM).session(target, drafter, planner)
    sessions = [first, WARM.session(target, drafter, planner), *(WARM.session(target, beside) for _ in range(2))]
    if kind == "adopt":
        monkeypatch.setattr(first.rows, "_copy", raising(MemoryError("no memory")))
    batch, turns = Batch(target), list[Turn]()
    for pair in (sessions[2:], sessions[:2]):
        for session in pair:
            batch.join(session)
        turns += [turn for _ in range(3) for turn in batch.step()]
    if kind == "target":
        target.fails = OSError("breaks down")
    turns += finish(batch)
    errors = {turn.session: PLACE.sub("", str(turn.error)) for turn in turns if turn.error is not None}
    assert errors == dict.fromkeys(sessions[:count], said)
    for session in sessions:
        alone = told(WARM.alone(target, Erratic() if session.drafter is drafter else beside))
        given = [emission for turn in turns if turn.session is session for emission in turn.emissions]
        assert given == session.emissions
        assert told(session)[0] == alone[0][: len(given)]
        assert session in errors or told(session) == alone
    assert (drafter.opened, beside.opened) == (drafter.closed, beside.closed)
    check_goes_on(batch, target)


@pytest.mark.parametrize("where", ["open", "propose", "observe", "criterion", "target"])
def test_an_interrupt_ends_them_all(where: str) -> None:
    """And is what the caller sees, whatever goes wrong in closing."""
    target, stubborn = Spied(), Sullen(closes=False)
    drafter = Watched(Erratic(), fails=where, after=2 * (where != "open"), error=KeyboardInterrupt)
    wish = replace(WARM, ending={"criteria": (raising(KeyboardInterrupt()),)}) if where == "criterion" else WARM
    batch = Batch(target, at_once=2)
    for session in (WARM.session(target, stubborn), wish.session(target, drafter), WARM.session(target, Plain())):
        batch.join(session)
    if where == "target":
        target.fails = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt) as caught:
        finish(batch)
    assert [PLACE.sub("", note) for note in caught.value.__notes__] == [
        f"and then, closing the batch: {FAILURES['close'][1]}"
    ]
    assert stubborn.opened == stubborn.closed == 1
    assert drafter.opened == drafter.closed == (where != "open")
    assert len(batch) == 0
    check_goes_on(batch, target)


def test_all_are_closed_also_where_one_fails_to_close() -> None:
    target, stubborn, beside = Spied(), Sullen(closes=False), Watched(Plain())
    sessions = [WARM.session(target, drafter) for drafter in (stubborn, stubborn, beside)]
    batch = Batch(target)
    for session in sessions:
        batch.join(session)
    batch.step()
    with pytest.raises(DrafterError, match="will not close"):
        batch.leave(sessions[0])
    assert batch.sessions == sessions[1:]
    with pytest.raises(DrafterError, match="will not close"):
        batch.close()
    assert (stubborn.closed, beside.closed, len(batch)) == (2, 1, 0)
    check_goes_on(batch, target)


def test_a_criterion_may_have_others_leave() -> None:
    target, drafter = Spied(), Watched(Erratic())
    batch = Batch(target)

    def first_wins(tokens: Ints) -> bool:
        if len(tokens) == len(PROMPT) + 5:
            for session in (before, after):
                batch.leave(session)
        return False

    before, after = WARM.session(target, drafter), WARM.session(target, Plain())
    winner = replace(WARM, ending={"criteria": (first_wins,)}).session(target, drafter)
    for session in (before, winner, after):
        batch.join(session)
    finish(batch)
    alone = WARM.alone(target, Erratic())
    assert told(winner) == told(alone)
    for session in (before, after):
        text = session.context.emitted.tolist()
        assert 0 < len(text) < 12
        assert text == alone.context.emitted.tolist()[: len(text)]
    assert drafter.opened == drafter.closed == 2


def test_who_cannot_join_is_told_and_who_is_not_there_may_leave() -> None:
    target = Spied()
    seated, waiting, gone = (WARM.session(target, Plain()) for _ in range(3))
    with pytest.raises(ValueError, match="a batch writes at least 1 sequence at once, not 0"):
        Batch(target, at_once=0)
    batch = Batch(target, at_once=1)
    for session in (seated, waiting):
        batch.join(session)
        batch.step()
    assert batch.sessions == [seated, waiting]
    for session in (seated, waiting):
        with pytest.raises(ValueError, match="in the batch already; make a new one"):
            batch.join(session)
    with pytest.raises(ValueError, match="writes with one model, table; open another"):
        batch.join(WARM.session(Spied(), Plain()))
    batch.leave(gone)
    finish(batch)
    batch.leave(seated)
    assert told(seated) == told(waiting) == told(WARM.alone(target, Plain()))


# --- common beginnings --------------------------------------------------------------------------------------


LONG = [token % 5 for token in range(41)]


def samples(target: Target, count: int, drafter: Drafter) -> list[Session]:
    return [replace(WARM, prompt=LONG, sample=number).session(target, drafter) for number in range(count)]


@pytest.mark.parametrize(("chunk", "held"), [(99, 40), (20, 40), (4, 28)])
def test_samples_of_a_prompt_read_it_once(chunk: int, held: int) -> None:
    """But for a rest that is not worth waiting for."""
    target = Spied(prefill_chunk=chunk)
    batch = Batch(target)
    for session in samples(target, 5, Plain()):
        batch.join(session)
    turns = finish(batch)
    assert sum(target.prompt_rows) == 40 + 4 * (40 - held)
    assert {turn.session.reused for turn in turns} == {0, held}
    assert 40 - held < WORTH_WAITING


@pytest.mark.parametrize("how", ["leaves", "fails"])
def test_nobody_waits_for_a_reader_who_is_gone(how: str) -> None:
    target = Spied(prefill_chunk=20)
    reader = replace(WARM, prompt=LONG).session(target, Watched(Plain(), fails="observe" if how == "fails" else ""))
    others = samples(target, 4, Erratic())
    batch = Batch(target)
    for session in (reader, *others):
        batch.join(session)
    turns = batch.step()
    assert target.prompt_rows == [20]
    batch.leave(reader)
    assert [turn.session for turn in turns] == [reader] * (how == "fails")
    finish(batch)
    assert sum(target.prompt_rows) == 20 + 40
    for number, session in enumerate(others):
        assert told(session) == told(replace(WARM, prompt=LONG, sample=number).alone(target, Erratic()))


def test_a_drafter_that_needs_the_prompt_is_shown_all_of_it() -> None:
    """Whatever others have read; so it waits for nobody."""
    target, drafter = Spied(prefill_chunk=20), Shown()
    (plain,), (*early, late) = samples(target, 1, Plain()), samples(target, 3, drafter)
    batch = Batch(target)
    for session in (plain, *early):
        batch.join(session)
    batch.step()
    assert [len(shown) for shown in drafter.shown.values()] == [20, 20]
    batch.step()
    late.rows.adopt(plain.rows, 40)
    batch.join(late)
    finish(batch)
    assert len(drafter.shown) == 3
    for context, shown in drafter.shown.items():
        assert shown == context.tokens[:-1].tolist()


def check_adopted(target: HFTarget, text: Ints, count: int) -> None:
    """A copy finds, to the bit, what the rows find that it was copied from, and neither disturbs the other."""
    rows, copy = filled(target, text), filled(target, tokens(50, 9))
    copy.adopt(rows, count)
    rows.rewind(count)
    copy.check()
    for end in (1, SWITCH - 1, SWITCH + 1, len(text)):
        assert copy.common_prefix(text[:end]) == rows.common_prefix(text[:end])
    drafts = target.reach(count)
    size = 6 if drafts.depth is None else min(6, drafts.depth)
    tree = random_tree(1, size) if size and drafts.trees else EMPTY
    found = score(target, rows, 3, tree)
    assert torch.equal(score(target, copy, 3, tree), found)
    copy.keep([0])
    found = score(target, copy, 5)
    score(target, rows, 8)
    rows.keep([0])
    assert torch.equal(score(target, copy, 5), found)
    assert rows.tokens.tolist() == [*text[:count], 8]


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2"])
@pytest.mark.parametrize("count", [0, 1, 7, 31])
def test_adopted_rows_are_the_same_rows(name: str, count: int) -> None:
    check_adopted(target_of(name), tokens(31), count)


@every_kind
@pytest.mark.parametrize("count", [5, SWITCH - 1, SWITCH, SWITCH + 6])
def test_so_are_rows_that_turn(kind: str, count: int) -> None:
    target = switching(kind)
    for length in {count, SWITCH + 6}:
        check_adopted(target, tokens(length), count)


@every_kind
def test_texts_across_the_switch_are_those_of_the_serial_driver(kind: str) -> None:
    """Also where a beginning is held by a text on the other side of it."""
    target, text = switching(kind), tokens(40, 3)
    wishes = [Wish(text[:n].tolist(), ending={"max_new_tokens": 20}) for n in (5, 20, 23, 24, 25, 30, 40)]
    batch = Batch(target)
    sessions = [wish.session(target, make_drafter("lookup")) for wish in wishes * 2]
    for session in sessions:
        batch.join(session)
    for _ in sessions:
        batch.step()
    assert all(session.emissions for session in sessions), "nobody waits for a text to end"
    finish(batch)
    for session, wish in zip(sessions, wishes * 2, strict=True):
        alone = wish.alone(target, make_drafter("lookup"))
        assert session.context.tokens.tolist() == alone.context.tokens.tolist()
