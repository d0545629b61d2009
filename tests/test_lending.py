"""Rows may be given back at any time, also by the garbage collector in a thread that holds the lock."""

import gc
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from engine import PROMPT, SIZE, habitual, tabled
from paceline.api.model import LanguageModel
from paceline.drafters.networks.assistant import Assistant
from paceline.targets.base import Request, Rows, Target
from paceline.targets.lending import KeptRows, Tray
from paceline.targets.table import TableRows, TableTarget

PATIENCE = 120.0


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
    right, collected = Assistant.growth, []

    def growth(self: Assistant, ask: Any) -> Any:
        collected.append(gc.collect())
        return right(self, ask)

    monkeypatch.setattr(Assistant, "growth", growth)

    def write() -> None:
        assert lm.generate(PROMPT, method=drafter, planner="fixed", max_new_tokens=12).tokens == text

    in_time(write)
    assert collected[0] > 0
    assert drafter._rows._lent == []


def test_rows_that_come_back_while_others_are_copied_wait_for_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    target = tabled()
    kept, prompt = KeptRows(target.open, target.look, 4), np.array(PROMPT)
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


# --- kept rows ----------------------------------------------------------------------------------------------


def wrote(kept: KeptRows, target: Target, text: list[int]) -> Rows:
    """Rows of a text, written where the kept ones end."""
    prompt = np.array(text)
    rows = kept.take(prompt, len(text))
    rows.rewind(rows.common_prefix(prompt))
    if rows.committed < len(text):
        rest = prompt[rows.committed :]
        target.submit([Request.of_prompt(rows, rest)]).result()
        rows.keep(range(len(rest)))
    rows.check()
    assert rows.tokens.tolist() == text
    return rows


LEFT, RIGHT = [1, 1, 2, 3, 4, 5, 0, 1, 2, 3], [1, 2, 2, 2, 3, 3, 3, 4, 4, 4]


@pytest.mark.parametrize(
    ("limit", "asked", "left", "common"),
    [
        (2, [*LEFT[:6], 2], [RIGHT], 6),  # the better of two
        (2, [*RIGHT[:2], 5], [LEFT], 2),  # also where it serves little, for want of room
        (3, [*RIGHT[:2], 5], [LEFT, RIGHT], 2),  # a copy, where there is room
        (3, RIGHT[:6], [LEFT], 6),  # not where most of it serves
        (3, [5, 5], [LEFT, RIGHT], 0),
    ],
)
def test_rows_are_lent_to_whom_they_serve_best(limit: int, asked: list[int], left: Any, common: int) -> None:
    target = tabled()
    kept = KeptRows(target.open, target.look, limit)
    for rows in [wrote(kept, target, text) for text in (LEFT, RIGHT)]:
        kept.give(rows)
    rows = kept.take(np.array(asked), 20)
    assert rows.common_prefix(np.array(asked)) == common
    assert [spare.tokens.tolist() for spare in kept._spare] == left
    rows.check()


def test_the_oldest_rows_go_and_what_is_given_up_does_not_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    target, closed = tabled(), list[Rows]()
    kept = KeptRows(target.open, target.look, 2)
    monkeypatch.setattr(TableRows, "close", lambda rows: closed.append(rows))
    texts = [[number] * 4 for number in range(4)]
    lent = [wrote(kept, target, text) for text in texts]
    for number, rows in enumerate(lent):
        kept.give(rows)
        assert len(kept) == [1, 1, 1, 2][number]
    assert [rows.tokens.tolist() for rows in kept._spare] == texts[2:]
    assert closed == lent[:2]
    taken = kept.take(np.array(texts[3]), 4)
    kept.clear()
    kept.give(taken)
    assert (len(kept), len(kept._lent)) == (0, 0)
    assert closed == [*lent[:3], taken]


def test_a_text_begun_before_forgetting_leaves_no_rows() -> None:
    """They may be those of other weights."""
    lm = LanguageModel(tabled())
    stream = lm.stream(PROMPT, max_new_tokens=9)
    next(stream)
    lm.forget()
    list(stream)
    assert len(lm.kept) == 0
    assert [lm.generate(PROMPT, max_new_tokens=2).cached_tokens for _ in range(2)] == [0, len(PROMPT) - 1]


def test_threads_do_not_write_over_each_others_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    target, kept, copied, copy = tabled(), KeptRows(tabled().open, tabled().look, 60), list[int](), TableRows._copy

    def slowly(rows: TableRows, other: Rows, count: int) -> None:
        time.sleep(0.002)  # long enough for another thread to come between
        copied.append(count)
        assert rows.drafted.tolist() == other.cells[:count].tolist()
        copy(rows, other, count)

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        for _ in range(15):
            beginning = [LEFT, RIGHT][random.integers(2)] * 6
            text = [*beginning[: random.integers(2, 60)], *random.integers(SIZE, size=9).tolist()]
            kept.give(wrote(kept, target, text))
            if random.random() < 0.2:
                kept.clear()

    monkeypatch.setattr(TableRows, "_copy", slowly)
    monkeypatch.setattr(TableRows, "close", lambda rows: rows.cells.fill(-1))
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert len(copied) > 10
    assert not kept._lent
    assert len(kept) <= 60
