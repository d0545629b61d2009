"""Joules from watts that are asked for, or told, again and again."""

from __future__ import annotations

import threading
import time


class Samples:
    """Powers as they come in, from another thread; what is wanted is their mean over a span."""

    def __init__(self) -> None:
        self._found: list[tuple[float, float]] = []
        self._began = time.monotonic()
        self._lock = threading.Lock()

    def add(self, watts: float) -> None:
        """The power as of now."""
        with self._lock:
            self._found.append((time.monotonic(), watts))

    def begin(self) -> None:
        """Forget all but the last: a span that is too short for a sample of its own has that one."""
        with self._lock:
            del self._found[:-1]
            self._began = time.monotonic()

    def mean(self) -> float | None:
        """Of the samples since the beginning, else the last one before; None where none ever came."""
        with self._lock:
            fresh = [watts for when, watts in self._found if when >= self._began]
            known = fresh or [watts for _, watts in self._found[-1:]]
        return sum(known) / len(known) if known else None
