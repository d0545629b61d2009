"""How models write tool calls: one parser for each family, over a text that is still being written.

A parser starts behind an opening marker and returns the calls, or raises `Malformed`: then marker and body are content.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator
from dataclasses import dataclass

from paceline.integrations.server.replies.cursor import NAME_LENGTH, Cursor, Malformed
from paceline.integrations.server.replies.message import RequestedCall
from paceline.integrations.server.replies.values import Tools, request, requested, typed

Calls = Generator[None, None, list[RequestedCall]]
Parser = Callable[[Cursor, Tools], Calls]


@dataclass(frozen=True)
class CallSyntax:
    """How a family of models writes calls."""

    opens: tuple[str, ...]
    """Markers that a call, or a section of calls, begins with."""
    parse: Parser
    ends: str = ""
    """Ends a section of calls, and is dropped after a call."""
    inner: tuple[str, ...] = ()
    """Further markers in the body."""
    is_whole: bool = False
    """Whether the calls are the whole reply, which then needs no marker."""

    @property
    def markers(self) -> tuple[str, ...]:
        """All markers."""
        return (*self.opens, *self.inner, self.ends)


def tagged(cursor: Cursor, tools: Tools) -> Calls:
    """`<tool_call>`, and one of three bodies: JSON (Hermes, Qwen), functions and parameters as tags (Qwen3-Coder,
    Qwen3.5), keys and values as tags (GLM)."""
    yield from cursor.skips_spaces()
    if (yield from cursor.sees("{")):
        call = requested((yield from cursor.json()))
    elif (yield from cursor.takes("<function=")):
        call = yield from _function_tags(cursor, tools)
    else:
        call = yield from _key_tags(cursor, tools)
    yield from _closes(cursor, "</tool_call>", "<tool_call>")
    return [call]


def _closes(cursor: Cursor, close: str, again: str) -> Generator[None, None, None]:
    """Some models leave the closing marker out at the end, or before the next call."""
    yield from cursor.skips_spaces()
    if (yield from cursor.takes(close)) or (yield from cursor.sees(again)) or (yield from cursor.is_over()):
        return
    raise Malformed(f"no {close} here")


def _function_tags(cursor: Cursor, tools: Tools) -> Generator[None, None, RequestedCall]:
    name = (yield from cursor.until(">", within=NAME_LENGTH)).strip()
    yield from cursor.expects(">")
    written = dict[str, str]()
    while True:
        yield from cursor.skips_spaces()
        if (yield from cursor.takes("</function>")):
            return request(name, typed(name, written, tools))
        yield from cursor.expects("<parameter=")
        key = (yield from cursor.until(">", within=NAME_LENGTH)).strip()
        yield from cursor.expects(">")
        value = yield from cursor.until("</parameter>")
        yield from cursor.expects("</parameter>")
        written[key] = value.removeprefix("\n").removesuffix("\n")


def _key_tags(cursor: Cursor, tools: Tools) -> Generator[None, None, RequestedCall]:
    name = yield from cursor.word()
    written = dict[str, str]()
    while True:
        yield from cursor.skips_spaces()
        if not (yield from cursor.takes("<arg_key>")):
            if name not in tools:  # or any word between the markers would be a call
                raise Malformed("no call of a tool")
            return request(name, typed(name, written, tools))
        key = (yield from cursor.until("</arg_key>", within=NAME_LENGTH)).strip()
        yield from cursor.expects("</arg_key>")
        yield from cursor.skips_spaces()
        yield from cursor.expects("<arg_value>")
        written[key] = yield from cursor.until("</arg_value>")
        yield from cursor.expects("</arg_value>")


def llama(cursor: Cursor, tools: Tools) -> Calls:
    """JSON objects, with `;` between them, that are the whole reply. Replies may be JSON without being calls, so the
    function must be one of the request's."""
    calls = list[RequestedCall]()
    while True:
        yield from cursor.skips_spaces()
        value = yield from cursor.json()
        if not isinstance(value, dict) or value.get("name") not in tools or not value.keys() & ARGUMENTS:
            raise Malformed("no call of a tool")
        calls.append(requested(value))
        yield from cursor.skips_spaces()
        if (yield from cursor.is_over()):
            return calls
        yield from cursor.expects(";")


