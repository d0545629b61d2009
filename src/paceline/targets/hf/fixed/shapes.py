"""The few shapes that forwards are rounded up to: each is recorded on its own, so there must not be many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.targets.hf.fixed.slab import SlabRows, power
from paceline.targets.hf.path import Job

ROWS = 128
"""The largest draft that goes this way, its root included; more rows keep a device busy without a recording."""
TENTATIVE = 256
"""How many tentative rows a sequence may have, held ones included."""
SEQUENCES = 64
IDLE_ROWS = 256
"""Rows that only fill up cost next to nothing while a forward spends its time on reading weights: up to so many rows
in all, or twice those that are needed, a forward is rounded up."""
SHORTEST = 256


@dataclass(frozen=True)
class Shape:
    """The slots ``first .. first + count``, ``rows`` of each, over the first ``length`` keys of each; and the layers
    whose states are looked at."""

    first: int
    count: int
    rows: int
    length: int
    hidden: frozenset[int] = frozenset()

    @classmethod
    def of(cls, job: Job, capacity: int) -> Shape:
        first, count = block(slots_of(job))
        rows = power(max(len(request.tokens) for request in job.requests))
        length = min(capacity, stretch(max(request.end for request in job.requests)))
        return cls(first, count, rows, length, job.want.hidden)


def slots_of(job: Job) -> list[int]:
    """The slots of a job whose rows all have one; none otherwise."""
    slots = [request.rows.slot for request in job.requests if isinstance(request.rows, SlabRows)]
    return [slot for slot in slots if slot is not None]


def block(slots: Sequence[int]) -> tuple[int, int]:
    """The smallest block ``(first, count)`` that holds the slots: a power of two of them, starting at a multiple of its
    size, so that there are few different ones."""
    low, high = min(slots), max(slots)
    count = power(high - low + 1)
    while low // count != high // count:
        count *= 2
    return low // count * count, count


def stretch(length: int) -> int:
    """A length rounded up to a multiple of the shortest one, or by a quarter at most where that is more."""
    grain = max(SHORTEST, power(length) // 8)
    return -(-length // grain) * grain


def rounds_well(job: Job) -> bool:
    """Whether the shape is worth it: not far more rows than are needed."""
    needed = [len(request.tokens) for request in job.requests]
    count = block(slots_of(job))[1]
    return count <= SEQUENCES and count * power(max(needed)) <= max(IDLE_ROWS, 2 * sum(needed))
