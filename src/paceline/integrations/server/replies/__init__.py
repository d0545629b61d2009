"""Stopgap until the real one is merged."""

from __future__ import annotations

from typing import Any


class Delta:
    def __init__(self, kind: str, text: str = "", index: int = 0, name: str = "", id: str = "") -> None:
        self.kind, self.text, self.index, self.name, self.id = kind, text, index, name, id


class Reply:
    def __init__(
        self, format: Any, *, request_id: str, tools: Any = (), parses_calls: bool = True, begun: str = ""
    ) -> None:
        self.content, self.reasoning, self.calls, self.reasoning_tokens = "", "", [], 0
        self._finish = ""

    def push(self, piece: Any) -> list[Delta]:
        self.content += piece.text
        self._finish = piece.finish or self._finish
        return [Delta("content", piece.text)] if piece.text else []

    def end(self) -> list[Delta]:
        return []

    @property
    def message(self) -> dict[str, Any]:
        return {"role": "assistant", "content": self.content}

    @property
    def finish(self) -> str:
        return {"length": "length", "context": "length"}.get(str(self._finish), "stop")


def format_of(vocabulary: Any, forced: str | None = None) -> Any:
    return None
