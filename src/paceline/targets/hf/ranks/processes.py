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
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch.distributed as distributed

from paceline.errors import InputError

LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Environment variables that torchrun sets."""
MEETING = timedelta(minutes=30)
"""How long the first process waits for the last one: reading weights may take that long."""
PARTING = timedelta(seconds=30)


def launched() -> int:
    """How many processes torchrun started, this one included; 1 without it."""
    if not all(name in os.environ for name in LAUNCHED):
        return 1
    return int(os.environ["WORLD_SIZE"])


class Processes:
    """This process among those that were started together, with torch's default group between them."""

    def __init__(self, backend: str = "gloo", timeout: timedelta | None = None) -> None:
        """``timeout`` is the longest wait in a collective, by default torch's own."""
        if launched() < 2:
            raise InputError("one process has no others to join; start several with torchrun")
        found = next(iter(distributed.rendezvous("env://", timeout=MEETING)))
        self.store, self.rank, self.size = found
        groups = distributed.PrefixStore("groups", self.store)
        distributed.init_process_group(
            backend, store=groups, rank=self.rank, world_size=self.size, timeout=timeout
        )
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
