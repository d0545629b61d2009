"""Requests end in a separate thread: a drafter may remember their texts and save them."""

from __future__ import annotations

import queue
import threading
from typing import Any

from paceline.drafters import Drafter

WAITED = 5.0
"""Seconds for the last of them, when the program ends."""


class Closing:
    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self._states: queue.SimpleQueue[tuple[Any] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._close, name="paceline closes", daemon=True)
        self._thread.start()

    def give(self, state: Any) -> None:
        self._states.put((state,))

    def waits(self) -> int:
        """How many have not ended yet."""
        return self._states.qsize()

    def _close(self) -> None:
        while (given := self._states.get()) is not None:
            try:
                self._drafter.close(*given)
            except Exception:  # the text is written, and no caller waits
                continue

    def end(self) -> None:
        self._states.put(None)
        self._thread.join(WAITED)
