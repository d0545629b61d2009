"""``POST /v1/chat/completions``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from paceline.api.piece import Piece
from paceline.api.settings import Options
from paceline.integrations.server.forms import (
    choice_of,
    form_settings,
    messages_for,
    reply_format,
    tools_for,
    variables_for,
)
from paceline.integrations.server.job import TextJob
from paceline.integrations.server.replies import ChatReply, Delta
from paceline.integrations.server.requests import ChatRequest
from paceline.integrations.server.sse import DONE, frame
from paceline.integrations.server.wishes import ignored_fields, settings_of

CHUNK, WHOLE = "chat.completion.chunk", "chat.completion"


class ChatJob(TextJob[ChatRequest]):
    """The reply to a conversation, ``n`` times."""

    prefix = "chatcmpl-"

    async def begin(self) -> None:
        body = self.body
        self.tools, self.choice = tools_for(body), choice_of(body)
        self.messages = messages_for(body.messages)
        await self.answer.begin([self.messages], body.n or 1, self._settings)
        read_as = reply_format(self.served, self.choice)
        self.replies = [
            ChatReply(read_as, request_id=f"{self.id}-{number}", tools=self.tools, begun=writing.rendered)
            for number, writing in enumerate(self.answer.writings)
        ]

    def ignored(self) -> list[str]:
        return ignored_fields(self.body)

    def _settings(self) -> Options:
        body = self.body
        most = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
        given = settings_of(body, self.served, self.limits, most=most, seed=self.seed)
        if body.logprobs:
            given["logprobs"] = body.top_logprobs or 0
        if variables := variables_for(body.chat_template_kwargs, body.reasoning_effort, self.tools):
            given["chat_template_kwargs"] = variables
        return form_settings(
            self.served,
            given,
            tools=self.tools,
            choice=self.choice,
            form=body.response_format,
            structured=body.structured_outputs,
            begun=self.served.begun(self.messages, variables),
        )

    @property
    def reasoning_tokens(self) -> int:  # type: ignore[override]
        return sum(reply.reasoning_tokens for reply in self.replies)

    # --- the whole answer ---

    def take(self, number: int, pieces: list[Piece]) -> None:
        for piece in pieces:
            self.replies[number].push(piece)

    def finish(self) -> None:
        for reply in self.replies:
            reply.end()

    def whole(self) -> dict[str, Any]:
        choices = [self._choice(number, reply) for number, reply in enumerate(self.replies)]
        return {"id": self.id, "object": WHOLE, **self.answer.about(), "choices": choices, **self.numbers()}

    def _choice(self, number: int, reply: ChatReply) -> dict[str, Any]:
        result = self.answer.results[number]
        found = {
            "index": number,
            "message": {**reply.message, "refusal": None},
            "logprobs": self._logprobs(result.pieces),
            "finish_reason": reply.finish,
        }
        if self.body.return_token_ids:
            found["token_ids"] = result.tokens
        if self.body.return_pieces:
            found["paceline"] = {"pieces": [as_piece(piece) for piece in result.pieces]}
        return found

    def _logprobs(self, pieces: Sequence[Piece]) -> dict[str, Any] | None:
        if not self.body.logprobs:
            return None
        return {"content": [one.logprobs.openai() for one in pieces if one.logprobs is not None], "refusal": None}

    # --- the stream ---

    async def frames(self) -> AsyncGenerator[bytes, None]:
        for number in range(len(self.replies)):
            yield self._chunk(number, {"role": "assistant", "content": ""})
        ended, last = 0, None
        async with aclosing(self.answer.bursts()) as bursts:
            async for number, pieces in bursts:
                reply = self.replies[number]
                deltas = [delta for piece in pieces for delta in reply.push(piece)]
                if finished := any(piece.finish is not None for piece in pieces):
                    ended += 1
                    deltas += reply.end()
                for one in self._chunks(number, deltas, pieces):
                    yield one
                if finished and ended < len(self.replies):
                    yield self._chunk(number, {}, finish=reply.finish)
                elif finished:
                    last = number
        for one in self._end(last):
            yield one

    def _end(self, last: int | None) -> list[bytes]:
        """The end of the stream: the last text's reason to end, then the numbers."""
        options = self.body.stream_options
        numbers = self.numbers()
        frames = []
        if last is not None:
            own = numbers if options is None or options.include_usage is None else {}
            frames.append(self._chunk(last, {}, finish=self.replies[last].finish, **own))
        if options is not None and options.include_usage:
            about = {"id": self.id, "object": CHUNK, **self.answer.about()}
            frames.append(frame({**about, "choices": [], **numbers}))
        return [*frames, DONE]

    def _chunks(self, number: int, deltas: Sequence[Delta], pieces: Sequence[Piece]) -> list[bytes]:
        """The chunks of a burst: one for each kind of delta in turn. The first has what is said of its tokens."""
        said = merged_deltas(deltas)
        if not said and (self.body.logprobs or self.body.return_pieces or self.body.return_token_ids):
            said = [{"content": ""}]
        return [self._chunk(number, delta, pieces=pieces if place == 0 else ()) for place, delta in enumerate(said)]

    def _chunk(
        self,
        number: int,
        delta: dict[str, Any],
        *,
        pieces: Sequence[Piece] = (),
        finish: str | None = None,
        **more: Any,
    ) -> bytes:
        choice: dict[str, Any] = {
            "index": number,
            "delta": delta,
            "logprobs": self._logprobs(pieces) if pieces else None,
            "finish_reason": finish,
        }
        if self.body.return_token_ids and pieces:
            choice["token_ids"] = [piece.token for piece in pieces if piece.token is not None]
        found = {"id": self.id, "object": CHUNK, **self.answer.about(), "choices": [choice]}
        options = self.body.stream_options
        if options is not None and options.include_usage:
            found["usage"] = self._usage_so_far() if options.continuous_usage_stats else None
        if self.body.return_pieces and pieces:
            found["paceline"] = {"pieces": [as_piece(piece) for piece in pieces]}
        return frame({**found, **more})

    def _usage_so_far(self) -> dict[str, int]:
        prompt, completion = self.answer.prompt_tokens, self.answer.completion_tokens
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def as_piece(piece: Piece) -> dict[str, Any]:
    """A token of the text and where it came from."""
    return {
        "text": piece.text,
        "token": piece.token,
        "source": piece.source,
        "round": piece.round,
        "kind": str(piece.kind),
    }


def merged_deltas(deltas: Sequence[Delta]) -> list[dict[str, Any]]:
    """The deltas of a burst in OpenAI's form, neighbours of one kind as one."""
    found: list[tuple[tuple[str, int], dict[str, Any]]] = []
    for delta in deltas:
        key = delta.kind, delta.index
        if found and found[-1][0] == key and delta.kind != "call":
            _append(found[-1][1], delta)
        else:
            found.append((key, _as_delta(delta)))
    return [one for _, one in found]


def _as_delta(delta: Delta) -> dict[str, Any]:
    match delta.kind:
        case "content":
            return {"content": delta.text}
        case "reasoning":
            return {"reasoning_content": delta.text, "reasoning": delta.text}
        case "call":
            function = {"name": delta.name, "arguments": ""}
            return {"tool_calls": [{"index": delta.index, "id": delta.id, "type": "function", "function": function}]}
    return {"tool_calls": [{"index": delta.index, "function": {"arguments": delta.text}}]}


def _append(said: dict[str, Any], delta: Delta) -> None:
    if delta.kind == "arguments":
        said["tool_calls"][0]["function"]["arguments"] += delta.text
        return
    for name in said:
        said[name] += delta.text
