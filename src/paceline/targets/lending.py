"""KV caches are lent to a text and kept for the next one that begins alike: a further turn of a chat, another sample.

Rows are given back when a text ends. An abandoned text gives its rows back in a finalizer: on any thread, in the middle
of a forward, even on a thread that holds the lock. So `give` never blocks: it appends to a queue (`Tray`) that the
holder of the lock empties.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from paceline.targets.base import Rows, Target
from paceline.tree import Ints

Thing = TypeVar("Thing")


class Tray(Generic[Thing]):
    """A lock with a queue of things that were given back; ``put_away`` is called with each of them under the lock."""

    def __init__(self, put_away: Callable[[Thing], None]) -> None:
        self._put_away = put_away
        self._lock = threading.Lock()
        self._things: deque[Thing] = deque()

    def give(self, thing: Thing) -> None:
        """Give something back; safe in a finalizer."""
        self._things.append(thing)
        self._tidy()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock; nothing is put away meanwhile."""
        try:
            with self._lock:
                self._empty()
                yield
        finally:
            self._tidy()

    def _tidy(self) -> None:
        """Empty the queue, unless the lock is held: its holder empties the queue then."""
        while self._things and self._lock.acquire(blocking=False):
            try:
                self._empty()
            finally:
                self._lock.release()

    def _empty(self) -> None:
        while self._things:
            self._put_away(self._things.popleft())


class KeptRows:
    """The rows of up to ``limit`` sequences, those lent out included. Several threads may take and give."""

    def __init__(self, target: Target, limit: int = 1) -> None:
        self._target = target
        self._limit = limit
        self._spare: list[Rows] = []
        self._lent: set[Rows] = set()
        self._tray = Tray(self._keep)

    def take(self, tokens: Ints, capacity: int) -> Rows:
        """Rows for a text: the kept ones with the longest common prefix, or new ones.

        While there is room, rows of which less than half would be reused are kept for their own text; new rows then get
        a copy of the common prefix.
        """
        with self._tray.held():  # also during the copy, so that no other thread takes and overwrites the rows
            best = max(self._spare, key=lambda rows: rows.common_prefix(tokens), default=None)
            full = len(self._lent) + len(self._spare) >= self._limit
            common = 0 if best is None else best.common_prefix(tokens)
            if best is not None and (full or 2 * common > best.committed):
                self._spare.remove(best)
                rows = best
            else:
                rows = self._target.open(capacity)
                try:
                    if best is not None and common:
                        rows.adopt(best, common)
                except BaseException:
                    rows.close()
                    raise
            self._lent.add(rows)
        return rows

    def give(self, rows: Rows) -> None:
        """Keep these rows, unless `clear` was called since they were taken. Too many: the oldest are closed."""
        self._tray.give(rows)

    def clear(self) -> None:
        """Close all spare rows, and do not keep those that are lent out now."""
        with self._tray.held():
            old, self._spare = self._spare, []
            self._lent.clear()
        for spare in old:
            spare.close()

    def _keep(self, rows: Rows) -> None:
        if rows not in self._lent:
            rows.close()
            return
        self._lent.remove(rows)
        self._spare.append(rows)
        while len(self._spare) > max(1, self._limit - len(self._lent)):
            self._spare.pop(0).close()

    def __len__(self) -> int:
        """Kept rows that are not lent out."""
        return len(self._spare)
