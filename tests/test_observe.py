"""Observers see every round of their text once, change nothing, and cost the text no time of its own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest

from batches import Wish, check_rows, finish, told
from clock import MadeClock
from engine import METHODS, PROMPT, Erratic, Watched, tabled
from paceline import LanguageModel, Observed
from paceline.engine.batch import Batch
from paceline.engine.loop import Session
from paceline.engine.serial import run
from paceline.errors import CallbackError
from paceline.targets.base import Target
from paceline.verify import Rule

WISHES = (
    Wish(sampling={"temperature": 1.0}),
    Wish(prompt=[*PROMPT, *PROMPT], nodes=0),
    Wish(prompt=[3], rule=Rule.REJECTION, ending={"max_new_tokens": 5}),
    Wish(rule=Rule.REJECTION, sampling={"temperature": 1.0, "seed": 2}, ending={"eos": frozenset({4})}),
    Wish(prompt=[5, 1], ending={"max_new_tokens": 1}),
)


class Log(list[Observed]):
    """An observer that keeps what it saw."""

    def __call__(self, seen: Observed) -> None:
        self.append(seen)


def watched(target: Target, method: str) -> list[tuple[Session, Log]]:
    """Texts about to be written, each with an observer of its own."""
    sessions = [wish.session(target, METHODS[method]()) for wish in WISHES]
    logs = [Log() for _ in sessions]
    for session, log in zip(sessions, logs, strict=True):
        session.observer = log
    return list(zip(sessions, logs, strict=True))


def check(session: Session, log: Sequence[Observed]) -> None:
    """Every record once and in order, and with it what the round drafted and emitted."""
    assert [id(seen.round) for seen in log] == [id(record) for record in session.rounds]
    assert all(seen.context is session.context for seen in log)
    assert [token for seen in log for token in seen.verdict.tokens] == session.context.emitted.tolist()
    for seen in log:
        assert seen.verdict.accepted == seen.round.accepted
        assert (seen.draft.drafted, seen.draft.depth) == (seen.round.drafted, seen.round.depth)
        assert len(seen.scores.tokens) == seen.round.rows == 1 + len(seen.draft)
    assert [seen.round.prefill for seen in log[1:]] == [False] * len(log[1:])
    assert log[0].round.prefill == (session.rule is Rule.COUPLED and session.context.prompt_length > 1)


@pytest.mark.parametrize("method", METHODS)
def test_every_round_is_seen_once_alone_and_in_a_batch(method: str) -> None:
    target = tabled()
    alone = watched(target, method)
    for session, log in alone:
        assert list(run(session)) == session.emissions
        check(session, log)
    with Batch(target, at_once=3) as batch:
        together = watched(target, method)
        for session, _ in together:
            batch.join(session)
        assert all(turn.error is None for turn in finish(batch))
    for (session, log), (same, _) in zip(together, alone, strict=True):
        check(session, log)
        assert told(session) == told(same)


@pytest.mark.parametrize("method", METHODS)
def test_a_text_is_the_same_without_an_observer(method: str) -> None:
    for wish, (session, _) in zip(WISHES, watched(tabled(), method), strict=True):
        list(run(session))
        assert told(session) == told(wish.alone(tabled(), METHODS[method]()))


def test_one_observer_may_watch_the_texts_of_a_batch() -> None:
    log = Log()
    how: dict[str, Any] = {"method": "lookup", "max_new_tokens": 9, "temperature": 1.0, "seed": 3}
    texts = LanguageModel(tabled()).generate_batch([PROMPT, PROMPT[:3]], n=2, observer=log, **how)
    written = [text.tokens for (*each,) in texts for text in each]
    seen: dict[int, list[int]] = {}
    for one in log:
        seen.setdefault(id(one.context), []).extend(one.verdict.tokens)
    assert sorted(seen.values()) == sorted(written)


def test_pieces_come_after_their_round_was_seen() -> None:
    log, count = Log(), 0
    for piece in LanguageModel(tabled()).stream(PROMPT, method="lookup", max_new_tokens=9, observer=log):
        count += piece.token is not None
        assert sum(len(seen.verdict.tokens) for seen in log) >= count
        assert log[-1].round.position + log[-1].round.emitted == len(log[-1].context)


def test_the_seconds_of_an_observer_count_for_no_round(clock: MadeClock) -> None:
    lm = LanguageModel(tabled())
    how: dict[str, Any] = {"method": "lookup", "planner": "fixed:4", "max_new_tokens": 12}
    lm.generate(PROMPT, **how)
    slow = lm.generate(PROMPT, observer=lambda seen: time.sleep(1000.0), **how)
    assert clock.now > 1000 * len(slow.rounds) > 3000
    assert slow.totals.seconds + slow.totals.seconds_prefill < 100


@pytest.mark.parametrize("first", [True, False])
def test_an_observer_that_raises_ends_its_own_text(first: bool) -> None:
    def forgetful(seen: Observed) -> None:
        if seen.round.prefill == first:
            raise KeyError("a slip")

    said = "the observer .*forgetful failed: KeyError: 'a slip'"
    target, drafters = tabled(), [Watched(Erratic()), Watched(Erratic())]
    faulty, sound = (Wish().session(target, drafter) for drafter in drafters)
    faulty.observer = forgetful
    with Batch(target) as batch:
        batch.join(faulty)
        batch.join(sound)
        errors = {turn.session: turn.error for turn in finish(batch) if turn.ended}
    assert isinstance(errors[faulty], CallbackError)
    assert errors[sound] is None
    assert told(sound) == told(Wish().alone(target, Erratic()))
    check_rows(faulty)
    lm, drafter = LanguageModel(target), Watched(Erratic())
    with pytest.raises(CallbackError, match=said):
        lm.generate(PROMPT, method=drafter, planner="fixed:4", observer=forgetful)
    assert [each.opened for each in (*drafters, drafter)] == [each.closed for each in (*drafters, drafter)] == [1, 1, 1]
    again = lm.generate(PROMPT, method="plain", max_new_tokens=12)
    assert again.cached_tokens > 0, "the rows were given back"
    assert again.tokens == sound.context.emitted.tolist()
