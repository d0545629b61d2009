"""Texts that event loops read: written together, each as it would be alone, and nothing is left of one that is left."""

import asyncio
import gc
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, suppress
from typing import Any, TypeAlias

import pytest

from engine import PROMPT, Watched, tabled
from paceline.api.asynchronous import AHEAD
from paceline.api.model import LanguageModel
from paceline.api.piece import Piece
from paceline.api.settings import Options
from paceline.drafters import Plain
from paceline.engine.batch import AT_ONCE
from paceline.errors import CallbackError, InputError
from test_cancelling import SECONDS, Gated
from test_text_batch import EACH, PROMPTS, speaking
from thinning import crossed

Stream: TypeAlias = AsyncGenerator[Piece, None]


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


# --- together ---------------------------------------------------------------------------------------------------


async def tokens_of(stream: Stream) -> list[int]:
    return [piece.token async for piece in stream if piece.token is not None]


async def all_joined(lm: LanguageModel, target: Gated, count: int) -> None:
    """Let the first forward go on once so many texts have joined, most of them behind it."""
    shared = lm._shared
    while not target.entered.is_set() or len({*shared._readers.values(), *shared._changed}) < count:
        await asyncio.sleep(0)
    target.gate.set()


def test_eight_texts_take_the_forwards_of_one() -> None:
    target = Gated(1)
    lm, how = LanguageModel(target), Options(max_new_tokens=20, method="plain", temperature=1.0)
    alone = LanguageModel(tabled())

    async def main() -> list[list[int]]:
        reading = [asyncio.create_task(tokens_of(lm.astream(PROMPT, seed=seed, **how))) for seed in range(8)]
        await all_joined(lm, target, 8)
        return await asyncio.gather(*reading)

    found = asyncio.run(main())
    assert target.forwards <= 20 + 3, "the first may begin one forward before the others"
    assert found == [alone.generate(PROMPT, seed=seed, **how).tokens for seed in range(8)]


def test_texts_of_all_settings_are_those_written_alone() -> None:
    lm = speaking()
    how: dict[str, Any] = {"method": "lookup", "max_new_tokens": 24, "seed": 3}

    async def one(prompt: Any, own: dict[str, Any]) -> tuple[str, list[int]]:
        pieces = [piece async for piece in lm.astream(prompt, **how | own)]
        return "".join(piece.text for piece in pieces), [piece.token for piece in pieces if piece.token is not None]

    async def main() -> list[tuple[str, list[int]]]:
        return await asyncio.gather(*(one(*pair) for pair in zip(PROMPTS, EACH, strict=True)))

    alone = [lm.generate(prompt, **how | own) for prompt, own in zip(PROMPTS, EACH, strict=True)]
    assert asyncio.run(main()) == [(text.text, text.tokens) for text in alone]


def test_the_next_turn_reads_only_what_is_new() -> None:
    lm = LanguageModel(tabled())
    first = asyncio.run(tokens_of(lm.astream(PROMPT, max_new_tokens=6)))
    assert lm.generate([*PROMPT, *first, 1], max_new_tokens=1).cached_tokens >= len(PROMPT) + 5


