"""Server-sent events: frames, signs of life, and errors after the beginning of a stream."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from paceline.integrations.server.errors import api_error
from paceline.integrations.server.flows import merged

PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"
BREAKS = str.maketrans({"\u2028": "\\u2028", "\u2029": "\\u2029", "\x85": "\\u0085"})
"""Characters at which some clients break lines."""
HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


def as_json(value: object) -> str:
    """JSON in one line."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).translate(BREAKS)


def frame(value: object, event: str | None = None) -> bytes:
    """One event."""
    named = f"event: {event}\n" if event else ""
    return f"{named}data: {as_json(value)}\n\n".encode(errors="replace")


async def with_pings(frames: AsyncGenerator[bytes, None], seconds: float) -> AsyncGenerator[bytes, None]:
    """The frames, and a comment whenever none came for some seconds, so that no proxy takes the stream for dead."""
    async with aclosing(merged([frames], seconds)) as found:
        async for one in found:
            yield PING if one is None else one[1]


async def with_errors(frames: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The frames; an error after the beginning of a stream is a frame, too."""
    async with aclosing(frames):
        try:
            async for one in frames:
                yield one
        except Exception as error:
            yield frame(api_error(error).body())
            yield DONE


class EventStream(StreamingResponse):
    """The response that sends frames. At its end ``ended`` is called, also if no frame was ever asked for."""

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        headers: Mapping[str, str],
        *,
        ping_seconds: float,
        ended: Callable[[], None],
    ) -> None:
        body = with_pings(with_errors(frames), ping_seconds)
        super().__init__(body, media_type="text/event-stream", headers={**HEADERS, **headers})
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ended()
