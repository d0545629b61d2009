"""Processes that were forked. A fork has none of its parent's threads, and waits for ever for what they held.

A fork loses torch's own threads where there were several, the connection to a GPU, and other threads that were using a
model. A process that was forked before any model was loaded, or from one that computes on the CPU with a single thread,
can compute.
"""

from __future__ import annotations

import os
import sys
import threading

from paceline.errors import InputError

_users: set[int] = set()
"""The threads that used a model. Another thread may get the same number; its fork is then refused without need."""
_lost = _would_be_lost = False
_pools = False
"""Whether a library other than torch has threads of its own."""


def note_use(*, pool: bool = False) -> None:
    """Note that this thread uses a model; `InputError` in a fork, where computing would never end. With ``pool`` it is
    computed by several threads that are not torch's."""
    global _pools
    if _lost:
        raise InputError(
            "this process was forked from one that had already used a model, so it cannot compute; start it with "
            "multiprocessing.get_context('spawn'), or fork before the first model is loaded"
        )
    _users.add(threading.get_ident())
    _pools = _pools or pool


def _before() -> None:
    global _would_be_lost
    torch = sys.modules.get("torch")
    unusable = _pools or (torch is not None and (torch.get_num_threads() > 1 or torch.cuda.is_initialized()))
    others = {thread.ident for thread in threading.enumerate()} - {threading.get_ident()}
    _would_be_lost = _lost or (bool(_users) and unusable) or not _users.isdisjoint(others)


def _in_the_child() -> None:
    global _lost
    _lost = _would_be_lost


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_child=_in_the_child)
