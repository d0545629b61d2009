"""Texts that another thread cancels, or an event loop reads: they end, keep what was written, leave nothing."""

import asyncio
import gc
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from typing import Any, TypeAlias

import pytest

from engine import PROMPT, SIZE, habitual, tabled
from paceline.api.model import LanguageModel
from paceline.api.piece import Piece
from paceline.api.settings import Options
from paceline.api.writing import Writing
from paceline.drafters import Plain
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
    assert len(written.emissions) == len(written.tokens)


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


# --- event loops --------------------------------------------------------------------------------------------


def wait_for_threads() -> None:
    """Those of closed streams end by themselves."""
    for thread in threading.enumerate():
        if thread.name.startswith("paceline-astream"):
            thread.join(SECONDS)
            assert not thread.is_alive()
    gc.collect()


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """A thread that has been told to end may still be on its way out."""
    yield
    wait_for_threads()


def test_an_async_stream_is_the_stream() -> None:
    async def main() -> list[Any]:
        return [(piece.text, piece.token) async for piece in lm.astream("the rider", **how)]

    lm, how = speaking(), Options(max_new_tokens=20, temperature=1.0, seed=3, stop="zz")
    assert asyncio.run(main()) == [(piece.text, piece.token) for piece in lm.stream("the rider", **how)]
    assert len(lm.kept) == 1


def test_the_event_loop_goes_on_while_the_model_computes() -> None:
    """The forward waits for what only the event loop does."""
    target = Gated(1)

    async def main() -> int:
        async def open_the_gate() -> None:
            while not target.entered.is_set():
                await asyncio.sleep(0)
            target.gate.set()

        opening = asyncio.create_task(open_the_gate())
        pieces = [piece async for piece in LanguageModel(target).astream(PROMPT, max_new_tokens=4)]
        await opening
        return len(pieces)

    assert asyncio.run(asyncio.wait_for(main(), SECONDS)) == 4


def test_several_at_once_write_what_they_would_alone() -> None:
    lm = LanguageModel(tabled())
    expected = [lm.generate(PROMPT[:n], max_new_tokens=12, temperature=1.0, seed=n).tokens for n in range(1, 6)]

    async def one(n: int) -> list[int | None]:
        return [p.token async for p in lm.astream(PROMPT[:n], max_new_tokens=12, temperature=1.0, seed=n)]

    async def main() -> list[list[int | None]]:
        return await asyncio.gather(*(one(n) for n in range(1, 6)))

    assert asyncio.run(main()) == expected


async def _closed(stream: Stream) -> None:
    async with aclosing(stream):
        async for _ in stream:
            break


async def _left(stream: Stream) -> None:
    async for _ in stream:
        break
    del stream
    gc.collect()
    await asyncio.sleep(0)


async def _raised(stream: Stream) -> None:
    with suppress(KeyError):
        async with aclosing(stream):
            async for _ in stream:
                raise KeyError


WAYS_OUT: dict[str, Callable[[Stream], Any]] = {
    "closed": _closed,
    "left": _left,
    "raised": _raised,
}


@pytest.mark.parametrize("way", WAYS_OUT)
def test_leaving_a_stream_ends_the_text(way: str) -> None:
    lm = LanguageModel(tabled())
    asyncio.run(WAYS_OUT[way](lm.astream(PROMPT, max_new_tokens=10**6)))
    wait_for_threads()
    assert len(lm.kept) == 1
    assert not lm.kept._lent


@pytest.mark.parametrize("closed", range(1, 5))
def test_cancelling_the_task_ends_the_text(closed: int) -> None:
    """In the middle of a forward, which is waited for; when the task has ended, the rows are back."""
    target = Gated(closed)
    lm = LanguageModel(target)
    seen = list[Piece]()

    async def read() -> None:
        async for piece in lm.astream(PROMPT, max_new_tokens=10**6):
            seen.append(piece)

    async def main() -> None:
        task = asyncio.create_task(read())
        while not target.entered.is_set():
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        target.gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (len(lm.kept), len(lm.kept._lent)) == (1, 0)

    asyncio.run(main())
    assert target.forwards == closed
    assert len(seen) <= closed


def test_a_task_that_is_cancelled_twice_leaves_nothing_either() -> None:
    target = Gated(2)
    lm = LanguageModel(target)

    async def main() -> None:
        task = asyncio.create_task(anext(lm.astream(PROMPT, max_new_tokens=10**6)))
        while not target.entered.is_set():
            await asyncio.sleep(0)
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0)
        target.gate.set()
        await asyncio.wait([task])

    asyncio.run(main())
    wait_for_threads()
    assert (len(lm.kept), len(lm.kept._lent)) == (1, 0)


def test_a_cancelled_start_writes_nothing() -> None:
    begun, go = threading.Event(), threading.Event()

    class Slow(Plain):
        def fit(self, target: Any, vocabulary: Any = None) -> None:
            begun.set()
            assert go.wait(SECONDS)

    target = Gated(10**6)
    lm = LanguageModel(target)

    async def main() -> None:
        task = asyncio.create_task(anext(lm.astream(PROMPT, method=Slow())))
        while not begun.is_set():
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go.set()

    asyncio.run(main())
    assert target.forwards == 0


def test_exceptions_arrive() -> None:
    lm = LanguageModel(tabled())

    def fail(tokens: Any) -> bool:
        raise KeyError("mine")

    async def read(**settings: Any) -> list[Piece]:
        return [piece async for piece in lm.astream(PROMPT, max_new_tokens=4, **settings)]

    with pytest.raises(InputError, match="unknown setting"):
        lm.astream(PROMPT, max_tokens=3)  # type: ignore[call-arg]
    with pytest.raises(InputError, match="outside the model's vocabulary"):
        asyncio.run(_closed(lm.astream([99])))
    with pytest.raises(Exception, match="mine"):
        asyncio.run(read(criteria=[fail]))
    assert not lm.kept._lent
    assert len(asyncio.run(read())) == 4
