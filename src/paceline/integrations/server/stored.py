"""Answers of the Responses API that later requests may go on from, in memory and bounded."""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import Any, NamedTuple

from paceline.integrations.server.errors import ApiError

MOST, MOST_BYTES = 1024, 64 << 20


class StoredAnswer(NamedTuple):
    """One answer, and the whole conversation up to it."""

    response: dict[str, Any]
    messages: list[dict[str, Any]]
    size: int


class Store:
    """The last answers by their ids; the oldest go first."""

    def __init__(self, most: int = MOST, most_bytes: int = MOST_BYTES) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._kept: OrderedDict[str, StoredAnswer] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, response: dict[str, Any], messages: list[dict[str, Any]]) -> None:
        """Remember an answer."""
        size = len(json.dumps(messages)) + len(json.dumps(response))
        self._kept[response["id"]] = StoredAnswer(response, messages, size)
        self._bytes += size
        while len(self._kept) > self._most or self._bytes > self._most_bytes:
            self._bytes -= self._kept.popitem(last=False)[1].size

    def get(self, name: str) -> StoredAnswer:
        """The answer of this id."""
        if (found := self._kept.get(name)) is None:
            said = f"there is no response {name[:60]!r} here; a server keeps its last {self._most} in memory"
            raise ApiError(said, status=404, param="previous_response_id", code="previous_response_not_found")
        return found

    def drop(self, name: str) -> None:
        """Forget an answer."""
        self._bytes -= self.get(name).size
        del self._kept[name]
