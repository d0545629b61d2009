"""Where the ending of a text stood before: links from every n-gram to the place where it last stood.

Why links and no suffix automaton. An automaton knows every repeated piece of a text, but what a draft needs of it, how
often and how recently each token followed, are counts that every new token changes along a path as long as the text
repeats; and its states are three times as many as the tokens. Here every place has, for a few sizes, a link to the last
earlier place with the same ending of that size. The links of the newest place are the answer: the largest size that has
one is the longest match, and following the link from place to place gives all occurrences, the latest first. An
occurrence is a vote for what followed it, so counts, recency and back-off to shorter matches are one walk.

A new token costs one step for every size that it repeats, and one more. A place is entered under a larger size only
once its smaller ending stood twice: most long n-grams of a text never do, and take no memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24)
"""A match counts as the largest of these that it reaches: longer ones hardly say more."""

NONE = -1
"""No place; and in a text, what no token matches: the border between two texts."""

_BITS = 32


class Endings:
    """A text that grows, and its places by the n-grams that end there."""

    def __init__(self, sizes: Sequence[int] = SIZES) -> None:
        assert list(sizes) == sorted(set(sizes)) and sizes[0] == 1, f"sizes ascend from 1, unlike {sizes}"
        self.sizes = tuple(sizes)
        self.text: list[int] = []
        self._masks = [(1 << _BITS * size) - 1 for size in sizes]
        self._latest: list[dict[int, int]] = [{} for _ in sizes]
        self._links: list[list[int]] = [[] for _ in sizes]
        self._window = 0
        """The last tokens in one number, each one higher than its id; 0 stands for a border and before the text."""

    def __len__(self) -> int:
        return len(self.text)

    def extend(self, tokens: Iterable[int]) -> None:
        """Let the text go on."""
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
        """Put a place under a larger size, now that its smaller ending stands a second time."""
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
        """Earlier places that end as the text does, and the size to which they do: the longest first, then the latest,
        ``limit`` at most."""
        if not self.text:
            return []
        return self._walk([links[-1] for links in self._links], limit)

    def like(self, ending: Sequence[int], limit: int) -> list[tuple[int, int]]:
        """The same for the ending of another text."""
        starts = []
        for size, latest in zip(self.sizes, self._latest, strict=True):
            if size > len(ending):
                break
            key = ending[-1] if size == 1 else self._key(ending[-size:])
            starts.append(latest.get(key, NONE))
        found = self._walk(starts, limit)
        if found:  # the first may stand alone, and was then entered under no larger size
            place, size = found[0]
            found[0] = place, self._reached(place, size, ending)
        return found

    def _reached(self, place: int, size: int, ending: Sequence[int]) -> int:
        """To which size a place ends like this, if to one surely."""
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
