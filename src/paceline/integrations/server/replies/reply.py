"""One reply, read token by token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from paceline.api.piece import Piece
from paceline.integrations.server.replies.formats import ReplyFormat
from paceline.integrations.server.replies.message import Delta, MessageBuilder, ToolCall

CUT = frozenset({"length", "context"})
"""Ends of a text that OpenAI calls length."""


def finish_reason(finish: str | None, *, has_calls: bool = False) -> Literal["tool_calls", "length", "stop"]:
    """The reason of a text's end in OpenAI's words. A text that was cut says so, whatever it called before."""
    if finish in CUT:
        return "length"
    return "tool_calls" if has_calls else "stop"


class ChatReply:
    """The events of an assistant's message, from the pieces of its text.

    They depend on the tokens alone, not on rounds or bursts. A call is an event when its body is complete and valid; a
    body that is neither is content, character by character.
    """

    def __init__(
        self,
        format: ReplyFormat,
        *,
        request_id: str,
        tools: Sequence[Mapping[str, Any]] = (),
        parses_calls: bool = True,
        begun: str = "",
    ) -> None:
        """`begun` is the prompt's end, which may have opened the reasoning. Without tools there are no calls."""
        self._message = MessageBuilder(request_id, has_short_ids=format.has_short_ids)
        self._reader = format.reader(self._message, tools, parses_calls=parses_calls, begun=begun)
        self._names = format.names()
        self._finish: str | None = None
        self._ended = False
        self.reasoning_tokens = 0
        """Tokens inside of reasoning; its markers do not count, if they are one token each."""

    def push(self, piece: Piece) -> list[Delta]:
        """The events that are certain with this piece."""
        was_reasoning = self._reader.is_reasoning
        self._reader.feed(piece.text if self._names is None else self._names.text(piece))
        if piece.token is not None and was_reasoning and self._reader.is_reasoning:
            self.reasoning_tokens += 1
        self._finish = piece.finish or self._finish
        return self._message.drain()

    def end(self) -> list[Delta]:
        """The events that waited, when the text ends or is cancelled; once."""
        if not self._ended:
            self._ended = True
            self._reader.end()
            self._message.end()
        return self._message.drain()

    @property
    def content(self) -> str:
        """The content so far."""
        return self._message.content

    @property
    def reasoning(self) -> str:
        """The reasoning so far."""
        return self._message.reasoning

    @property
    def calls(self) -> list[ToolCall]:
        """The calls so far."""
        return list(self._message.calls)

    @property
    def message(self) -> dict[str, Any]:
        """The message so far, in OpenAI's form."""
        return self._message.as_dict()

    @property
    def finish(self) -> Literal["tool_calls", "length", "stop"]:
        """OpenAI's reason for the end."""
        return finish_reason(self._finish, has_calls=bool(self._message.calls))
