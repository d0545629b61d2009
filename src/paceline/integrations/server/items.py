"""The output of the Responses API, item by item, and the events of its stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.integrations.server.replies import Delta

Event = dict[str, Any]
TEXT, REASONING = "content", "reasoning"


class Items:
    """The items of a reply: reasoning, messages and calls of functions in their order. The events follow from the
    deltas alone."""

    def __init__(self, response_id: str) -> None:
        self._stem = response_id.removeprefix("resp_")
        self.output: list[dict[str, Any]] = []
        self._open: tuple[str, int] | None = None
        """The kind of the item that is being written, and the number of its call."""
        self._held: list[Any] = []
        """Log-probabilities of tokens whose text was held back."""

    def hold(self, logprobs: Sequence[Any]) -> None:
        """Keep log-probabilities of tokens for the next delta."""
        self._held += logprobs

    def push(self, delta: Delta) -> list[Event]:
        """The events of one delta, with the log-probabilities that are held. Only the text of messages has those."""
        logprobs, self._held = self._held, []
        key = ("call", delta.index) if delta.kind in ("call", "arguments") else (delta.kind, 0)
        events = [] if key == self._open else [*self.close(), *self._begin(key, delta)]
        item, place = self.output[-1], {"output_index": len(self.output) - 1, "item_id": self.output[-1]["id"]}
        if delta.kind == "arguments":
            item["arguments"] += delta.text
            events.append({"type": "response.function_call_arguments.delta", **place, "delta": delta.text})
        elif delta.kind != "call":
            item["content"][0]["text"] += delta.text
            item["content"][0].get("logprobs", []).extend(logprobs)
            more = {"logprobs": list(logprobs)} if delta.kind == TEXT else {}
            name = _event_name(delta.kind)
            events.append({"type": f"{name}.delta", **place, "content_index": 0, "delta": delta.text, **more})
        return events

    def _begin(self, key: tuple[str, int], delta: Delta) -> list[Event]:
        """A new item."""
        self._open = key
        number, item = len(self.output), dict[str, Any]()
        if key[0] == "call":
            item = {"id": f"fc_{self._stem}{number}", "type": "function_call", "status": "in_progress"}
            item |= {"call_id": delta.id, "name": delta.name, "arguments": ""}
            self.output.append(item)
            return [{"type": "response.output_item.added", "output_index": number, "item": dict(item)}]
        if key[0] == REASONING:
            item, part = {"id": f"rs_{self._stem}{number}", "type": "reasoning", "summary": []}, _reasoning_part()
        else:
            item, part = {"id": f"msg_{self._stem}{number}", "type": "message", "role": "assistant"}, _text_part()
        item |= {"status": "in_progress", "content": []}
        self.output.append(item)
        events = [{"type": "response.output_item.added", "output_index": number, "item": {**item, "content": []}}]
        item["content"] = [part]
        place = {"output_index": number, "item_id": item["id"], "content_index": 0}
        return [*events, {"type": "response.content_part.added", **place, "part": dict(part)}]

    def end(self, status: str) -> list[Event]:
        """The events at the end of the reply."""
        events: list[Event] = []
        if self._held and self._open == (TEXT, 0):
            events = self.push(Delta("content"))
        return [*events, *self.close(status)]

    def close(self, status: str = "completed") -> list[Event]:
        """The events at the end of the item that is being written."""
        if self._open is None:
            return []
        kind, self._open = self._open[0], None
        item, number = self.output[-1], len(self.output) - 1
        item["status"] = status
        place = {"output_index": number, "item_id": item["id"]}
        ended = {"type": "response.output_item.done", "output_index": number, "item": item}
        if kind == "call":
            said = {"arguments": item["arguments"], "name": item["name"]}
            return [{"type": "response.function_call_arguments.done", **place, **said}, ended]
        part = item["content"][0]
        more = {"logprobs": part["logprobs"]} if kind == TEXT else {}
        return [
            {"type": f"{_event_name(kind)}.done", **place, "content_index": 0, "text": part["text"], **more},
            {"type": "response.content_part.done", **place, "content_index": 0, "part": part},
            ended,
        ]


def _event_name(kind: str) -> str:
    return "response.reasoning_text" if kind == REASONING else "response.output_text"


def _text_part() -> dict[str, Any]:
    return {"type": "output_text", "text": "", "annotations": [], "logprobs": []}


def _reasoning_part() -> dict[str, Any]:
    return {"type": "reasoning_text", "text": ""}
