"""Answers with choices, whole and as streams: what the endpoints for chats and for completions have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

from paceline.api.piece import Piece
from paceline.integrations.server.job import TextJob
from paceline.integrations.server.requests import Writes
from paceline.integrations.server.settings import ignored_fields
from paceline.integrations.server.sse import DONE, frame

WritesT = TypeVar("WritesT", bound=Writes)
Json = dict[str, Any]


class ChoicesJob(TextJob[WritesT]):
    """Texts as choices. A choice of a chunk is the part that a burst adds, and the last one has the reason of the
    end."""

    whole_object = chunk_object = ""
    """The names of answers and of chunks."""
    nothing: ClassVar[Json] = {}
    """The part of a choice that adds no text, for tokens whose text is held back."""
    empty: ClassVar[Json] = {}
    """That part of the chunk with the reason of the end."""

    def ignored(self) -> list[str]:
        return ignored_fields(self.body)

    def whole(self) -> Json:
        choices = [self.whole_choice(number) for number in range(len(self.answer.writings))]
        return {**self._about(self.whole_object), "choices": choices, **self.numbers(), "seed": self.seed}

    def _about(self, kind: str) -> Json:
        return {"id": self.id, "object": kind, **self.answer.about()}

    def _tokens(self, pieces: Sequence[Piece]) -> Json:
        """The token ids of a choice, if they were asked for."""
        ids = [piece.token for piece in pieces if piece.token is not None]
        return {"token_ids": ids} if self.body.return_token_ids else {}

    def _pieces(self, pieces: Sequence[Piece]) -> Json:
        """The tokens with their sources, if they were asked for."""
        return {"paceline": {"pieces": [as_piece(piece) for piece in pieces]}} if self.body.return_pieces else {}

    def _must_be_sent(self) -> bool:
        """Whether a burst without text has a chunk, for what it says of its tokens."""
        return bool(self.asks_logprobs or self.body.return_pieces or self.body.return_token_ids)

    async def frames(self) -> AsyncGenerator[bytes, None]:
        for number, part in self.opening():
            yield self._chunk(number, part)
        left, last = len(self.answer.writings), None
        async with aclosing(self.answer.bursts()) as bursts:
            async for number, pieces in bursts:
                finished = any(piece.finish is not None for piece in pieces)
                parts = self.parts(number, pieces, finished=finished)
                if not parts and self._must_be_sent():
                    parts = [self.nothing]
                for place, part in enumerate(parts):
                    yield self._chunk(number, part, pieces=pieces if place == 0 else ())
                left -= finished
                if finished and left:
                    yield self._chunk(number, self.empty, finish=self.finish_of(number))
                elif finished:
                    last = number
        for one in self._end(last):
            yield one

    def _end(self, last: int | None) -> list[bytes]:
        """The end of the stream: the last text's reason to end, then the numbers."""
        options, frames = self.body.stream_options, list[bytes]()
        if last is not None:
            own = self.numbers() if options is None else Json()
            frames.append(self._chunk(last, self.empty, finish=self.finish_of(last), more={**own, "seed": self.seed}))
        if options is not None and options.include_usage:
            frames.append(frame({**self._about(self.chunk_object), "choices": [], **self.numbers(), "seed": self.seed}))
        return [*frames, DONE]

    def _chunk(
        self,
        number: int,
        part: Json,
        *,
        pieces: Sequence[Piece] = (),
        finish: str | None = None,
        more: Mapping[str, Any] = MappingProxyType({}),
    ) -> bytes:
        logprobs = self.logprobs(number, pieces) if pieces or self.has_empty_logprobs else None
        choice = {"index": number, **part, "logprobs": logprobs, "finish_reason": finish}
        if pieces:
            choice |= self._tokens(pieces)
        found = {**self._about(self.chunk_object), "choices": [choice]}
        options = self.body.stream_options
        if options is not None and options.include_usage:
            found["usage"] = self._usage_so_far() if options.continuous_usage_stats else None
        if pieces:
            found |= self._pieces(pieces)
        return frame({**found, **more})

    def _usage_so_far(self) -> dict[str, int]:
        prompt, completion = self.answer.prompt_tokens, self.answer.completion_tokens
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

    # what an endpoint says

    asks_logprobs = False
    has_empty_logprobs = False
    """Whether a chunk without tokens has empty lists of log-probabilities."""

    @abstractmethod
    def opening(self) -> list[tuple[int, Json]]:
        """The parts before the first tokens, with the numbers of their texts."""

    @abstractmethod
    def parts(self, number: int, pieces: list[Piece], *, finished: bool) -> list[Json]:
        """The parts of choices that a burst adds to a text."""

    @abstractmethod
    def whole_choice(self, number: int) -> Json:
        """A whole text."""

    @abstractmethod
    def logprobs(self, number: int, pieces: Sequence[Piece]) -> Json | None:
        """The log-probabilities of tokens, if they were asked for."""

    @abstractmethod
    def finish_of(self, number: int) -> str:
        """The reason of a text's end, in OpenAI's words."""


def as_piece(piece: Piece) -> Json:
    """A token of the text and where it came from."""
    return {
        "text": piece.text,
        "token": piece.token,
        "source": piece.source,
        "round": piece.round,
        "kind": str(piece.kind),
    }
