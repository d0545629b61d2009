"""Counters of drafters, besides the engine's own of every round.

A drafter declares each counter once, in the module that counts, and lists it in `Drafter.counters`. It reports per
round, by name (`Drafter.counts`). The engine adds the counts up without knowing their names, and everything that shows
totals iterates over them. So a new counter is declared in one place, and a plug-in's is treated like Paceline's own.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Counter:
    """One number that a drafter reports of a round; over rounds and texts it is summed."""

    name: str
    """Its name in `Counts` and in ``--json``."""
    help: str
    """The counted thing, in one line that begins with its unit."""
    zero: float = 0
    """The sum over no rounds: 0, or 0.0 for a counter of fractions."""


class Counts(Mapping[str, float]):
    """Numbers by the name of their counter, which add. They never change, so rounds may share them."""

    __slots__ = ("_by_name",)

    def __init__(self, by_name: Mapping[str, float]) -> None:
        self._by_name = dict(by_name)

    @classmethod
    def zero(cls, counters: Iterable[Counter]) -> Counts:
        """The counts of no round."""
        return cls({counter.name: counter.zero for counter in counters})

    def __getitem__(self, name: str) -> float:
        if name not in self._by_name:
            close = difflib.get_close_matches(name, self._by_name, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(self._by_name) or 'none'}"
            raise KeyError(f"no counter {name!r}; {hint}")
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def __hash__(self) -> int:
        return hash(frozenset(self._by_name.items()))

    def __repr__(self) -> str:
        return f"Counts({self._by_name})"

    def __add__(self, other: Mapping[str, float]) -> Counts:
        sums = dict(self._by_name)
        for name, count in other.items():
            sums[name] = sums.get(name, 0) + count
        return Counts(sums)


NOTHING_COUNTED = Counts({})


class Tally:
    """The counts of one text since a drafter last reported them."""

    def __init__(self) -> None:
        self._by_name: dict[str, float] = {}

    def add(self, counter: Counter, count: float = 1) -> None:
        self._by_name[counter.name] = self._by_name.get(counter.name, counter.zero) + count

    def take(self) -> Mapping[str, float]:
        """The counts so far, which are then forgotten."""
        taken, self._by_name = self._by_name, {}
        return taken
