"""KV caches are lent to a text and kept for the next one that begins alike: a further turn of a chat, another sample.

A text begins with the rows that hold most of its prompt, or with a copy where another text goes on with them. Texts of
a batch also wait for one another's prompts. All of them find their lender here.

Rows are given back when a text ends. An abandoned text gives its rows back in a finalizer: on any thread, in the middle
of a forward, even on a thread that holds the lock. So `give` never blocks: it appends to a queue (`Tray`) that the
holder of the lock empties.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from operator import attrgetter
from typing import Generic, NamedTuple, TypeVar

from paceline.context import common_length
from paceline.targets.base import Rows
from paceline.tree import Ints

Thing = TypeVar("Thing")

LOST = 32
"""Rows that a text may lose to another one, as chats do whose next turn is read in other tokens."""
WORTH_WAITING = 16
"""A text waits for the rows of another one's prompt if that spares it at least this many."""


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


class Lender(NamedTuple):
    """Rows that hold the beginning of a prompt, and how many of its tokens they hold."""

    rows: Rows
    common: int

    def lend_to(self, rows: Rows) -> None:
        """Replace ``rows`` by a copy of the common beginning, unless they are the lender."""
        if rows is not self.rows:
            rows.adopt(self.rows, self.common)


def best_lender(tokens: Ints, held: Iterable[Rows]) -> Lender:
    """The rows that hold most of a prompt; of equals the first."""
    return max((Lender(rows, rows.common_prefix(tokens)) for rows in held), key=attrgetter("common"))


def worth_waiting(tokens: Ints, common: int, others: Iterable[Ints], lends: Callable[[int, int], int]) -> bool:
    """Whether a prompt, of which ``common`` tokens are held, waits until one of the ``others`` has been read, of which
    it could then take over as many as their target ``lends``."""
    return any(lends(common_length(tokens, other), len(other)) >= common + WORTH_WAITING for other in others)


class KeptRows:
    """The rows of up to ``limit`` sequences, those lent out included. Several threads may take and give.

    With ``copies_lent`` new texts also get copies of rows that are lent out, which then change only under the lock, or
    in the one thread that takes rows.
    """

    def __init__(
        self,
        open_rows: Callable[[int], Rows],
        look: Callable[[], int],
        limit: int = 1,
        *,
        copies_lent: bool = False,
        spare: int | None = None,
    ) -> None:
        """``open_rows`` opens new rows with memory for a number of tokens; ``look`` is `Target.look`. With ``spare`` so
        many sequences are kept however many are lent out, in place of a ``limit`` of both; and rows of which more than
        `LOST` would be lost stay with their own text as long as there is room: it may be a chat that goes on."""
        self._open_rows, self._look = open_rows, look
        self._changes = 0
        self._limit = limit
        self._copies_lent = copies_lent
        self._most_spare = spare
        self._spare: list[Rows] = []
        self._lent: list[Rows] = []
        self._tray = Tray(self._keep)

    def held(self) -> AbstractContextManager[None]:
        """Hold the lock; no rows are lent or put away meanwhile."""
        return self._tray.held()

    def take(self, tokens: Ints, capacity: int) -> Rows:
        """Rows for a text: the kept ones with the longest common prefix, or new ones.

        While there is room, rows of which less than half would be reused are kept for their own text; new rows then get
        a copy of the common prefix.
        """
        with self.held():  # also during the copy, so that no other thread takes and overwrites the rows
            return self.lend(tokens, capacity)

    def lend(self, tokens: Ints, capacity: int) -> Rows:
        """`take`, by the holder of the lock."""
        self._part_with_old()
        rows = self._taken_over(tokens)
        if rows is None:
            rows = self._open_rows(capacity)
        lent = (rows for rows in self._lent if rows.changes == self._changes)
        others = [*self._spare, *(lent if self._copies_lent else ())]
        return self._lend(rows, best_lender(tokens, [rows, *others]))

    def copy(self, rows: Rows, capacity: int) -> Rows:
        """New rows with a copy of lent ones, for a text that may become of theirs; by the holder of the lock."""
        return self._lend(self._open_rows(capacity), Lender(rows, rows.committed))

    def give(self, rows: Rows) -> None:
        """Keep these rows, unless `clear` was called since they were taken. Too many: the oldest are closed."""
        self._tray.give(rows)

    def drop(self, rows: Rows) -> None:
        """Close lent rows instead of keeping them."""
        with self.held():
            self._lent = [lent for lent in self._lent if lent is not rows]
        rows.close()

    def shrink(self, most: int) -> None:
        """Close the oldest spare sequences until the others hold at most ``most`` rows."""
        with self.held():
            held = sum(rows.committed for rows in self._spare)
            while self._spare and held > most:
                held -= self._spare[0].committed
                self._spare.pop(0).close()

    @property
    def rows(self) -> int:
        """How many rows all sequences hold, those lent out included."""
        with self.held():
            return sum(rows.committed for rows in (*self._spare, *self._lent))

    def clear(self) -> None:
        """Close all spare rows, and do not keep those that are lent out now."""
        with self.held():
            old, self._spare = self._spare, []
            self._lent.clear()
        for spare in old:
            spare.close()

    def _part_with_old(self) -> None:
        """A changed model reads the whole text again: rows are of the model that made them."""
        self._changes = self._look()
        for old in [rows for rows in self._spare if rows.changes != self._changes]:
            self._spare.remove(old)
            old.close()

    def _taken_over(self, tokens: Ints) -> Rows | None:
        if not self._spare:
            return None
        best, common = best_lender(tokens, self._spare)
        lost = best.committed - common
        if not (lost < common if self._most_spare is None else lost <= min(common, LOST)):
            if len(self._spare) < self._room:
                return None
            if self._most_spare is not None:
                best = self._spare[0]
        self._spare.remove(best)
        return best

    @property
    def _room(self) -> int:
        """How many sequences can be kept besides those that are lent out."""
        return self._limit - len(self._lent) if self._most_spare is None else self._most_spare

    def _lend(self, rows: Rows, lender: Lender) -> Rows:
        try:
            lender.lend_to(rows)
        except BaseException:
            rows.close()
            raise
        self._lent.append(rows)
        return rows

    def _keep(self, rows: Rows) -> None:
        if rows not in self._lent:
            rows.close()
            return
        self._lent.remove(rows)
        if rows.changes != self._changes:
            rows.close()
            return
        self._spare.append(rows)
        while len(self._spare) > (max(1, self._room) if self._most_spare is None else self._room):
            self._spare.pop(0).close()

    def __len__(self) -> int:
        """Kept rows that are not lent out."""
        return len(self._spare)
