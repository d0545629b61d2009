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
        self._lent = 0
        self._lock = threading.Lock()

    def take(self, tokens: Ints, capacity: int) -> Rows:
        """Rows to write a text on: the kept ones that hold most of it, or else new ones.

        Rows that would lose more than they serve are left to the text that they were kept for, while there is room for
        both; new ones then get a copy of the common beginning.
        """
        with self._lock:
            best = max(self._spare, key=lambda rows: rows.common_prefix(tokens), default=None)
            full = self._lent + len(self._spare) >= self._limit
            common = 0 if best is None else best.common_prefix(tokens)
            serves = best is not None and (full or 2 * common > best.committed)
            if best is not None and serves:
                self._spare.remove(best)
            self._lent += 1
        if best is not None and serves:
            return best
        rows = self._target.open(capacity)
        if best is not None and common:
            rows.adopt(best, common)
        return rows

    def give(self, rows: Rows) -> None:
        """Keep these. The oldest go where there are too many."""
        with self._lock:
            self._lent -= 1
            self._spare.append(rows)
            excess = len(self._spare) - max(1, self._limit - self._lent)
            old = [self._spare.pop(0) for _ in range(excess)]
        for spare in old:
            spare.close()

    def clear(self) -> None:
        """Give the memory of all spare rows back."""
        with self._lock:
            old, self._spare = self._spare, []
        for spare in old:
            spare.close()

    def __len__(self) -> int:
        """How many are kept and not lent out."""
        return len(self._spare)
