"""A request for texts: its body, the texts that answer it, and the headers of the answer."""

from __future__ import annotations

import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from typing import Any, Generic

from starlette.requests import Request
from starlette.responses import Response

from paceline.api.settings import new_seed
from paceline.integrations.server.answer import Answer
from paceline.integrations.server.errors import ApiError
from paceline.integrations.server.flows import unless_left
from paceline.integrations.server.models import Limits, Models, ServedModel
from paceline.integrations.server.record import AnswerRecorder
from paceline.integrations.server.requests import BodyT
from paceline.integrations.server.sse import JsonAnswer, error_frames, streamed
from paceline.integrations.server.usage import numbers

REQUEST_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
ID_HEADER, IGNORED_HEADER = "x-request-id", "x-paceline-ignored"
SEEDS = 1 << 64
NAMED = 20
"""Ignored fields that a header names."""


class TextJob(ABC, Generic[BodyT]):
    """A request for texts. An endpoint says which texts they are, and how chunks and whole answers look."""

    prefix = ""
    """Of the answer's id."""

    def __init__(self, body: BodyT, request: Request, models: Models, limits: Limits) -> None:
        self.body, self.request, self.limits = body, request, limits
        self.served: ServedModel = models.named(getattr(body, "model", None))
        self.id = f"{self.prefix}{uuid.uuid4().hex}"
        self.request_id = request.state.request_id
        given = getattr(body, "seed", None)
        self.seed = new_seed() if given is None else given % SEEDS
        """Of all texts of the request, which differ by their numbers."""
        self.answer = Answer(self.served, limits, self.id)
        self.record: AnswerRecorder = request.app.state.recorder

    @property
    def streams(self) -> bool:
        return bool(getattr(self.body, "stream", False))

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the answer."""
        found = {ID_HEADER: self.request_id}
        if ignored := self.ignored():
            more = len(ignored) - NAMED
            names = [re.sub(r"[^A-Za-z0-9_.-]", "?", name[:40]) for name in ignored[:NAMED]]
            found[IGNORED_HEADER] = ", ".join(names) + (f" and {more} more" if more > 0 else "")
        return found

    async def respond(self) -> Response:
        """The response. An error of the request is raised before the answer begins."""
        try:
            await unless_left(self.request, self.begin())
            if self.streams:
                frames = self.recorded(self.frames())
                self.request.state.ending = self.ending
                seconds, close = self.limits.ping_seconds, self.answer.close
                return streamed(frames, self.headers, seconds, close=close, ending=self.ending)
            whole = await unless_left(self.request, self._whole())
        except BaseException:
            self.answer.close()
            raise
        return JsonAnswer(whole, headers=self.headers)

    async def _whole(self) -> dict[str, Any]:
        async for _ in self.recorded(self.silent()):
            pass
        return self.whole()

    async def recorded(self, frames: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        """The frames of an answer, which is noted however it ends."""
        with self.record.writing(self.answer, self.request_id):
            try:
                async for one in frames:
                    yield one
            finally:
                await frames.aclose()

    async def silent(self) -> AsyncGenerator[bytes, None]:
        """The answer without frames."""
        async for number, pieces in self.answer.bursts():
            self.take(number, pieces)
        self.finish()
        return
        yield b""

    def numbers(self) -> dict[str, Any]:
        return numbers(self.answer, self.reasoning_tokens)

    # what an endpoint says

    reasoning_tokens = 0

    def ignored(self) -> list[str]:
        return self.body.unknown

    @abstractmethod
    async def begin(self) -> None: ...

    @abstractmethod
    def take(self, number: int, pieces: list[Any]) -> None:
        """Take the next pieces of a text."""

    def finish(self) -> None:
        """Note that all texts have ended."""

    def ending(self, error: ApiError) -> bytes:
        """The end of a stream that fails."""
        return error_frames(error)

    @abstractmethod
    def frames(self) -> AsyncGenerator[bytes, None]: ...

    @abstractmethod
    def whole(self) -> dict[str, Any]: ...