def test_event_loops_of_several_threads_share_the_batch() -> None:
    target = Gated(1)
    lm, found = LanguageModel(target), dict[int, list[int]]()

    def loop_of(seed: int) -> None:
        found[seed] = asyncio.run(tokens_of(lm.astream(PROMPT, max_new_tokens=20, method="plain", seed=seed)))

    threads = [threading.Thread(target=loop_of, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    asyncio.run(asyncio.wait_for(all_joined(lm, target, 4), SECONDS))
    for thread in threads:
        thread.join(SECONDS)
    expected = LanguageModel(tabled()).generate(PROMPT, max_new_tokens=20, method="plain").tokens
    assert found == dict.fromkeys(range(4), expected)
    assert target.forwards <= 20 + 3


def test_a_text_that_is_left_leaves_the_others_alone() -> None:
    lm, drafter = LanguageModel(tabled()), Watched(Plain())
    how = Options(method=drafter, max_new_tokens=40)
    expected = LanguageModel(tabled()).generate(PROMPT, max_new_tokens=40).tokens

    async def briefly(pieces: int) -> None:
        async with aclosing(lm.astream(PROMPT, **how)) as stream:
            for _ in range(pieces):
                await anext(stream)

    async def main() -> list[Any]:
        endless = asyncio.create_task(tokens_of(lm.astream(PROMPT, method=drafter, max_new_tokens=10**6)))
        found = await asyncio.gather(*(briefly(n) for n in range(1, 6)), tokens_of(lm.astream(PROMPT, **how)))
        endless.cancel()
        with suppress(asyncio.CancelledError):
            await endless
        return found

    assert asyncio.run(main())[-1] == expected
    assert drafter.opened == drafter.closed
    assert not lm.kept._lent


# --- slow readers -----------------------------------------------------------------------------------------------


def test_a_slow_reader_is_waited_for_alone() -> None:
    """It has read one piece when the others have read all of theirs. Nothing runs while all texts wait for it."""
    lm, length = LanguageModel(tabled()), 4 * AHEAD
    how = Options(max_new_tokens=length, method="plain", temperature=1.0)
    alone = [LanguageModel(tabled()).generate(PROMPT, seed=seed, **how).tokens for seed in range(4)]

    async def main() -> None:
        slow = lm.astream(PROMPT, seed=0, **how)
        first = await anext(slow)
        found = await asyncio.gather(*(tokens_of(lm.astream(PROMPT, seed=seed, **how)) for seed in (1, 2, 3)))
        wait_for_threads()
        (reader,) = lm._shared._readers.values()
        assert len(reader.unread) == AHEAD
        assert found == alone[1:]
        assert [first.token, *await tokens_of(slow)] == alone[0]

    asyncio.run(main())
    assert lm._shared._readers == {}


def test_slow_readers_take_no_seats() -> None:
    lm, how = LanguageModel(tabled()), Options(max_new_tokens=2 * AHEAD, method="plain")
    expected = LanguageModel(tabled()).generate(PROMPT, **how).tokens

    async def main() -> None:
        slow = [lm.astream(PROMPT, **how) for _ in range(AT_ONCE + 2)]
        first = [(await anext(stream)).token for stream in slow]
        assert await tokens_of(lm.astream(PROMPT, **how)) == expected
        rest = await asyncio.gather(*map(tokens_of, slow))
        assert [[token, *more] for token, more in zip(first, rest, strict=True)] == [expected] * len(slow)

    asyncio.run(asyncio.wait_for(main(), SECONDS))


# --- failures ---------------------------------------------------------------------------------------------------


def raises_at(length: int) -> Callable[[Any], bool]:
    def criterion(tokens: Any) -> bool:
        if len(tokens) >= length:
            raise KeyError("a slip")
        return False

    return criterion


def test_an_error_reaches_the_reader_of_its_text_alone() -> None:
    lm = LanguageModel(tabled())
    expected = LanguageModel(tabled()).generate(PROMPT, max_new_tokens=30).tokens

    async def main() -> list[Any]:
        streams = [lm.astream(PROMPT, max_new_tokens=30, criteria=[raises_at(len(PROMPT) + n)]) for n in (1, 9)]
        streams += [lm.astream([99]), lm.astream(PROMPT, max_new_tokens=30)]
        return await asyncio.gather(*map(tokens_of, streams), return_exceptions=True)

    *failed, foreign, fine = asyncio.run(main())
    assert [type(error) for error in failed] == [CallbackError] * 2
    assert isinstance(foreign, InputError)
    assert fine == expected


def test_what_was_written_before_an_error_is_read_before_it() -> None:
    lm, seen = LanguageModel(tabled()), list[Any]()

    async def main() -> None:
        async for piece in lm.astream(PROMPT, method="plain", criteria=[raises_at(len(PROMPT) + 4)]):
            seen.append(piece.token)

    with pytest.raises(CallbackError, match="a slip"):
        asyncio.run(main())
    assert seen == LanguageModel(tabled()).generate(PROMPT, max_new_tokens=len(seen)).tokens
    assert len(seen) >= 3


class Breaking(Gated):
    """Its forwards raise as long as it is broken: a text that waits for its reader is not part of the first of them."""

    breaks: BaseException | None = None

    def submit(self, requests: Any) -> Any:
        if self.breaks is not None:
            raise self.breaks
        return super().submit(requests)


@pytest.mark.parametrize("error", [OSError("out of order"), SystemExit("out of order")])
def test_a_model_that_fails_ends_its_texts_and_writes_the_next(error: BaseException) -> None:
    target = Breaking(10**6)
    lm = LanguageModel(target)

    async def main() -> list[Any]:
        streams = [lm.astream(PROMPT, max_new_tokens=10**6) for _ in range(3)]
        for stream in streams:
            await anext(stream)
        target.breaks = error
        ended = list[Any]()
        for stream in streams:
            try:
                await tokens_of(stream)
            except BaseException as raised:
                ended.append(raised)
        target.breaks = None
        return ended

    assert asyncio.run(main()) == [error] * 3
    wait_for_threads()
    assert not lm.kept._lent
    assert len(asyncio.run(tokens_of(lm.astream(PROMPT, max_new_tokens=5)))) == 5


def test_an_interrupt_in_a_reader_leaves_nothing_broken() -> None:
    lm = LanguageModel(tabled())

    async def main() -> None:
        other = asyncio.create_task(tokens_of(lm.astream(PROMPT, max_new_tokens=10**6)))
        async for _ in lm.astream(PROMPT, max_new_tokens=10**6):
            if not other.done():
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    wait_for_threads()
    assert not lm.kept._lent
    assert len(asyncio.run(tokens_of(lm.astream(PROMPT, max_new_tokens=5)))) == 5


@pytest.mark.parametrize(("known", "pieces"), crossed([True, False], [1, AHEAD]))
def test_a_loop_that_is_closed_under_a_stream_leaves_nothing(pieces: int, known: bool) -> None:
    """Without the end that `asyncio.run` gives its streams, whether or not the loop knew of this one."""
    lm, loop = LanguageModel(tabled()), asyncio.new_event_loop()
    streams = [lm.astream(PROMPT, max_new_tokens=10**6)]

    async def following() -> Piece:
        return await anext(streams[0])

    for _ in range(pieces):
        loop.run_until_complete(following() if known else anext(streams[0]))
    loop.close()
    streams.clear()
    wait_for_threads()
    assert not lm.kept._lent
    assert len(asyncio.run(tokens_of(lm.astream(PROMPT, max_new_tokens=5)))) == 5
