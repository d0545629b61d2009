"""An index of the earlier places in a text that end as the text does now.

For a few sizes of n-grams the index has the last place of each. The longest match is the largest size whose n-gram at
the end of the text occurred before. If all occurrences are requested, every place has a link to the one before it with
the same n-gram of that size, and following the links gives them, the latest first.

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

    def __init__(self, sizes: Sequence[int] = SIZES, *, linked: bool = True) -> None:
        """``linked`` where more than the latest place will be asked for."""
        assert list(sizes) == sorted(set(sizes)) and sizes[0] == 1, f"sizes ascend from 1, unlike {sizes}"
        self.sizes = tuple(sizes)
        self.text: list[int] = []
        self._masks = [(1 << _BITS * size) - 1 for size in sizes]
        self._latest: list[dict[int, int]] = [{} for _ in sizes]
        """For each size, the place of each n-gram; its complement where it stood nowhere else."""
        self._links: list[list[int]] = [[] for _ in sizes] if linked else []
        self._newest: tuple[int, int] | None = None
        """The place of the longest match of the whole text, and its size."""
        self._window = 0
        """The last tokens packed into one number, each as its id + 1; 0 is a border, or before the text."""

    def __len__(self) -> int:
        return len(self.text)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens."""
        text, links, masks, latest = self.text, self._links, self._masks, self._latest
        window, full, key = self._window, masks[-1], 0
        place, newest = len(text), self._newest
        for token in tokens:
            text.append(token)
            for link in links:
                link.append(NONE)
            newest = None
            if token == NONE:
                window = 0
            else:
                window, key = (window << _BITS | token + 1) & full, token
                for level, places in enumerate(latest):
                    if level:
                        if not window >> _BITS * (self.sizes[level] - 1):
                            break
                        key = window & masks[level]
                    earlier = places.get(key)
                    if earlier is None:
                        places[key] = ~place
                        break
                    places[key] = place
                    if earlier < 0:
                        earlier = ~earlier
                        self._enter(level + 1, earlier)
                    newest = earlier, self.sizes[level]
                    if links:
                        links[level][place] = earlier
            place += 1
        self._window, self._newest = window, newest

    def _enter(self, level: int, place: int) -> None:
        """Enter a place under a larger size, now that its smaller n-gram occurs a second time."""
        if level == len(self.sizes):
            return
        size = self.sizes[level]
        ending = self.text[place + 1 - size : place + 1] if place + 1 >= size else []
        if ending and NONE not in ending:
            self._latest[level][self._key(ending)] = ~place

    @staticmethod
    def _key(ending: Sequence[int]) -> int:
        key = 0
        for token in ending:
            key = key << _BITS | token + 1
        return key

    def latest(self, least: int) -> int | None:
        """The latest earlier place that ends as the text does, by its longest match of ``least`` tokens or more."""
        return self._newest[0] if self._newest is not None and self._newest[1] >= least else None

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
            place = latest.get(ending[-1] if size == 1 else self._key(ending[-size:]))
            if place is None:
                break
            starts.append(max(place, ~place))
            if place < 0:  # it occurs once, and larger ones are not entered
                break
        found = self._walk(starts, limit)
        if found:  # an n-gram that occurs once is not entered under larger sizes
            place, size = found[0]
            found[0] = place, self._reached(place, size, ending)
        return found

    def behind(self, ahead: Sequence[int], limit: int, drafted: Sequence[int] = ()) -> list[tuple[int, int]]:
        """The same for this text with the tokens ``ahead`` of it, among which places are, too, but for the last; and
        with the tokens ``drafted`` behind those, among which there are none."""
        most = self.sizes[-1]
        whole = [*self.text[-most:], *ahead, *drafted]
        if not ahead and not drafted:
            return self.before(limit) if self._links else [self._newest] if self._newest is not None else []
        found, first = self.like(whole[-most:], limit), len(whole) - len(ahead) - len(drafted)
        more = list[tuple[int, int]]()
        for at in range(first, first + len(ahead) - (not drafted)):
            matched = 0
            while matched <= at and matched < most and whole[at - matched] == whole[-1 - matched] != NONE:
                matched += 1
            if matched:
                more.append((at - first + len(self.text), self.sizes[bisect_right(self.sizes, matched) - 1]))
        return sorted(found + more, key=lambda place: (-place[1], -place[0]))[:limit] if more else found

    def _reached(self, place: int, size: int, ending: Sequence[int]) -> int:
        """The size of the match at a place that matches at ``size`` at least."""
        matched, most = size, min(len(ending), place + 1)
        while matched < most and self.text[place - matched] == ending[-1 - matched]:
            matched += 1
        return self.sizes[bisect_right(self.sizes, matched) - 1]

    def _walk(self, starts: list[int], limit: int) -> list[tuple[int, int]]:
        found: dict[int, int] = {}
        for level in range(len(starts) - 1, -1, -1):
            place = starts[level]
            while place != NONE and len(found) < limit:
                found.setdefault(place, self.sizes[level])
                place = self._links[level][place] if self._links else NONE
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
        known = len(self.endings.text)
        if len(self.context) > known:
            self.endings.extend(self.context.listed(known))

    def copied(self, start: int, count: int, ahead: Sequence[int] = ()) -> list[int]:
        """``count`` tokens from a place on. A copy that reaches the end of the text, and of the tokens ``ahead`` of it,
        goes on into itself."""
        text = self.endings.text
        piece = text[start : start + count]
        if len(piece) < count:
            piece += ahead[max(0, start - len(text)) :][: count - len(piece)]
            piece = (piece * -(-count // len(piece)))[:count]
        return piece
