"""Drafted bytes in the target's tokens, as a tree: the canonical tokens first, and others beside them.

A draft ends where the drafter's last token does, and a text need not be canonical: a model that samples writes now and
then ``wi`` and ``no`` where its tokenizer has ``wino``. So the tree holds, as far as they are likely enough,

- the tokens that the tokenizer itself would have behind the committed text. Those are never cut anew, so a token that
  would reach across the boundary is cut to begin at it;
- at every place the other tokens that spell the drafted bytes, each followed by the canonical ones. How likely they are
  is learnt from the text, by how often it left the canonical form;
- behind the last place, where more bytes would change the last token, also tokens that begin with its bytes.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.translate.spellings import Spellings

LEAVING = 0.02
"""The share of places at which a text is first expected to leave the canonical form."""
KNOWN = 25.0
"""Places that this guess counts as."""
OPEN = 0.3
"""The chance that the last token goes on behind the drafted bytes."""
CUT = 0.2
"""The chance that more bytes would cut the last token's bytes otherwise."""
COMPLETIONS = 2
"""Tokens that complete the last one."""
OTHERS = 4
"""Other tokens at one place."""
LEAST = 1e-3
"""Ways to spell the draft that are less likely than this are left out."""


@dataclass(eq=False)
class Habit:
    """How often one text left the canonical form."""

    places: float = KNOWN
    left: float = KNOWN * LEAVING

    @property
    def leaving(self) -> float:
        """The chance that the next token is not the canonical one, given its bytes."""
        return min(0.5, self.left / self.places)

    def learn(self, spellings: Spellings, window: bytes, tokens: Sequence[int]) -> None:
        """The text went on with these tokens behind the bytes of ``window``."""
        whole = spellings.spell(tokens)
        expected = iter(canonical(spellings, window, whole))
        for token in tokens:
            self.places += 1
            if token != next(expected, None):
                self.left += 1
                return  # what follows is cut otherwise, too


def canonical(spellings: Spellings, window: bytes, data: bytes) -> list[int]:
    """The tokenizer's own tokens of the bytes behind ``window``; one that would reach across the boundary begins at
    it."""
    boundary, end = len(window), 0
    ids = spellings.encode(window + data)
    for number, token in enumerate(ids):
        start, end = end, end + len(spellings.of[token])
        if end > boundary:
            if start >= boundary:
                return ids[number:]
            return spellings.encode(data[: end - boundary]) + ids[number + 1 :]
    return []


@dataclass(frozen=True)
class Translation:
    """A tree of target tokens: parents come before their children, -1 is the committed text."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    """The log-probability of every node after its parent."""


class Lattice:
    """The tokens that spell the bytes of one draft behind one text."""

    def __init__(self, spellings: Spellings, window: bytes, data: bytes, pieces: Sequence[tuple[int, float]]) -> None:
        """``window`` are the last bytes of the text, ``pieces`` the drafter's tokens: bytes and log-probability."""
        self._spellings, self._data = spellings, data
        self._next: dict[int, int] = {}
        """Place -> the canonical token there."""
        self._place_canonical(0, canonical(spellings, window, data))
        self._borders = sorted(self._next)
        self._paid = [0.0] * (len(data) + 1)
        """The log-probability of the drafter's tokens that begin before each place."""
        place, paid = 0, 0.0
        for length, score in pieces:
            self._paid[place] = paid
            paid += score
            for after in range(place + 1, place + length + 1):
                self._paid[after] = paid
            place += length

    def tree(self, nodes: int, leaving: float) -> Translation:
        """The likeliest nodes of all, at least as many as the canonical tokens are."""
        found, limit = Translation(), max(nodes, len(self._borders))
        waiting: list[tuple[float, int, int, int, int, float]] = []
        count = 0

        def offer(place: int, parent: int, path: float) -> None:
            nonlocal count
            for token, end, score in self._choices(place, leaving):
                total = path + score
                if total - self._paid[end] > math.log(LEAST):
                    heapq.heappush(waiting, (-total, count, token, end, parent, score))
                    count += 1

        offer(0, -1, 0.0)
        while waiting and len(found.tokens) < limit:
            negative, _, token, end, parent, score = heapq.heappop(waiting)
            found.tokens.append(token)
            found.parents.append(parent)
            found.scores.append(score)
            if end < len(self._data):
                offer(end, len(found.tokens) - 1, -negative)
        return found

    def _choices(self, place: int, leaving: float) -> list[tuple[int, int, float]]:
        """Tokens from a place on, where they end, and their log-probabilities; beyond the data those of open ones."""
        first = self._canonical_at(place)
        if first is None:
            return []
        length, spellings = len(self._data), self._spellings
        end = place + len(spellings.of[first])
        others = [token for token in spellings.beginning(self._data, place) if token != first][::-1][:OTHERS]
        more = spellings.completing(self._data[place:], COMPLETIONS) if end == length else []
        leaves = max(leaving, CUT) if end == length and others else leaving
        goes = OPEN if more else 0.0
        found = [(first, end, self._of(place, end) + math.log(1 - leaves - goes))]
        for tokens, share in ((others, leaves), (more, goes)):
            for rank, token in enumerate(tokens):
                stop = min(length, place + len(spellings.of[token]))
                found.append((token, stop, self._of(place, stop) + math.log(share) - (rank + 1) * math.log(2)))
        return found

    def _of(self, start: int, end: int) -> float:
        return self._paid[end] - self._paid[start]

    def _canonical_at(self, place: int) -> int | None:
        """The canonical token at a place. Off the canonical path it goes back to that at the next border."""
        if place not in self._next:
            border = next((border for border in self._borders if border > place), len(self._data))
            self._place_canonical(place, self._spellings.encode(self._data[place:border]))
        return self._next.get(place)

    def _place_canonical(self, place: int, ids: Sequence[int]) -> None:
        for token in ids:
            self._next.setdefault(place, token)
            place += len(self._spellings.of[token])
