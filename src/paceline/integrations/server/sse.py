"""Server-sent events: frames, pings, and errors after the beginning of a stream."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any

from pydantic_core import to_json
from starlette.responses import JSONResponse, StreamingResponse
from starlette.types import Send

from paceline.integrations.server.errors import ApiError, api_error
from paceline.integrations.server.flows import merged

PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"
BREAKS = str.maketrans({"\u2028": "\\u2028", "\u2029": "\\u2029", "\x85": "\\u0085"})
"""Characters at which some clients break lines."""
EVENTS = "text/event-stream"
HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


def as_json(value: object) -> str:
    """JSON in one line. Numbers that JSON does not have become null: some fields of a request may hold anything, and
    answers repeat them."""
    try:
        said = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        said = to_json(value, inf_nan_mode="null").decode()
    return said.translate(BREAKS)


class JsonAnswer(JSONResponse):
    """An answer that can be sent whatever it repeats of the request."""

    def render(self, content: Any) -> bytes:
        return as_json(content).encode(errors="replace")


def frame(value: object, event: str | None = None) -> bytes:
    """One event."""
    named = f"event: {event}\n" if event else ""
    return f"{named}data: {as_json(value)}\n\n".encode(errors="replace")


async def with_pings(frames: AsyncGenerator[bytes, None], seconds: float) -> AsyncGenerator[bytes, None]:
    """The frames, and a comment whenever none came for some seconds, so that no proxy takes the stream for dead."""
    async with aclosing(merged([frames], seconds)) as found:
        async for one in found:
            yield PING if one is None else one[1]


def error_frames(error: ApiError) -> bytes:
    """The end of a stream that fails."""
    return frame(error.body()) + DONE


async def with_errors(
    frames: AsyncGenerator[bytes, None], ending: Callable[[ApiError], bytes] = error_frames
) -> AsyncGenerator[bytes, None]:
    """The frames; ``ending`` makes those of an error after the beginning of the stream."""
    async with aclosing(frames):
        try:
            async for one in frames:
                yield one
        except Exception as error:
            yield ending(api_error(error))


class EventStream(StreamingResponse):
    """Sends frames. However that ends, the frames are closed at once, and then ``close`` is called: a client may leave
    before the first frame, or while one is being sent, when no error reaches the generator."""

    def __init__(
        self, frames: AsyncGenerator[bytes, None], headers: Mapping[str, str], close: Callable[[], None]
    ) -> None:
        super().__init__(frames, media_type=EVENTS, headers={**HEADERS, **headers})
        self._frames, self._close = frames, close

    async def stream_response(self, send: Send) -> None:
        try:
            async with aclosing(self._frames):
                await super().stream_response(send)
        finally:
            self._close()


def streamed(
    frames: AsyncGenerator[bytes, None],
    headers: Mapping[str, str],
    seconds: float,
    *,
    close: Callable[[], None],
    ending: Callable[[ApiError], bytes] = error_frames,
) -> EventStream:
    """The response that sends these frames, and calls ``close`` afterwards."""
    return EventStream(with_pings(with_errors(frames, ending), seconds), headers, close)
