"""Work that is done once and pays later, such as recording a forward. Its seconds are not counted in a round, since a
planner would otherwise avoid the sizes that were just recorded."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class _Spent(threading.local):
    seconds = 0.0
    depth = 0


_spent = _Spent()


@contextmanager
def once() -> Iterator[None]:
    """Work inside is done once."""
    start = time.perf_counter()
    _spent.depth += 1
    try:
        yield
    finally:
        _spent.depth -= 1
        if _spent.depth == 0:
            _spent.seconds += time.perf_counter() - start


def spent() -> float:
    """The seconds that this thread has spent on such work."""
    return _spent.seconds
