"""``POST /v1/responses``: OpenAI's newer form of a conversation, which the server may remember."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from paceline.api.piece import Piece
from paceline.api.settings import Options
from paceline.integrations.server.errors import ApiError
from paceline.integrations.server.forms import NAMED, AskedReply, messages_for
from paceline.integrations.server.items import Event, Items
from paceline.integrations.server.job import TextJob
from paceline.integrations.server.replies import ChatReply
from paceline.integrations.server.requests import SIMPLE, Json, ResponseRequest
from paceline.integrations.server.settings import ignored_fields, settings_of
from paceline.integrations.server.sse import frame
from paceline.integrations.server.stored import Store

TEXTS = ("input_text", "output_text", "text")
LOGPROBS = "message.output_text.logprobs"
"""The one thing that ``include`` may name here."""


class ResponseJob(TextJob[ResponseRequest]):
    """The reply to a conversation, as items."""

    prefix = "resp_"

    async def begin(self) -> None:
        body = self.body
        if body.n not in (None, 1):
            raise ApiError("a response is one text; leave n out", param="n")
        self.store: Store = self.request.app.state.store
        before = self.store.get(body.previous_response_id).messages if body.previous_response_id else []
        self.messages = [*before, *_messages(body.input)]
        system = [{"role": "system", "content": body.instructions}] if body.instructions else []
        self.asked = asked = AskedReply(
            served=self.served,
            messages=messages_for([*system, *self.messages]),
            tools=_tools(body),
            choice=_choice(body),
            form=None if body.text is None else body.text.format,
            effort=None if body.reasoning is None else body.reasoning.effort,
        )
        await self.answer.begin([asked.messages], 1, self._settings)
        begun = self.answer.writings[0].rendered
        self.reply = ChatReply(asked.reply_format, request_id=self.id, tools=asked.tools, begun=begun)
        self.items = Items(self.id)
        self.sequence = 0
        """The number of the next event."""

    def ignored(self) -> list[str]:
        others = {*(self.body.include or ())} - {LOGPROBS}
        return [*ignored_fields(self.body), *(["include"] if others else []), *self.asked.ignored()]

    def _settings(self) -> Options:
        body = self.body
        most_is = "max_tokens" if body.max_output_tokens is None else "max_output_tokens"
        most = getattr(body, most_is)
        given = settings_of(body, self.served, self.limits, most=most, seed=self.seed, most_is=most_is)
        self.most = given.get("max_new_tokens")
        if body.top_logprobs is not None or LOGPROBS in (body.include or ()):
            given["logprobs"] = body.top_logprobs or 0
        return self.asked.settings(body, given)

    @property
    def reasoning_tokens(self) -> int:  # type: ignore[override]
        return self.reply.reasoning_tokens

    # --- the answer ---

    def take(self, number: int, pieces: list[Piece]) -> None:
        for piece in pieces:
            self._events(piece)

    def finish(self) -> None:
        self._ended()

    def _events(self, piece: Piece) -> list[Event]:
        """The events of one token."""
        if piece.logprobs is not None:
            self.items.hold([piece.logprobs.openai()])
        return [event for delta in self.reply.push(piece) for event in self.items.push(delta)]

    def _ended(self) -> list[Event]:
        """The events at the end, but for the last one."""
        events = [event for delta in self.reply.end() for event in self.items.push(delta)]
        events += self.items.end("completed" if self.reply.finish != "length" else "incomplete")
        self.completed = int(time.time())
        if self.body.store is not False:
            said = self.reply.message
            self.store.keep(self.whole(), [*self.messages, said])
        return events

    def whole(self) -> dict[str, Any]:
        cut = self.reply.finish == "length"
        status = "incomplete" if cut else "completed"
        found = self._response(status) | {"usage": self._usage(), "completed_at": self.completed}
        found["incomplete_details"] = {"reason": "max_output_tokens"} if cut else None
        numbers = self.numbers()
        return {**found, "timings": numbers["timings"], "metrics": numbers["metrics"]}

    def _response(self, status: str) -> dict[str, Any]:
        """The response as far as it is known."""
        body, sampling = self.body, self.answer.writings[0].context.sampling
        asked = self.asked
        form = {"type": "text"} if asked.form is None else asked.form.model_dump(exclude_none=True, by_alias=True)
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.answer.created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": self.most,
            "model": self.served.name,
            "output": self.items.output,
            "parallel_tool_calls": True,
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": asked.effort, "summary": None},
            "store": body.store is not False,
            **{name: getattr(sampling, name) for name in SIMPLE},
            "seed": self.seed,
            "text": {"format": form},
            "tool_choice": (body.tool_choice or "auto") if asked.tools else "none",
            "tools": body.tools or [],
            "truncation": "disabled",
            "metadata": body.metadata or {},
            "system_fingerprint": self.served.system_fingerprint,
            "usage": None,
        }

    def _usage(self) -> dict[str, Any]:
        prompt, completion = self.answer.prompt_tokens, self.answer.completion_tokens
        return {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": self.answer.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": completion,
            "output_tokens_details": {"reasoning_tokens": self.reply.reasoning_tokens},
            "total_tokens": prompt + completion,
        }

    # --- the stream ---

    async def frames(self) -> AsyncGenerator[bytes, None]:
        for kind in ("response.created", "response.in_progress"):
            yield self._frame({"type": kind, "response": {**self._response("in_progress"), "output": []}})
        async with aclosing(self.answer.bursts()) as bursts:
            async for _, pieces in bursts:
                events = [event for piece in pieces for event in self._events(piece)]
                if events:
                    yield b"".join(map(self._frame, events))
        yield b"".join(map(self._frame, self._ended()))
        whole = self.whole()
        yield self._frame({"type": f"response.{whole['status']}", "response": whole})

    def _frame(self, event: Event) -> bytes:
        """The next event."""
        found = frame({**event, "sequence_number": self.sequence}, event["type"])
        self.sequence += 1
        return found

    def ending(self, error: ApiError) -> bytes:
        failed = {"code": "server_error", "message": error.body()["error"]["message"]}
        return self._frame({"type": "response.failed", "response": self._response("failed") | {"error": failed}})


def _messages(given: str | Sequence[Json]) -> list[Json]:
    """The items of a request as the messages of a conversation."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    found: list[Json] = []
    for number, item in enumerate(given):
        kind = item.get("type", "message")
        if kind == "message":
            message: Json = {"role": item.get("role"), "content": _content(number, item.get("content"))}
            if message["role"] == "assistant" and found and _calls_only(found[-1]):
                found[-1]["content"] = message["content"]
            else:
                found.append(message)
        elif kind == "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments") or "{}"}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            if not found or found[-1]["role"] != "assistant":
                found.append({"role": "assistant", "content": None})
            found[-1].setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            output = item.get("output")
            said = output if isinstance(output, str) else _content(number, output)
            found.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": said})
        elif kind != "reasoning":
            raise ApiError(f"input {number} is of type {str(kind)[:40]!r}; this server reads text", param="input")
    if not found:
        raise ApiError("input is empty; give a text or a list of messages", param="input")
    return found


