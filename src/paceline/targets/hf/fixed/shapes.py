"""The shapes that forwards are rounded up to. Each has its own recording, so there are few."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.targets.hf.fixed.slab import SlabRows, power
from paceline.targets.hf.path import ForwardJob

LARGEST_RECORDED_ROWS = 128
"""The largest recorded draft, its root included; more rows keep a device busy without a recording."""
TENTATIVE = 256
"""The most tentative rows of a sequence, held ones included."""
SEQUENCES = 64
IDLE_ROWS = 256
"""Padding costs next to nothing while a forward spends its time on reading weights: a forward is rounded up to at most
this many rows in all, or twice those it needs."""
SHORTEST_RECORDED_TEXT = 256


@dataclass(frozen=True)
class ForwardShape:
    """``rows`` rows in each of the slots ``first .. first + count``, over the first ``length`` keys of each."""

    first: int
    count: int
    rows: int
    length: int
    hidden: frozenset[int] = frozenset()
    """Layers whose states are wanted."""
    exit: int | None = None
    """The layer of an early exit."""

    @classmethod
    def of(cls, job: ForwardJob, capacity: int, *, any_length: bool = False, ahead: int = 0) -> ForwardShape:
        """``any_length``: attention finds by itself how far a text goes, so one shape serves all lengths. ``ahead`` is
        the number of rows that follow before the memory is filled in again."""
        first, count = block(slots_of(job))
        rows = power(max(len(request.tokens) for request in job.requests))
        length = (
            capacity if any_length else min(capacity, stretch(ahead + max(request.end for request in job.requests)))
        )
        return cls(first, count, rows, length, job.want.hidden, job.want.early_exit)


def slots_of(job: ForwardJob) -> list[int]:
    """The slots of a job's rows, in order; rows without a slot are left out."""
    slots = [request.rows.slot for request in job.requests if isinstance(request.rows, SlabRows)]
    return [slot for slot in slots if slot is not None]


def block(slots: Sequence[int]) -> tuple[int, int]:
    """The smallest block ``(first, count)`` that holds the slots. Its size is a power of two and its start a multiple
    of it, so that there are few blocks."""
    low, high = min(slots), max(slots)
    count = power(high - low + 1)
    while low // count != high // count:
        count *= 2
    return low // count * count, count


def stretch(length: int) -> int:
    """A length rounded up to a multiple of `SHORTEST_RECORDED_TEXT`, or by a quarter at most where that is more."""
    grain = max(SHORTEST_RECORDED_TEXT, power(length) // 8)
    return -(-length // grain) * grain


def rounds_well(job: ForwardJob) -> bool:
    """Whether the shape has not far more rows than the job needs."""
    needed = [len(request.tokens) for request in job.requests]
    count = block(slots_of(job))[1]
    return count <= SEQUENCES and count * power(max(needed)) <= max(IDLE_ROWS, 2 * sum(needed))
