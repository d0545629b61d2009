"""Texts that another thread cancels, or an event loop reads: they end, keep what was written, leave nothing."""

import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import pytest

from engine import PROMPT, SIZE, habitual, tabled
from paceline.api.model import LanguageModel
from paceline.api.piece import Piece
from paceline.api.writing import Writing
from paceline.errors import CallbackError, InputError
from paceline.targets.table import TableTarget
from test_text_batch import speaking

Stream: TypeAlias = AsyncGenerator[Piece, None]
LONG = 60
SECONDS = 60
"""How long a test waits for what must come."""


class Gated(TableTarget):
    """Its forwards from the ``closed``-th on wait until they are let through."""

    def __init__(self, closed: int, **options: Any) -> None:
        super().__init__(habitual(), SIZE, **options)
        self.closed = closed
        self.entered, self.gate = threading.Event(), threading.Event()

    def submit(self, requests: Any) -> Any:
        if self.forwards + 1 >= self.closed:
            self.entered.set()
            assert self.gate.wait(SECONDS)
        return super().submit(requests)


@contextmanager
def reading(writing: Writing) -> Iterator[list[Piece]]:
    """The pieces that a thread reads meanwhile. At the end it has come to theirs."""
    pieces = list[Piece]()
    thread = threading.Thread(target=lambda: pieces.extend(writing.pieces()))
    thread.start()
    yield pieces
    thread.join(SECONDS)
    assert not thread.is_alive()


def assert_cut(lm: LanguageModel, writing: Writing, pieces: list[Piece], whole: list[int]) -> None:
    """The text is the beginning of the whole one, in its result and in its pieces; its rows serve the next text."""
    written = writing.result()
    assert written.finish == "cancelled" or written.tokens == whole
    assert written.tokens == whole[: len(written.tokens)] == [p.token for p in pieces if p.token is not None]
    assert written.text == "".join(piece.text for piece in pieces)
    assert len(lm.kept) == 1
    assert written.as_dict()["tokens"] == written.tokens


# --- threads ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["plain", "lookup"])
@pytest.mark.parametrize("closed", range(1, 6))
def test_a_text_is_cancelled_in_the_middle_of_any_forward(closed: int, method: str) -> None:
    whole = LanguageModel(tabled()).generate(PROMPT, max_new_tokens=LONG, method=method).tokens
    target = Gated(closed)
    lm = LanguageModel(target)
    writing = lm.write(PROMPT, max_new_tokens=LONG, method=method)
    with reading(writing) as pieces:
        assert target.entered.wait(SECONDS)
        writing.cancel()
        target.gate.set()
    assert_cut(lm, writing, pieces, whole)
    assert writing.result().finish == "cancelled"
    assert target.forwards == closed, "no forward follows"
    assert lm.generate(PROMPT, max_new_tokens=LONG, method=method).tokens == whole


def test_a_prompt_is_read_no_further() -> None:
    target = Gated(2, prefill_chunk=4)
    lm = LanguageModel(target)
    writing = lm.write(PROMPT * 5, max_new_tokens=LONG)
    with reading(writing) as pieces:
        assert target.entered.wait(SECONDS)
        writing.cancel()
        target.gate.set()
    assert_cut(lm, writing, pieces, [])
    assert (target.forwards, pieces) == (2, [])


def test_the_result_waits_for_the_round_that_is_under_way() -> None:
    target = Gated(3)
    lm = LanguageModel(target)
    writing = lm.write(PROMPT, max_new_tokens=LONG)
    found = list[Any]()
    with reading(writing) as pieces:
        assert target.entered.wait(SECONDS)
        writing.cancel()
        asking = threading.Thread(target=lambda: found.append(writing.result()))
        asking.start()
        assert not found
        target.gate.set()
        asking.join(SECONDS)
    assert found[0].tokens == writing.result().tokens == [piece.token for piece in pieces]


