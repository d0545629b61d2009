"""Threads of torch's, and those that compiled forwards have for themselves.

After each operation the threads of torch wait for the next one in a loop, for some milliseconds. Compiled forwards
(`fused`) have threads of their own, so on the same cores each kind holds up the other: drafts by operations of two
threads made forwards of 20 ms between them 6 ms longer, and took up to three times as long themselves.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch


class Usual(threading.local):
    """The number of torch's threads outside of `one_thread`, where this thread is inside; else 0."""

    count = 0


_USUAL = Usual()


def compiled_threads() -> int:
    """How many threads compiled work takes in this thread."""
    return _USUAL.count or torch.get_num_threads()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Torch computes with one thread in this thread. Compiled work has all of them, as before."""
    had = torch.get_num_threads()
    if had == 1:
        yield
        return
    torch.set_num_threads(1)
    _USUAL.count = had
    try:
        from paceline.targets.hf.fused.team import TEAM  # loads numba, which only compiled targets need

        if threading.active_count() > 1 + TEAM.size:
            begin_others_with(had)
        yield
    finally:
        _USUAL.count = 0
        torch.set_num_threads(had)


def begin_others_with(threads: int) -> None:
    """Torch begins each thread with the number that was last set, in whichever thread, so it is set once more in one
    that ends."""
    with contextlib.suppress(RuntimeError):  # at the end of the program none begins
        setter = threading.Thread(target=torch.set_num_threads, args=(threads,), name="threads of torch")
        setter.start()
        setter.join()
