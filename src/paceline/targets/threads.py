"""How many threads compute in libraries other than torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CPUS = Path("/sys/devices/system/cpu")
_asked: list[int] = []
"""The numbers that `with_threads` sets, the last one inside."""


@contextmanager
def with_threads(number: int | None) -> Iterator[None]:
    """Models that are opened inside compute with so many threads; None leaves it as it is."""
    if number is None:
        yield
        return
    _asked.append(number)
    try:
        yield
    finally:
        _asked.pop()


def computing_threads() -> int:
    """The number that was asked for, ``OMP_NUM_THREADS``, or one for each core that this process may use."""
    if _asked:
        return _asked[-1]
    given = os.environ.get("OMP_NUM_THREADS", "")
    if given.isdecimal() and int(given):
        return int(given)
    try:
        allowed = os.sched_getaffinity(0)
        return len({(CPUS / f"cpu{one}/topology/thread_siblings_list").read_text() for one in allowed})
    except (AttributeError, OSError):
        return os.cpu_count() or 1
