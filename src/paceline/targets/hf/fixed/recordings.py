"""Recordings by what they are for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recordings(OrderedDict[K, V]):
    """A bounded number of recordings; the least recently used one is dropped first."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def used(self, key: K) -> V | None:
        """The recording for a key, if there is one; it counts as used."""
        if key not in self:
            return None
        self.move_to_end(key)
        return self[key]

    def keep(self, key: K, value: V) -> None:
        self[key] = value
        while len(self) > self._most:
            self.popitem(last=False)
