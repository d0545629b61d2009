"""The processes that torchrun started: how they find each other, and how they part.

Parting is the difficult half. Gloo's collectives return on one process while another still reads; one that closes its
connections then, or ends while a thread of gloo still holds a tensor, aborts itself or the other one ("terminate called
without an active exception": a C++ thread that needs Python's lock while the interpreter ends is unwound by force). So
processes part in three steps, the first and the last by the store that they met at, which starts no collective:

1. They wait until the last collective has ended on all of them.
2. Each destroys its groups, which joins gloo's threads while the interpreter still runs.
3. The process that serves the store waits until the others no longer need it.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch.distributed as distributed
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from paceline.errors import InputError
from paceline.targets.torchrun import launched

MEETING = timedelta(minutes=30)
"""How long the first process waits for the last one: reading weights may take that long."""
PARTING = timedelta(seconds=30)

_meetings = itertools.count()
"""The store may outlive a meeting, and the next one must not find who was at the last."""


class Processes:
    """This process among those that were started together, with torch's default group between them."""

    def __init__(self, backend: str = "gloo", timeout: timedelta | None = None) -> None:
        """``timeout`` is the longest wait in a collective, by default torch's own."""
        if launched() < 2:
            raise InputError("one process has no others to join; start several with torchrun")
        found, self.rank, self.size = next(iter(rendezvous("env://", timeout=MEETING)))
        self.store = PrefixStore(f"meeting {next(_meetings)}", found)
        groups = PrefixStore("groups", self.store)
        distributed.init_process_group(backend, store=groups, rank=self.rank, world_size=self.size, timeout=timeout)
        self._left = False

    def meet(self, place: str, patience: timedelta = MEETING) -> None:
        """Wait until every process is at this place, which is met at once only."""
        self.store.set(f"{place}/{self.rank}", "")
        self.store.wait([f"{place}/{rank}" for rank in range(self.size)], patience)

    def leave(self) -> None:
        """Part from the others, in step with them; where one is gone already, without it."""
        if self._left:
            return
        self._left = True
        with suppress(RuntimeError):
            self.meet("done", PARTING)
        self.abandon()
        with suppress(RuntimeError):
            self.store.set(f"left/{self.rank}", "")
            if self.rank == 0:
                self.store.wait([f"left/{rank}" for rank in range(self.size)], PARTING)

    def abandon(self) -> None:
        """Close the connections at once, which ends what others wait for."""
        self._left = True
        gc.collect()  # results that nobody reads hold their group, whose threads would then outlive the interpreter
        if distributed.is_initialized():
            with suppress(RuntimeError):
                distributed.destroy_process_group()


@contextmanager
def joined_processes() -> Iterator[None]:
    """The processes that torchrun started, if it did, joined for as long as this lasts."""
    if launched() < 2 or distributed.is_initialized():
        yield
        return
    processes = Processes()
    try:
        yield
    except BaseException:
        processes.abandon()
        raise
    processes.leave()