def mistral(cursor: Cursor, tools: Tools) -> Calls:
    """A list of calls as JSON, or since 2025 a name and arguments."""
    yield from cursor.skips_spaces()
    if (yield from cursor.sees("[")):
        values = yield from cursor.json()
        if not values:
            raise Malformed("no call")
        return [requested(value) for value in values]
    name = yield from cursor.word()
    yield from cursor.skips_spaces()
    if (yield from cursor.takes("[CALL_ID]")):
        yield from cursor.skips_spaces()
        yield from cursor.word()
        yield from cursor.skips_spaces()
    yield from cursor.takes("[ARGS]")
    yield from cursor.skips_spaces()
    return [request(name, (yield from cursor.json()))]


def deepseek(cursor: Cursor, tools: Tools) -> Calls:
    """A name and arguments; before V3.1 the type, the name, and arguments in a code block."""
    yield from cursor.skips_spaces()
    yield from cursor.takes(DEEPSEEK_CALL)
    name = (yield from cursor.until(DEEPSEEK_NAME, within=NAME_LENGTH)).strip()
    yield from cursor.expects(DEEPSEEK_NAME)
    yield from cursor.skips_spaces()
    fenced = name == "function" and not (yield from cursor.sees("{"))
    if fenced:
        name = (yield from cursor.until("\n", within=NAME_LENGTH)).strip()
        yield from cursor.skips_spaces()
        yield from cursor.expects("```json")
        yield from cursor.skips_spaces()
    call = request(name, (yield from cursor.json()))
    yield from cursor.skips_spaces()
    if fenced:
        yield from cursor.expects("```")
    yield from _closes(cursor, "<｜tool▁call▁end｜>", DEEPSEEK_CALL)
    return [call]


def kimi(cursor: Cursor, tools: Tools) -> Calls:
    """`functions.NAME:NUMBER` and arguments."""
    yield from cursor.skips_spaces()
    yield from cursor.takes(KIMI_CALL)
    name = (yield from cursor.until(KIMI_ARGUMENTS, within=NAME_LENGTH)).strip()
    yield from cursor.expects(KIMI_ARGUMENTS)
    yield from cursor.skips_spaces()
    call = request(re.sub(r":\d+$", "", name.removeprefix("functions.")), (yield from cursor.json()))
    yield from _closes(cursor, "<|tool_call_end|>", KIMI_CALL)
    return [call]


def gemma(opening: str, close: str, quote: str) -> CallSyntax:
    """`call:NAME{key:value}`, where keys have no quotes and strings have markers for quotes."""

    def parse(cursor: Cursor, tools: Tools) -> Calls:
        yield from cursor.expects("call:")
        name = yield from cursor.word()
        body = yield from cursor.until(close)
        yield from cursor.expects(close)
        return [request(name, _strict(body, quote))]

    return CallSyntax((opening,), parse, inner=(close, quote))


def _strict(body: str, quote: str) -> str:
    """Arguments of Gemma as JSON text. Every second part between markers is a string."""
    parts = body.split(quote)
    parts[1::2] = [json.dumps(part, ensure_ascii=False) for part in parts[1::2]]
    parts[::2] = [re.sub(r"([{,]\s*)([\w.\-]+)(\s*:)", r'\1"\2"\3', part) for part in parts[::2]]
    return "".join(parts)


ARGUMENTS = frozenset({"arguments", "parameters"})
DEEPSEEK_CALL, DEEPSEEK_NAME = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"
KIMI_CALL, KIMI_ARGUMENTS = "<|tool_call_begin|>", "<|tool_call_argument_begin|>"
TAGGED = CallSyntax(
    ("<tool_call>",), tagged, inner=("</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
)
LLAMA = CallSyntax(("<|python_tag|>",), llama, is_whole=True)
MISTRAL = CallSyntax(("[TOOL_CALLS]",), mistral, inner=("[CALL_ID]", "[ARGS]"))
DEEPSEEK = CallSyntax(
    ("<｜tool▁calls▁begin｜>", DEEPSEEK_CALL), deepseek, "<｜tool▁calls▁end｜>", (DEEPSEEK_NAME, "<｜tool▁call▁end｜>")
)
KIMI = CallSyntax(
    ("<|tool_calls_section_begin|>", KIMI_CALL),
    kimi,
    "<|tool_calls_section_end|>",
    (KIMI_ARGUMENTS, "<|tool_call_end|>"),
)
GEMMA = gemma("<|tool_call>", "<tool_call|>", '<|"|>')
FUNCTION_GEMMA = gemma("<start_function_call>", "<end_function_call>", "<escape>")
