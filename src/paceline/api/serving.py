"""Stopgap until the real one is merged."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.api.model import LanguageModel
    from paceline.api.piece import Piece
    from paceline.api.writing import Writing


class Serving:
    def __init__(self, lm: LanguageModel, *, at_once: int = 16, kept: int = 8, max_rows: int | None = None) -> None:
        self.lm, self.at_once = lm, at_once
        self.waiting = self.running = self.paused = self.rows = 0
        self.closed = False

    async def read(self, write: Callable[[], Writing]) -> AsyncGenerator[list[Piece], None]:
        async for piece in self.lm._shared.read(self.lm, write):
            yield [piece]

    def close(self) -> None:
        self.closed = True
