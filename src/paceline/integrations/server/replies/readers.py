"""Readers of replies: which text is reasoning, which is content, which is a call.

A reader gets the text as it grows, with the names of markers in it, and writes to a message.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from typing import Protocol

from paceline.integrations.server.replies.cursor import NAME_LENGTH, Cursor, Malformed, pass_on
from paceline.integrations.server.replies.message import MessageBuilder
from paceline.integrations.server.replies.syntaxes import CallSyntax
from paceline.integrations.server.replies.values import Tools, request

Steps = Generator[None, None, None]
START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
END, RETURN, CALL, CONSTRAIN = "<|end|>", "<|return|>", "<|call|>", "<|constrain|>"
HARMONY_MARKERS = (START, CHANNEL, MESSAGE, END, RETURN, CALL, CONSTRAIN)


class ReplyReader(Protocol):
    """Reads one reply."""

    @property
    def is_reasoning(self) -> bool:
        """Whether the place up to which the text is read is inside of reasoning."""
        ...

    def feed(self, text: str) -> None:
        """Read more text."""
        ...

    def end(self) -> None:
        """Read what waits: no text follows."""
        ...


class SteppingReader(ABC):
    """Reads in steps, each as far as the text goes."""

    def __init__(self, message: MessageBuilder) -> None:
        self._message, self._cursor, self.is_reasoning = message, Cursor(), False
        self._steps = self._read()

    def feed(self, text: str) -> None:
        """Read more text."""
        if text:
            self._cursor.text += text
            next(self._steps, None)

    def end(self) -> None:
        """Read what waits: no text follows."""
        self._cursor.ended = True
        next(self._steps, None)

    @abstractmethod
    def _read(self) -> Steps: ...


class MarkedReader(SteppingReader):
    """Reads reasoning at the beginning of a reply, between two markers, and calls in the content after it.

    Inside reasoning only the end of reasoning is a marker, and inside content only the beginning of a call.
    """

    def __init__(
        self,
        message: MessageBuilder,
        reasoning: tuple[str, str] | None,
        syntax: CallSyntax | None,
        tools: Tools,
        begun: str,
    ) -> None:
        super().__init__(message)
        self._reasoning, self._syntax, self._tools = reasoning, syntax, tools
        self.is_reasoning = reasoning is not None and begun.rstrip().endswith(reasoning[0].rstrip())

    def _read(self) -> Steps:
        if self._reasoning:
            yield from self._read_reasoning(*self._reasoning)
        if self._syntax and self._syntax.is_whole:
            yield from self._read_whole(self._syntax)
        else:
            yield from self._read_content(self._syntax)

    def _read_reasoning(self, opening: str, close: str) -> Steps:
        if not self.is_reasoning:
            yield from self._cursor.skips_spaces()
            if not (yield from self._cursor.takes(opening)):
                self._cursor.at = 0
                return
        self.is_reasoning, self._message.strips = True, True
        found = yield from pass_on(self._cursor, (close,), self._message.add_reasoning)
        self.is_reasoning = not found

    def _read_content(self, syntax: CallSyntax | None) -> Steps:
        opens = syntax.opens if syntax else ()
        while opening := (yield from pass_on(self._cursor, opens, self._message.add_content)):
            assert syntax is not None
            if not (yield from self._read_call(syntax)):
                self._message.add_content(opening)

    def _read_call(self, syntax: CallSyntax) -> Generator[None, None, bool]:
        """Whether there was a call; otherwise the place is where it was."""
        start = self._cursor.at
        try:
            calls = yield from syntax.parse(self._cursor, self._tools)
        except Malformed:
            self._cursor.at = start
            return False
        for call in calls:
            self._message.add_call(call)
        behind = self._cursor.at
        if syntax.ends:
            yield from self._cursor.skips_spaces()
            if not (yield from self._cursor.takes(syntax.ends)):
                self._cursor.at = behind
        return True

    def _read_whole(self, syntax: CallSyntax) -> Steps:
        """A reply of calls alone, or else of content alone."""
        yield from self._cursor.skips_spaces()
        yield from self._cursor.takes(*syntax.opens)
        if not (yield from self._read_call(syntax)):
            self._cursor.at = 0
        yield from self._read_content(None)


class HarmonyReader(SteppingReader):
    """Reads the channels of gpt-oss: analysis is reasoning, a message to a function is a call, the others are content.

    The messages of a kind are joined by line breaks.
    """

    def __init__(self, message: MessageBuilder, *, parses_calls: bool, begun: str) -> None:
        super().__init__(message)
        self._parses_calls = parses_calls
        header = begun[begun.rindex(START) :] if START in begun else ""
        if MESSAGE in header:
            self._cursor.text = header[: header.index(MESSAGE)] + MESSAGE
        elif CHANNEL in header:
            self._cursor.text = header
        next(self._steps)

    def _read(self) -> Steps:
        """Text that is in no channel is content; a reply may begin with the rest of a header."""
        opening = yield from self._cursor.sees(" to=")
        while True:
            if not opening:
                opening = yield from pass_on(self._cursor, (START, CHANNEL), self._message.add_content)
            if not opening:
                return
            yield from self._read_channel("" if opening == " to=" else opening)
            opening = ""

    def _read_channel(self, opening: str) -> Steps:
        try:
            header = yield from self._read_header(opening)
        except Malformed:
            self._cursor.at = 0
            self._message.add_content(opening)
        else:
            yield from self._read_message(header)
            yield from self._cursor.takes(END, RETURN, CALL)

    def _read_header(self, opening: str) -> Generator[None, None, str]:
        header = yield from self._cursor.until(MESSAGE, within=NAME_LENGTH)
        yield from self._cursor.expects(MESSAGE)
        self._cursor.drop()
        return opening + header

    def _read_message(self, header: str) -> Steps:
        channel = re.search(r"<\|channel\|>\s*(\w*)", header)
        function = re.search(r"\bto=functions\.([\w.\-]+)", header)
        if function and self._parses_calls and function[1]:
            yield from self._read_call(header, function[1])
        elif channel and channel[1] == "analysis":
            yield from self._read_analysis()
        else:
            if " to=" in header:
                self._message.add_content(f"{header}{MESSAGE}")
            elif self._message.content:
                self._message.add_content("\n")
            yield from self._read_body(self._message.add_content)

    def _read_analysis(self) -> Steps:
        self.is_reasoning = True
        if self._message.reasoning:
            self._message.add_reasoning("\n")
        self.is_reasoning = not (yield from self._read_body(self._message.add_reasoning))

    def _read_call(self, header: str, name: str) -> Steps:
        try:
            yield from self._cursor.skips_spaces()
            call = request(name, (yield from self._cursor.json()))
            yield from self._cursor.skips_spaces()
            if not ((yield from self._cursor.sees(CALL, END, START)) or (yield from self._cursor.is_over())):
                raise Malformed("no end of the call")
        except Malformed:
            self._cursor.at = 0
            self._message.add_content(f"{header}{MESSAGE}")
            yield from self._read_body(self._message.add_content)
        else:
            self._message.add_call(call)

    def _read_body(self, say: Callable[[str], None]) -> Generator[None, None, str]:
        """Say the text up to the marker that ends a message, and return that one, which is read next."""
        found = yield from pass_on(self._cursor, (END, RETURN, CALL, START), say)
        self._cursor.text = found + self._cursor.text
        return found
