"""Drafted bytes in the target's tokens, as a tree: the canonical tokens first, and others beside them.

A draft ends where the drafter's last token does, and a text need not be canonical: a model that samples writes now and
then ``wi`` and ``no`` where its tokenizer has ``wino``. So the tree holds, as far as they are likely enough,

- the tokens that the tokenizer itself would have behind the committed text. Those are never re-encoded, so a token that
  would reach across the boundary is cut to begin at it;
- at every place the other tokens that spell the drafted bytes, each followed by the canonical ones. How likely they are
  is learnt from the text, by how often it left the canonical form;
- behind the last place, where more bytes would change the last token, also tokens that begin with its bytes.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.translate.draft import TranslatedDraft, Translation
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
                return  # the rest is cut otherwise, too


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


class Lattice:
    """The tokens that spell the bytes of one draft behind one text."""

    def __init__(self, spellings: Spellings, window: bytes, draft: TranslatedDraft) -> None:
        """``window`` are the last bytes of the text."""
        self._spellings, self._draft, self._data = spellings, draft, draft.data
        self._next: dict[int, int] = {}
        """Place -> the canonical token there."""
        self._place_canonical(0, canonical(spellings, window, draft.data))
        self._borders = sorted(self._next)

    def tree(self, nodes: int, leaving: float, end: int | None = None) -> Translation:
        """The likeliest nodes of all, at least as many as the canonical tokens are. Where the draft ends the text, the
        token ``end`` follows the likeliest way to spell it."""
        found, limit = Translation(), max(nodes, len(self._borders))
        waiting: list[tuple[float, int, int, int, int, float]] = []
        count = 0

        def offer(place: int, parent: int, path: float) -> None:
            nonlocal count
            for token, stop, score in self._choices(place, leaving):
                total = path + score
                if total - self._draft.paid[stop] > math.log(LEAST):
                    heapq.heappush(waiting, (-total, count, token, stop, parent, score))
                    count += 1

        offer(0, -1, 0.0)
        whole = -1 if not self._data else None
        while waiting and len(found.tokens) < limit:
            negative, _, token, stop, parent, score = heapq.heappop(waiting)
            node = found.add(token, parent, score)
            if stop < len(self._data):
                offer(stop, node, -negative)
            elif whole is None:
                whole = node
        if whole is not None and end is not None and self._draft.ends is not None:
            found.add(end, whole, self._draft.ends)
        return found

    def _choices(self, place: int, leaving: float) -> list[tuple[int, int, float]]:
        """Tokens from a place on, where they end, and their log-probabilities; beyond the data those of open ones."""
        first = self._canonical_at(place)
        if first is None:
            return []
        length, spellings = len(self._data), self._spellings
        end = place + len(spellings.of[first])
        others = [token for token in spellings.beginning(self._data, place) if token != first][::-1][:OTHERS]
        open_ended = end == length and self._draft.ends is None
        more = spellings.completing(self._data[place:], COMPLETIONS) if open_ended else []
        leaves = max(leaving, CUT) if open_ended and others else leaving
        goes = OPEN if more else 0.0
        found = [(first, end, self._draft.score(place, end) + math.log(1 - leaves - goes))]
        for tokens, share in ((others, leaves), (more, goes)):
            for rank, token in enumerate(tokens):
                stop = min(length, place + len(spellings.of[token]))
                found.append((token, stop, self._draft.score(place, stop) + math.log(share) - (rank + 1) * math.log(2)))
        return found

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
