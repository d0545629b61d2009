"""Rows that are lent out for a text and kept for the next that begins alike: a further turn of a chat, another sample.

Rows come back whenever a text ends, and one that nobody wanted to the end comes back when the garbage collector finds
it: at any place of the program, in the middle of a forward, in a thread that holds the very lock. So giving back never
waits. It lays things on a `Tray`, and whoever holds the lock puts them away.
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
    """A lock, and what was given back while somebody held it."""

    def __init__(self, put_away: Callable[[Thing], None]) -> None:
        self._put_away = put_away
        self._lock = threading.Lock()
        self._things: deque[Thing] = deque()

    def give(self, thing: Thing) -> None:
        """Give something back, from anywhere, at any time."""
        self._things.append(thing)
        self._tidy()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nobody else moves anything meanwhile, and nothing is put away."""
        try:
            with self._lock:
                self._empty()
                yield
        finally:
            self._tidy()

    def _tidy(self) -> None:
        """Put away what lies here, unless somebody holds the lock, who then will."""
        while self._things and self._lock.acquire(blocking=False):
            try:
                self._empty()
            finally:
                self._lock.release()

    def _empty(self) -> None:
        while self._things:
            self._put_away(self._things.popleft())


class KeptRows:
    """The rows of ``limit`` sequences, those lent out included. Several threads may take and give."""

    def __init__(self, target: Target, limit: int = 1) -> None:
        self._target = target
        self._limit = limit
        self._spare: list[Rows] = []
        self._lent: set[Rows] = set()
        self._tray = Tray(self._keep)

    def take(self, tokens: Ints, capacity: int) -> Rows:
        """Rows to write a text on: the kept ones that hold most of it, or else new ones.

        Rows that would lose more than they serve are left to the text that they were kept for, while there is room for
        both; new ones then get a copy of the common beginning.
        """
        with self._tray.held():  # also while rows are copied, lest somebody else takes them and writes over them
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
        """Keep these, unless all rows were given up since they were taken. The oldest go where there are too many."""
        self._tray.give(rows)

    def clear(self) -> None:
        """Give the memory of all spare rows back, and do not keep those that are lent out now."""
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
        """How many are kept and not lent out."""
        return len(self._spare)
