"""Rows are given back from anywhere: also by the garbage collector, in the middle of whoever holds the lock."""

import gc
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from engine import PROMPT, habitual, tabled
from paceline.drafters.assistant import Assistant
from paceline.hosts.python import LanguageModel
from paceline.targets.base import Rows
from paceline.targets.lending import KeptRows, Tray
from paceline.targets.table import TableRows, TableTarget

PATIENCE = 30.0


def in_time(work: Callable[[], object]) -> None:
    """Do it in a thread, which may hang."""
    errors: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive(), "it waits for ever"
    if errors:
        raise errors[0]


def abandoned(lm: LanguageModel, **settings: Any) -> None:
    """Begin a stream that only the cycle collector can end."""
    cycle: list[Any] = [lm.stream(PROMPT, max_new_tokens=12, **settings)]
    next(cycle[0])
    cycle.append(cycle)


@pytest.fixture
def collector_at_rest() -> Any:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_a_stream_that_is_collected_while_another_drafts_hangs_nobody(
    collector_at_rest: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm, drafter = LanguageModel(tabled()), Assistant(model=TableTarget(habitual(memory=1), tabled().vocab_size))
    text = lm.generate(PROMPT, method=drafter, max_new_tokens=12).tokens
    abandoned(lm, method=drafter)
    right, collected = Assistant._growth, []

    def growth(self: Assistant, ask: Any) -> Any:
        collected.append(gc.collect())
        return right(self, ask)

    monkeypatch.setattr(Assistant, "_growth", growth)

    def write() -> None:
        assert lm.generate(PROMPT, method=drafter, max_new_tokens=12).tokens == text

    in_time(write)
    assert collected[0] > 0
    assert drafter._readings == []


def test_rows_that_come_back_while_others_are_copied_wait_for_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    target = tabled()
    kept, prompt = KeptRows(target, 4), np.array(PROMPT)
    source, *others = (kept.take(prompt, 8) for _ in range(3))
    assert isinstance(source, TableRows)
    source.write(prompt)
    source.keep(range(len(prompt)))
    kept.give(source)
    right, sizes = Rows.adopt, list[int]()

    def adopt(self: Rows, other: Rows, count: int) -> None:
        """The collector ends two texts in the middle of the copy."""
        while others:
            kept.give(others.pop())
        sizes.append(len(kept))
        right(self, other, count)

    monkeypatch.setattr(Rows, "adopt", adopt)

    def take() -> None:
        copied = kept.take(prompt[:3], 8)
        assert copied is not source
        assert copied.tokens.tolist() == PROMPT[:3]

    in_time(take)
    assert sizes == [1], "nothing is put away meanwhile"
    assert len(kept) == 3


def test_what_is_given_while_the_lock_is_held_is_put_away_by_its_holder() -> None:
    put: list[int] = []
    tray = Tray(put.append)
    with tray.held():
        tray.give(1)
        threading.Thread(target=tray.give, args=(2,)).run()
        assert put == []
    assert put == [1, 2]
    with suppress(OSError), tray.held():
        tray.give(3)
        raise OSError
    assert put == [1, 2, 3]
    tray.give(4)
    assert put == [1, 2, 3, 4]
