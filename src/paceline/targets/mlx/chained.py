"""One text in mlx-lm's own caches, for models whose code needs them: recurrent states, chunks, positions of its own.

Drafts are chains. A refused end is taken back where caches can be trimmed. Other caches go back to a copy that was made
before the draft, and the accepted tokens are read again.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.cache import KVCache, can_trim_prompt_cache, trim_prompt_cache

from paceline.targets.base import Rows
from paceline.tree import Ints

Caches = list[Any]


class ChainedRows(Rows):
    """mlx-lm's caches of one text, and how many of its tokens they have read."""

    def __init__(self, make: Callable[[], Caches]) -> None:
        super().__init__()
        self._make = make
        self.caches = make()
        self.cached = 0
        self._steady = all(type(cache) is KVCache for cache in self.caches)
        """Whether rows can always be taken back."""
        self._before: tuple[int, Caches] | None = None
        """A copy of caches that cannot be trimmed, and how many tokens they had read; until it is gone back to."""

    def go_to(self, count: int) -> Ints:
        """Take tokens behind the first ``count`` back; returns those of the first that must be read again."""
        if self.cached > count:
            if can_trim_prompt_cache(self.caches):
                with self.writing():
                    trim_prompt_cache(self.caches, self.cached - count)
                    self.cached = count
            else:
                self._go_back(self._before is not None and self._before[0] <= count)
        return self._tokens[self.cached : count]

    def mark(self) -> None:
        """A draft is about to be read, which may be refused."""
        if not self._steady:
            self._before = self.cached, _copies(self.caches)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Caches are written inside. If that is interrupted, some layers have read tokens that others have not, so all
        of them go back to the copy, or begin again."""
        try:
            yield
        except BaseException:
            self._go_back(self._before is not None)
            raise

    def _go_back(self, copied: bool) -> None:
        """To the copy, or to caches that have read nothing."""
        self.cached, self.caches = self._before if copied and self._before is not None else (0, self._make())
        self._before = None

    @property
    def buffers(self) -> list[mx.array]:
        """All arrays, those of the copy as well: another thread cannot compute what this one left uncomputed."""
        caches = [*self.caches, *(self._before[1] if self._before is not None else ())]
        return [held for _, held in tree_flatten([cache.state for cache in caches]) if isinstance(held, mx.array)]

    def _within_reach(self, length: int) -> int:
        if length >= self.cached or can_trim_prompt_cache(self.caches):
            return length
        before = 0 if self._before is None else self._before[0]
        return before if before <= length else 0

    def _copy(self, other: Rows, count: int) -> None:
        assert isinstance(other, ChainedRows), "rows are copied from a sequence of the same target"
        if other.cached > count and not can_trim_prompt_cache(other.caches) and other._before is not None:
            self.cached, self.caches = other._before[0], _copies(other._before[1])
        else:
            self.cached, self.caches = other.cached, _copies(other.caches)
        self._before = None
        self.go_to(count)
        mx.eval(self.buffers)

    def _gather(self, rows: Ints) -> None:
        assert list(rows) == list(range(len(rows))), "drafts are chains"
        self.go_to(self.committed + len(rows))

    def _truncate(self) -> None:
        if self._before is not None and self._before[0] > self.committed:
            self._before = None
        self.go_to(self.committed)

    def check(self) -> None:
        assert self.cached <= self.committed + self.tentative, "no token is read that is not there"
        for number, cache in enumerate(self.caches):
            read = getattr(cache, "offset", self.cached)
            assert read == self.cached, f"cache {number} has read {read} tokens, not {self.cached}"

    def close(self) -> None:
        self.caches, self.cached, self._before = self._make(), 0, None


def _copies(caches: Caches) -> Caches:
    return [_copied(cache) for cache in caches]


def _copied(held: Any) -> Any:
    """A copy that later writes do not reach: they replace the contents of an array object."""
    if isinstance(held, mx.array):
        return mx.array(held)
    if isinstance(held, list | tuple):
        return type(held)(_copied(each) for each in held)
    if not hasattr(held, "__dict__"):
        return held
    twin = copy.copy(held)
    vars(twin).update({name: _copied(value) for name, value in vars(held).items()})
    return twin