@pytest.mark.parametrize("text", [False, True])
def test_whenever_it_is_cancelled_nothing_is_lost_or_said_twice(text: bool) -> None:
    """Two threads as they come: one reads, the other cancels and asks for the result at once."""
    lm = speaking() if text else LanguageModel(tabled())
    prompt: Any = "the rider" if text else PROMPT
    how: dict[str, Any] = {"max_new_tokens": 12, "method": "lookup", "stop": ["zz", "ąę"] if text else ()}
    whole = lm.generate(prompt, **how).tokens
    lengths = set[int]()
    for delay in range(40):
        writing = lm.write(prompt, **how)
        reached, found = threading.Event(), list[Any]()

        def cancel(writing: Writing = writing, reached: threading.Event = reached, found: list[Any] = found) -> None:
            assert reached.wait(SECONDS)
            writing.cancel()
            found.append(writing.result())

        thread = threading.Thread(target=cancel)
        thread.start()
        pieces = list[Piece]()
        for number, piece in enumerate(writing.pieces()):
            pieces.append(piece)
            if number == delay % 10:
                reached.set()
        reached.set()
        thread.join(SECONDS)
        assert_cut(lm, writing, pieces, whole)
        assert (found[0].text, found[0].tokens) == (writing.result().text, writing.result().tokens)
        lengths.add(len(found[0].tokens))
    assert max(lengths) <= len(whole)


def test_cancelling_before_and_after_changes_nothing_else() -> None:
    lm = LanguageModel(tabled())
    writing = lm.write(PROMPT, max_new_tokens=5)
    writing.cancel()
    assert (writing.result().tokens, list(writing.pieces()), writing.result().finish) == ([], [], "cancelled")
    writing = lm.write(PROMPT, max_new_tokens=5)
    pieces = list(writing.pieces())
    writing.cancel()
    assert (len(pieces), writing.result().finish) == (5, "length")
    half = lm.write(PROMPT, max_new_tokens=5, method="plain")  # a draft may bring several tokens at once
    first = next(reader := half.pieces())
    half.cancel()
    assert half.result().tokens == [first.token]
    assert list(reader) == []
    assert len(lm.kept) == 1


def test_a_result_writes_the_text_or_says_what_ended_it() -> None:
    lm = LanguageModel(tabled())
    assert lm.write(PROMPT, max_new_tokens=5).result().tokens == lm.generate(PROMPT, max_new_tokens=5).tokens

    def fails(tokens: Any) -> bool:
        raise KeyError("a slip")

    broken = lm.write(PROMPT, criteria=[fails])
    for way in (lambda: list(broken.pieces()), broken.result, broken.result):
        with pytest.raises(CallbackError, match="a slip"):
            way()
    with lm.batch() as batch:
        waiting = batch.add(PROMPT, max_new_tokens=2)
        with pytest.raises(InputError, match="step its batch"):
            waiting.result()
    half = lm.write(PROMPT, max_new_tokens=5)
    next(reader := half.pieces())
    with pytest.raises(InputError, match="not finished; read its pieces"):
        half.result()
    with pytest.raises(InputError, match="a text is written once"):
        list(half.pieces())
    assert len(list(reader)) == 4
    assert len(half.result().tokens) == 5


@pytest.mark.parametrize("kind", ["criterion", "processor"])
def test_a_text_may_be_cancelled_from_within(kind: str) -> None:
    lm, held = LanguageModel(tabled()), list[Writing]()
    calls = list[int]()

    def press(*given: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            held[0].cancel()
        return False if kind == "criterion" else given[1]

    how: dict[str, Any] = {"criteria": [press]} if kind == "criterion" else {"processors": [press]}
    held.append(lm.write(PROMPT, max_new_tokens=LONG, **how))
    pieces = list(held[0].pieces())
    assert len(pieces) == 3
    assert held[0].result().finish == "cancelled"


def test_a_text_of_a_batch_is_cancelled_from_another_thread() -> None:
    target = Gated(3)
    lm = LanguageModel(target)
    whole = LanguageModel(tabled()).generate(PROMPT, max_new_tokens=LONG).tokens
    with lm.batch(at_once=1) as batch:
        first, second = (batch.add(PROMPT, max_new_tokens=LONG) for _ in range(2))
        told = list[Any]()
        thread = threading.Thread(target=lambda: told.extend(batch))
        thread.start()
        assert target.entered.wait(SECONDS)
        first.cancel()
        with pytest.raises(InputError, match="not finished"):
            first.result()
        target.gate.set()
        thread.join(SECONDS)
        assert first.result().finish == "cancelled"
        assert first.result().tokens == whole[: len(first.result().tokens)]
        assert second.result().tokens == whole
        tokens = [piece.token for each in told if each.writing is first for piece in each.pieces]
        assert tokens == first.result().tokens
