"""Whether this process can compute. A fork has none of its parent's threads, and waits for ever for what they held.

Torch's own threads are lost wherever there were several, those of users where another one had used a model. A process
that was forked before any model was loaded, or from one that computes with a single thread, is like any other.
"""

from __future__ import annotations

import os
import sys
import threading

from paceline.errors import InputError

_users: set[int] = set()
"""The threads that used a model. A number may come again in another thread, whose fork is then refused in vain."""
_lost = _would_be_lost = False


def use() -> None:
    """This thread is about to use a model; a ValueError where that would never end."""
    if _lost:
        raise InputError(
            "this process was forked from one that had already used a model, so it cannot compute; start it with "
            "multiprocessing.get_context('spawn'), or fork before the first model is loaded"
        )
    _users.add(threading.get_ident())


def _before() -> None:
    global _would_be_lost
    torch = sys.modules.get("torch")
    several = torch is not None and torch.get_num_threads() > 1
    others = {thread.ident for thread in threading.enumerate()} - {threading.get_ident()}
    _would_be_lost = _lost or (bool(_users) and several) or not _users.isdisjoint(others)


def _in_the_child() -> None:
    global _lost
    _lost = _would_be_lost


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_child=_in_the_child)
