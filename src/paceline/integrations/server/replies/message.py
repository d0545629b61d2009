"""The events of an assistant's message, and the message that they add up to."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

DeltaKind = Literal["content", "reasoning", "call", "arguments"]
ID_PREFIX, ID_LENGTH = "call_", 24
"""The id of a call: OpenAI's prefix, and characters behind it."""
SHORT_ID = 9
"""Characters of an id, without a prefix, where a chat template takes no other."""


@dataclass(frozen=True)
class Delta:
    """One event of a message."""

    kind: DeltaKind
    text: str = ""
    """Content, reasoning, or the arguments of a call."""
    index: int = 0
    """The number of the tool call."""
    name: str = ""
    """The function's name, of an event that begins a call."""
    id: str = ""
    """The call's id, of an event that begins one."""


@dataclass(frozen=True)
class ToolCall:
    """A call that the model makes."""

    id: str
    name: str
    arguments: str
    """JSON text of an object."""


class RequestedCall(NamedTuple):
    """A call as it is read: its function and its arguments as JSON text."""

    name: str
    arguments: str


class MessageBuilder:
    """Collects a message and its events, which add up to it.

    Whitespace: reasoning is stripped. Content loses the whitespace after reasoning, and that between it and calls;
    whitespace inside content stays. Without reasoning and calls, content is the text itself.
    """

    def __init__(self, request_id: str, *, has_short_ids: bool = False) -> None:
        self.content = self.reasoning = ""
        self.calls: list[ToolCall] = []
        self.strips = False
        """Whether content is stripped at both ends, because something else stands beside it."""
        self._request_id, self._has_short_ids = request_id, has_short_ids
        self._spaces = {"content": "", "reasoning": ""}
        """Whitespace that is dropped if nothing follows it."""
        self._events: list[Delta] = []

    def add_content(self, text: str) -> None:
        """Add to the content; whitespace waits for what follows."""
        if text := self._settled("content", text, strips=self.strips and not self.content):
            self.content += text
            self._append("content", text)

    def add_reasoning(self, text: str) -> None:
        """Add to the reasoning; whitespace waits for what follows."""
        self.strips = True
        if text := self._settled("reasoning", text, strips=not self.reasoning):
            self.reasoning += text
            self._append("reasoning", text)

    def add_call(self, request: RequestedCall) -> None:
        """Add a call that is certain."""
        self.strips = True
        index = len(self.calls)
        digest = hashlib.sha256(f"{self._request_id}:{index}".encode()).hexdigest()
        id = digest[:SHORT_ID] if self._has_short_ids else f"{ID_PREFIX}{digest[:ID_LENGTH]}"
        call = ToolCall(id, request.name, request.arguments)
        self.calls.append(call)
        self._events += [
            Delta("call", index=index, name=call.name, id=call.id),
            Delta("arguments", call.arguments, index=index),
        ]

    def end(self) -> None:
        """Nothing follows: whitespace that waits is dropped, or belongs to the content."""
        if not self.strips and (rest := self._spaces["content"]):
            self.content += rest
            self._append("content", rest)
        self._spaces = {"content": "", "reasoning": ""}

    def drain(self) -> list[Delta]:
        """The events since the last time."""
        events, self._events = self._events, []
        return events

    def as_dict(self) -> dict[str, Any]:
        """The message in OpenAI's form; reasoning under both names that clients read."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content or (None if self.calls else "")}
        if self.reasoning:
            message |= {"reasoning_content": self.reasoning, "reasoning": self.reasoning}
        if self.calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in self.calls
            ]
        return message

    def _settled(self, kind: str, text: str, *, strips: bool) -> str:
        """The text so far that cannot be whitespace at an end."""
        text = self._spaces[kind] + text
        if strips:
            text = text.lstrip()
        settled = text.rstrip()
        self._spaces[kind] = text[len(settled) :]
        return settled

    def _append(self, kind: DeltaKind, text: str) -> None:
        if self._events and self._events[-1].kind == kind:
            text = self._events.pop().text + text
        self._events.append(Delta(kind, text))
