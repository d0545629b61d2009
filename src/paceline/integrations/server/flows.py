"""Asynchronous generators: several as one, with a limit of time, and work that ends when its client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.requests import Request

T = TypeVar("T")


@dataclass(frozen=True)
class _End:
    """What a generator ends with."""

    error: Exception | None = None


async def merged(
    sources: Sequence[AsyncGenerator[T, None]], idle: float | None = None
) -> AsyncGenerator[tuple[int, T] | None, None]:
    """The items of all generators as they come, with the generators' numbers; None whenever none came for ``idle``
    seconds. The first error ends all. Each generator runs and is closed in one task; one whose last item was not taken
    yet waits."""
    queue: asyncio.Queue[tuple[int, T | _End]] = asyncio.Queue(len(sources))
    tasks = [asyncio.ensure_future(_pump(number, source, queue)) for number, source in enumerate(sources)]
    getting: asyncio.Future[tuple[int, T | _End]] | None = None
    left = len(tasks)
    try:
        while left:
            if getting is None and not queue.empty():
                number, item = queue.get_nowait()
            else:
                getting = getting or asyncio.ensure_future(queue.get())
                if not (await asyncio.wait({getting}, timeout=idle))[0]:
                    yield None
                    continue
                (number, item), getting = getting.result(), None
            if not isinstance(item, _End):
                yield number, item
            elif item.error is not None:
                raise item.error
            else:
                left -= 1
    finally:
        for task in tasks:
            task.cancel()
        if getting is not None:
            getting.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(number: int, source: AsyncGenerator[T, None], queue: asyncio.Queue[tuple[int, T | _End]]) -> None:
    try:
        async with aclosing(source):
            async for item in source:
                await queue.put((number, item))
    except Exception as error:
        await queue.put((number, _End(error)))
    else:
        await queue.put((number, _End()))


async def within(source: AsyncGenerator[T, None], seconds: float | None) -> AsyncGenerator[T, None]:
    """The items of a generator, which must end within some seconds; else a TimeoutError."""
    async with aclosing(source):
        if seconds is None:
            async for item in source:
                yield item
            return
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while True:
            try:
                yield await asyncio.wait_for(anext(source), end - loop.time())
            except StopAsyncIteration:
                return


class Left(Exception):
    """The client closed the connection before it had its answer."""


async def unless_left(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of some work, which is cancelled if the client leaves."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise Left
    finally:
        for task in (working, leaving):
            if not task.done():
                task.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await task


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
