"""An index of the earlier places in a text that end as the text does now.

For a few sizes of n-grams, every place has a link to the last earlier place with the same n-gram of that size before
it. The links of the newest place are the answer to a query: the largest size with a link is the longest match, and
following the links from place to place gives all occurrences, the latest first.

A suffix automaton would know every repeated piece. But a draft needs counts and recency of what followed, which each
new token would change along a path of states, and there are up to three states per token.

A new token costs a step for every size that it repeats, and one more. A place is entered under a larger size only when
its smaller n-gram occurs a second time: most long n-grams of a text never do, and take no memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from paceline.context import Context

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24)
"""Sizes of n-grams. A match counts as the largest of them that it reaches: longer matches hardly predict better."""

NONE = -1
"""No place. In a text, a border between two texts, which matches no token."""

_BITS = 32


class Endings:
    """A growing text, and its places by the n-grams that end there."""

    def __init__(self, sizes: Sequence[int] = SIZES) -> None:
        assert list(sizes) == sorted(set(sizes)) and sizes[0] == 1, f"sizes ascend from 1, unlike {sizes}"
        self.sizes = tuple(sizes)
        self.text: list[int] = []
        self._masks = [(1 << _BITS * size) - 1 for size in sizes]
        self._latest: list[dict[int, int]] = [{} for _ in sizes]
        self._links: list[list[int]] = [[] for _ in sizes]
        self._window = 0
        """The last tokens packed into one number, each as its id + 1; 0 is a border, or before the text."""

    def __len__(self) -> int:
        return len(self.text)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens."""
        text, links, masks, latest = self.text, self._links, self._masks, self._latest
        window, full = self._window, masks[-1]
        first, last = latest[0], len(masks) - 1
        place = len(text)
        for token in tokens:
            text.append(token)
            window = (window << _BITS | token + 1) & full
            for link in links:
                link.append(NONE)
            if token == NONE:
                window = 0
            else:
                earlier = first.get(token, NONE)
                first[token] = place
                level = 0
                while earlier != NONE:
                    links[level][place] = earlier
                    if level == last:
                        break
                    level += 1
                    if links[level - 1][earlier] == NONE:
                        self._enter(level, earlier)
                    if not window >> _BITS * (self.sizes[level] - 1):
                        break
                    key = window & masks[level]
                    earlier = latest[level].get(key, NONE)
                    latest[level][key] = place
            place += 1
        self._window = window

    def _enter(self, level: int, place: int) -> None:
        """Enter a place under a larger size, now that its smaller n-gram occurs a second time."""
        size = self.sizes[level]
        ending = self.text[place + 1 - size : place + 1] if place + 1 >= size else []
        if ending and NONE not in ending:
            self._latest[level][self._key(ending)] = place

    @staticmethod
    def _key(ending: Sequence[int]) -> int:
        key = 0
        for token in ending:
            key = key << _BITS | token + 1
        return key

    def before(self, limit: int) -> list[tuple[int, int]]:
        """At most ``limit`` earlier places that end as the text does, each with the size of the match: the longest
        matches first, of equals the latest."""
        return self._walk([links[-1] for links in self._links], limit) if self.text else []

    def like(self, ending: Sequence[int], limit: int) -> list[tuple[int, int]]:
        """The same for the ending of another text."""
        starts = []
        for size, latest in zip(self.sizes, self._latest, strict=True):
            if size > len(ending):
                break
            key = ending[-1] if size == 1 else self._key(ending[-size:])
            starts.append(latest.get(key, NONE))
        found = self._walk(starts, limit)
        if found:  # an n-gram that occurs once is not entered under larger sizes
            place, size = found[0]
            found[0] = place, self._reached(place, size, ending)
        return found

    def _reached(self, place: int, size: int, ending: Sequence[int]) -> int:
        """The size of the match at a place that matches at ``size`` at least."""
        matched, most = size, min(len(ending), place + 1)
        while matched < most and self.text[place - matched] == ending[-1 - matched]:
            matched += 1
        return self.sizes[bisect_right(self.sizes, matched) - 1]

    def _walk(self, starts: list[int], limit: int) -> list[tuple[int, int]]:
        found: dict[int, int] = {}
        for level in range(len(starts) - 1, -1, -1):
            place, size, links = starts[level], self.sizes[level], self._links[level]
            while place != NONE:
                if place not in found:
                    if len(found) >= limit:
                        return list(found.items())
                    found[place] = size
                place = links[place]
        return list(found.items())


@dataclass(eq=False)
class IndexedText:
    """A text that is being written, and its index."""

    context: Context
    endings: Endings = field(default_factory=Endings)

    def __post_init__(self) -> None:
        self.catch_up()

    def catch_up(self) -> None:
        """Index the tokens that are new."""
        known = len(self.endings)
        if len(self.context) > known:
            self.endings.extend(self.context.tokens[known:].tolist())

    def copied(self, start: int, count: int, ahead: Sequence[int] = ()) -> list[int]:
        """``count`` tokens from a place on. A copy that reaches the end of the text, and of the tokens ``ahead`` of it,
        goes on into itself."""
        piece = self.endings.text[start : start + count]
        if len(piece) < count:
            piece += ahead[: count - len(piece)]
            piece = (piece * -(-count // len(piece)))[:count]
        return piece
