"""``POST /v1/chat/completions``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from paceline.api.piece import Piece
from paceline.api.settings import Options
from paceline.integrations.server.choices import ChoicesJob, Json
from paceline.integrations.server.forms import AskedReply, choice_of, messages_for, tools_for
from paceline.integrations.server.refusals import refuse_contradictions
from paceline.integrations.server.replies import ChatReply, Delta
from paceline.integrations.server.requests import ChatRequest
from paceline.integrations.server.settings import settings_of


class ChatJob(ChoicesJob[ChatRequest]):
    """The reply to a conversation, ``n`` times."""

    prefix = "chatcmpl-"
    whole_object, chunk_object = "chat.completion", "chat.completion.chunk"
    nothing: ClassVar[Json] = {"delta": {"content": ""}}
    empty: ClassVar[Json] = {"delta": {}}

    async def begin(self) -> None:
        body = self.body
        refuse_contradictions(body)
        self.asks_logprobs = bool(body.logprobs)
        self.asked = asked = AskedReply(
            served=self.served,
            messages=messages_for(body.messages),
            tools=tools_for(body),
            choice=choice_of(body),
            form=body.response_format,
            effort=body.reasoning_effort,
        )
        await self.answer.begin([asked.messages], body.n or 1, self._settings)
        self.replies = [
            ChatReply(asked.reply_format, request_id=f"{self.id}-{number}", tools=asked.tools, begun=writing.rendered)
            for number, writing in enumerate(self.answer.writings)
        ]

    def _settings(self) -> Options:
        body = self.body
        most_is = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
        most = getattr(body, most_is)
        given = settings_of(body, self.served, self.limits, most=most, seed=self.seed, most_is=most_is)
        if body.logprobs:
            given["logprobs"] = body.top_logprobs or 0
        return self.asked.settings(body, given)

    def ignored(self) -> list[str]:
        return [*super().ignored(), *self.asked.ignored()]

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

    def whole_choice(self, number: int) -> Json:
        pieces = self.answer.results[number].pieces
        message = {**self.replies[number].message, "refusal": None}
        found = {"index": number, "message": message, "logprobs": self.logprobs(number, pieces)}
        return found | {"finish_reason": self.finish_of(number)} | self._tokens(pieces) | self._pieces(pieces)

    def logprobs(self, number: int, pieces: Sequence[Piece]) -> Json | None:
        if not self.body.logprobs:
            return None
        return {"content": [one.logprobs.openai() for one in pieces if one.logprobs is not None], "refusal": None}

    # --- the stream ---

    def opening(self) -> list[tuple[int, Json]]:
        return [(number, {"delta": {"role": "assistant", "content": ""}}) for number in range(len(self.replies))]

    def parts(self, number: int, pieces: list[Piece], *, finished: bool) -> list[Json]:
        reply = self.replies[number]
        deltas = [delta for piece in pieces for delta in reply.push(piece)]
        if finished:
            deltas += reply.end()
        return [{"delta": delta} for delta in merged_deltas(deltas)]

    def finish_of(self, number: int) -> str:
        return self.replies[number].finish


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
