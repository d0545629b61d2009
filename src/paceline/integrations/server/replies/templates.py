"""Replies of models whose tokenizer brings a response template: read by the parser of transformers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

from paceline.integrations.server.replies.cursor import Malformed
from paceline.integrations.server.replies.message import MessageBuilder
from paceline.integrations.server.replies.values import requested

REASONING = frozenset({"reasoning_content", "reasoning", "thinking"})
CALLS, CONTENT = "tool_calls", "content"


def has_parser(template: Any) -> bool:
    """Whether this version of transformers can read replies by this template."""
    try:
        _parser(template, "", ())
    except (ImportError, ValueError, KeyError, TypeError, AttributeError):
        return False
    return True


def _parser(template: Any, prefix: str, tools: Iterable[Mapping[str, Any]]) -> Any:
    module = import_module("transformers.utils.chat_parsing")
    return module.ResponseParser(template, prefix=prefix, tools=[dict(tool) for tool in tools])


class TemplateReader:
    """Reads what `parse_response` of transformers reads, event by event.

    The parser gets one character at a time, so where the text is cut does not matter. What it cannot parse is
    content. Where content is interrupted it keeps the last part, and here all parts stay.
    """

    def __init__(
        self,
        message: MessageBuilder,
        template: Mapping[str, Any],
        tools: Iterable[Mapping[str, Any]],
        *,
        parses_calls: bool,
        begun: str,
    ) -> None:
        self._message, self._template, self._tools = message, template, list(tools)
        self._parses_calls, self._raw, self._region = parses_calls, "", ""
        message.strips = True
        self._parser = _parser(template, begun, self._tools)
        for event in self._parser.initial_events:
            self._region = event["field"] if event["type"] != "region_close" else ""

    @property
    def is_reasoning(self) -> bool:
        """Whether the place up to which the text is read is inside of reasoning."""
        return self._region in REASONING

    def feed(self, text: str) -> None:
        """Read more text."""
        for character in text:
            self._raw += character
            try:
                events = self._parser.feed(character)
            except ValueError:
                self._give_up()
                continue
            self._take(events)

    def end(self) -> None:
        """Read what waits: no text follows."""
        try:
            _, events = self._parser.finalize()
        except (ValueError, RuntimeError):
            self._give_up()
            return
        self._take(events)

    def _give_up(self) -> None:
        """What was read since the last certain event is content, and reading begins again behind it."""
        self._message.add_content(self._raw)
        self._raw, self._region = "", ""
        self._parser = _parser(self._template, "", self._tools)

    def _take(self, events: list[dict[str, Any]]) -> None:
        """A marker that ends a region is dropped; one that begins a region stays until its text is certain."""
        for event in events:
            field = event["field"]
            match event["type"]:
                case "region_open":
                    self._open(field)
                case "region_chunk" if field in REASONING:
                    self._message.add_reasoning(event["text"])
                    self._raw = ""
                case "region_chunk" if field == CONTENT:
                    self._message.add_content(event["text"])
                    self._raw = ""
                case "region_close":
                    self._close(field, event["value"])
        if events and events[-1]["type"] == "region_close":
            self._raw = ""

    def _open(self, field: str) -> None:
        joint = self._template["fields"][field].get("join")
        self._region = field
        if joint and field in REASONING and self._message.reasoning:
            self._message.add_reasoning(joint)
        if joint and field == CONTENT and self._message.content:
            self._message.add_content(joint)

    def _close(self, field: str, value: Any) -> None:
        self._region = ""
        if field == CALLS:
            self._add_calls(value if isinstance(value, list) else [value])
            self._raw = ""

    def _add_calls(self, values: list[Any]) -> None:
        try:
            calls = [requested(value) for value in values] if self._parses_calls else []
        except Malformed:
            calls = []
        for call in calls:
            self._message.add_call(call)
        if not calls:
            self._message.add_content(self._raw)
