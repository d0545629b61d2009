"""vLLM's requests as texts of ours.

vLLM says in each step how long the text of every row is and where its tokens stand, and no more: rows change places,
and requests leave and come back; and where one is near the longest text, it does not ask for drafts at all for some
steps. So a text is found again by what it holds. A row that goes on in its place is seen at its last known tokens, and
at one of the others, which is another one in each step; any other row is compared whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.context import Context, Ending
from paceline.engine.served import ServedText
from paceline.law import Sampling
from paceline.tree import Ints

TAIL = 16
"""Tokens at the end of a text by which it is recognised."""
FORGOTTEN = 256
"""Steps after which a request that does not come back is over."""
GREEDY = Sampling()
STRIDE = 0.6180339887498949
"""Of the length of a text: from one token that is looked at to the next."""

Tokens = NDArray[np.int32]
"""All rows ``[requests, longest]``, as vLLM has them; never written."""


class RequestContext(Context):
    """The tokens of a request."""

    def __init__(self, tokens: Tokens, longest: int) -> None:
        super().__init__(tokens.astype(np.int64), GREEDY, Ending(max_new_tokens=max(1, longest - len(tokens))))
        self._longest = longest

    @property
    def room(self) -> int:
        return self._longest - self._length

    def follow(self, tokens: Tokens | list[int]) -> None:
        """It went on with these."""
        end = self._length + len(tokens)
        self._make_room(end)
        if len(tokens) == 1:
            self._buffer[self._length] = tokens[0]
        else:
            self._buffer[self._length : end] = tokens
        self._length = end

    def begins(self, tokens: Tokens) -> bool:
        """Whether these go on with it."""
        return bool((self._buffer[: self._length] == tokens[: self._length]).all())

    def at(self, place: int) -> int:
        return int(self._buffer[place])


@dataclass(eq=False)
class Following(ServedText):
    """A request, as far as it is known."""

    context: RequestContext
    slot: int = -1
    draft: list[int] = field(default_factory=list)
    """The tokens that vLLM was given last, padding included."""

    def forget(self) -> None:
        super().forget()
        self.draft = []


class ServedTexts:
    """All requests that are known."""

    def __init__(
        self, rows: int, longest: int, open: Callable[[RequestContext], Any], close: Callable[[Any], None]
    ) -> None:
        """For ``rows`` rows at once. ``open`` makes a drafter's state of a text, and ``close`` ends one."""
        slots = 2 * rows
        self._longest, self._open, self._close = longest, open, close
        self._known = np.zeros(slots, np.int64)
        self._tails = np.zeros((slots, TAIL), np.int32)
        self._seen = np.zeros(slots, np.int64)
        self._of: list[Following | None] = [None] * slots
        self._free = list(range(slots))
        self._rows = np.full(rows, -1, np.int64)
        """The slot of each row in the last step."""
        self._step, self._look = 0, 0.0

    def __len__(self) -> int:
        return len(self._of) - len(self._free)

    def step(self, sampled: Sequence[Sequence[int]], lengths: Ints, tokens: Tokens) -> list[Following | None]:
        """The requests that go on in their places, one for each row; None for those that must be looked up."""
        count = len(sampled)
        self._step += 1
        self._look = (self._look + STRIDE) % 1.0
        if len(self._rows) < count:
            self._rows = np.concatenate([self._rows, np.full(count - len(self._rows), -1, np.int64)])
        slots, self._rows[count:] = self._rows[:count], -1
        new = np.fromiter(map(len, sampled), np.int64, count)
        known = self._known[slots]
        same = (slots >= 0) & (new > 0) & (known + new <= lengths)
        same &= (self._tails[slots] == tails(tokens, np.arange(count), known)).all(axis=1)
        found: list[Following | None] = [None] * count
        rows = same.nonzero()[0]
        look = (self._look * known[rows]).astype(np.int64)
        whole = (known + new)[rows] < lengths[rows]  # it went on while no drafts were asked for
        numbers = rows.tolist(), slots[rows].tolist(), look.tolist(), tokens[rows, look].tolist(), whole.tolist()
        for row, slot, place, token, all_of_it in zip(*numbers, strict=True):
            each = self._of[slot]
            if each is not None and each.context.at(place) == token:
                if all_of_it and not each.context.begins(tokens[row]):
                    continue
                found[row] = each
                self._seen[slot] = self._step
        self._rows[:count] = -1
        if self._step % FORGOTTEN == 0:
            self._forget()
        return found

    def find(self, row: int, new: int, length: int, tokens: Tokens) -> Following | None:
        """A request that is known, and has come to this row with ``new`` tokens or more behind what is known of it."""
        theirs = tails(tokens, np.full(len(self._known), row), self._known)
        alike = (self._known > 0) & (self._known + new <= length) & (self._tails == theirs).all(axis=1)
        slots = alike.nonzero()[0]
        for slot in slots[np.argsort(-self._known[slots])].tolist():  # of several, the one that knows most
            each: Following | None = self._of[slot]
            if each is not None and self._seen[slot] < self._step and each.context.begins(tokens[row]):
                self._seen[slot] = self._step
                each.forget()  # the engine has thrown its draft away
                return each
        return None

    def begin(self, row: int, length: int, tokens: Tokens) -> Following:
        """A request that is not known."""
        text = RequestContext(tokens[row, :length], self._longest)
        try:
            state = self._open(text)
        except Exception:
            self.keep([row], [self._enter(text, None, off=True)], tokens)  # so that it is not tried again
            raise
        return self._enter(text, state)

    def _enter(self, text: RequestContext, state: Any, *, off: bool = False) -> Following:
        if not self._free:
            self._end(int(np.argmin(self._seen)))
        slot = self._free.pop()
        each = self._of[slot] = Following(text, state, slot=slot, off=off)
        self._seen[slot] = self._step
        return each

    def keep(self, rows: Sequence[int], followed: Sequence[Following], tokens: Tokens) -> None:
        """These rows' texts are as long as they are now."""
        where, slots = np.array(rows, np.int64), np.array([each.slot for each in followed], np.int64)
        known = np.array([len(each.context) for each in followed], np.int64)
        self._rows[where], self._known[slots] = slots, known
        self._tails[slots] = tails(tokens, where, known)

    def _forget(self) -> None:
        for slot in (self._seen < self._step - FORGOTTEN).nonzero()[0].tolist():
            if self._of[slot] is not None:
                self._end(slot)

    def _end(self, slot: int) -> None:
        each = self._of[slot]
        assert each is not None, "only what was begun ends"
        self._of[slot], self._known[slot] = None, 0
        self._free.append(slot)
        if not each.off:
            self._close(each.state)

    def clear(self) -> None:
        """All requests are over."""
        for slot, each in enumerate(self._of):
            if each is not None:
                self._end(slot)
        self._rows[:] = -1


def tails(tokens: Tokens, rows: Ints, lengths: Ints) -> Tokens:
    """The last tokens of these rows' texts of these lengths."""
    places = lengths[:, None] - np.arange(1, TAIL + 1)
    np.maximum(places, 0, out=places)
    found: Tokens = tokens[rows[:, None], places]
    return found
