"""Rows of finished texts, kept for texts that begin alike: the next turn of a chat, another sample of a prompt."""

from __future__ import annotations

import threading

from paceline.targets.base import Rows, Target
from paceline.tree import Ints


class KeptRows:
    """The rows of ``limit`` sequences, those lent out included. Several threads may take and give."""

    def __init__(self, target: Target, limit: int = 1) -> None:
        self._target = target
        self._limit = limit
        self._spare: list[Rows] = []
        self._lent: set[Rows] = set()
        self._lock = threading.Lock()

    def take(self, tokens: Ints, capacity: int) -> Rows:
        """Rows to write a text on: the kept ones that hold most of it, or else new ones.

        Rows that would lose more than they serve are left to the text that they were kept for, while there is room for
        both; new ones then get a copy of the common beginning.
        """
        with self._lock:  # also while rows are copied, lest somebody else takes them and writes over them meanwhile
            best = max(self._spare, key=lambda rows: rows.common_prefix(tokens), default=None)
            full = len(self._lent) + len(self._spare) >= self._limit
            common = 0 if best is None else best.common_prefix(tokens)
            if best is not None and (full or 2 * common > best.committed):
                self._spare.remove(best)
                rows = best
            else:
                rows = self._target.open(capacity)
                if best is not None and common:
                    rows.adopt(best, common)
            self._lent.add(rows)
        return rows

    def give(self, rows: Rows) -> None:
        """Keep these, unless all rows were given up since they were taken. The oldest go where there are too many."""
        with self._lock:
            if rows not in self._lent:
                rows.close()
                return
            self._lent.remove(rows)
            self._spare.append(rows)
            excess = len(self._spare) - max(1, self._limit - len(self._lent))
            old = [self._spare.pop(0) for _ in range(excess)]
        for spare in old:
            spare.close()

    def clear(self) -> None:
        """Give the memory of all spare rows back, and do not keep those that are lent out now."""
        with self._lock:
            old, self._spare = self._spare, []
            self._lent.clear()
        for spare in old:
            spare.close()

    def __len__(self) -> int:
        """How many are kept and not lent out."""
        return len(self._spare)