def _calls_only(message: Json) -> bool:
    """Whether a message is calls without a text."""
    return message["role"] == "assistant" and message["content"] is None and "tool_calls" in message


def _content(number: int, content: Any) -> Any:
    """The text of an item's content."""
    if not isinstance(content, list):
        return content
    for part in content:
        if not isinstance(part, Mapping) or part.get("type") not in TEXTS or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise ApiError(f"input {number} has a part of type {kind!r}; this server reads text", param="input")
    return "".join(part["text"] for part in content)


def _tools(body: ResponseRequest) -> list[Json]:
    """The tools in the form that chat templates take."""
    if body.tool_choice == "none" or not body.tools:
        return []
    found = []
    for tool in body.tools:
        if tool.get("type") != "function" or not isinstance(tool.get("name"), str):
            raise ApiError("tools are functions here, {'type': 'function', 'name': ...}", param="tools")
        function = {name: tool[name] for name in ("name", "description", "parameters", "strict") if tool.get(name)}
        found.append({"type": "function", "function": function})
    return found


def _choice(body: ResponseRequest) -> str | None:
    """Whether a function must be called: ``required``, or its name after ``function:``."""
    choice = body.tool_choice
    if isinstance(choice, Mapping):
        return f"{NAMED}{choice.get('name')}"
    return choice
