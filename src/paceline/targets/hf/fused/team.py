"""Threads that compute beside the one that asks for it.

They look for work for a short while, since the next forward comes soon, and then sleep until they are woken: an idle
program uses no processor. Stages take microseconds, so within a forward no thread sleeps.
"""

from __future__ import annotations

import atexit
import os
import threading

import numpy as np
from numpy.typing import NDArray

from paceline.compiled import compiled
from paceline.targets.hf.fused import layout as at
from paceline.targets.hf.fused.forward import SPINS, wait
from paceline.targets.hf.fused.vector import add, call, load, longs_at, pause, yields

Table = NDArray[np.int64]

APART = 16
"""Whole numbers from one counter to the next, so that each is on a separate cache line."""
CALLS, DONE, MEETING, TASK, STOP, ASLEEP, LED = (place * APART for place in range(7))
COUNTERS = 7 * APART
WAITS = 100_000
"""Looks for work before a thread sleeps: a few milliseconds."""


@compiled(public=True)
def serve(control: int, thread: int, seen: int) -> int:
    """Compute calls until none has come for a while; returns the number of the last one, or -1 at the end."""
    C, looks = longs_at(control), 0
    while looks < WAITS:
        now = load(control + 8 * CALLS)
        if now == seen:
            pause()
            looks += 1
            if looks % SPINS == 0:
                yields()
            continue
        if C[STOP]:
            return -1
        seen, looks = now, 0
        task = C[TASK]
        if thread < longs_at(task)[at.THREADS]:
            call(longs_at(task)[at.FUNCTION], task, thread)
        add(control + 8 * DONE, 1)
    return seen


@compiled(public=True)
def lead(control: int, task: int, others: int) -> None:
    """Compute a job with the others, and wait until they have left it. Once for each call, however often it is asked
    for."""
    C = longs_at(control)
    if C[LED] != C[CALLS] or others == 0:
        C[LED] = C[CALLS]
        call(longs_at(task)[at.FUNCTION], task, 0)
    wait(control + 8 * DONE, others)


@compiled(public=True)
def raised(address: int, by: int) -> None:
    add(address, by)


@compiled(public=True)
def read(address: int) -> int:
    return load(address)  # type: ignore[no-any-return]


class Team:
    """Begun when a job first wants more than one thread. One job at a time."""

    def __init__(self) -> None:
        self._control: Table = np.zeros(COUNTERS, np.int64)
        self._address = self._control.ctypes.data
        self._threads: list[tuple[threading.Thread, threading.Event]] = []
        self._busy = threading.Lock()
        self._registered = False

    @property
    def size(self) -> int:
        """How many threads there are besides the one that asks."""
        return len(self._threads)

    def run(self, job: Table) -> None:
        """Compute a job with as many threads as it says. Ctrl-C is heard when it is done, or before it has begun."""
        with self._busy:
            self._size(int(job[at.THREADS]) - 1)
            self._control[DONE] = self._control[MEETING] = 0
            job[at.MEETING] = self._address + 8 * MEETING
            self._control[TASK] = job.ctypes.data
            if job[at.THREADS] <= 1:
                lead(self._address, job.ctypes.data, 0)
                return
            calls, heard = self._calls, None
            while True:
                try:
                    if self._calls == calls:
                        self._call()
                    self._wake()  # perhaps again
                    lead(self._address, job.ctypes.data, len(self._threads))
                    break
                except BaseException as interruption:
                    if self._calls == calls:
                        raise
                    heard = interruption  # others compute already in memory that is held here, and wait for this thread
            if heard is not None:
                raise heard

    @property
    def _calls(self) -> int:
        return int(read(self._address + 8 * CALLS))

    def _size(self, others: int) -> None:
        """Keep ``others`` threads beside the caller's. None is ended if the caller computes alone for once."""
        if 0 < others < len(self._threads):
            self._end()
        while len(self._threads) < others:
            self._begin()

    def _begin(self) -> None:
        serve.compile("int64(int64, int64, int64)")  # here, since a failure in a separate thread would go unreported
        if not self._registered:
            atexit.register(self.close)
            self._registered = True
        event = threading.Event()
        arguments = self._control, len(self._threads) + 1, event, self._calls
        thread = threading.Thread(target=_served, args=arguments, name="forward", daemon=True)
        self._threads.append((thread, event))
        try:
            thread.start()
        except BaseException:
            if thread.ident is None:  # else it runs, and is waited for in each job
                self._threads.pop()
            raise

    def _call(self) -> None:
        raised(self._address + 8 * CALLS, 1)
        self._wake()

    def _wake(self) -> None:
        if read(self._address + 8 * ASLEEP):
            for _, event in self._threads:
                event.set()

    def close(self) -> None:
        """End the threads, unless one is in the middle of a job."""
        if self._busy.acquire(timeout=1.0):
            try:
                self._end()
            finally:
                self._busy.release()

    def _end(self) -> None:
        self._control[STOP] = 1
        self._call()
        for thread, _ in self._threads:
            thread.join(1.0)
        if any(thread.is_alive() for thread, _ in self._threads):
            self._control = np.zeros(COUNTERS, np.int64)  # theirs says for ever that they are to end
            self._address = self._control.ctypes.data
        self._threads.clear()
        self._control[STOP] = 0

    def forget(self) -> None:
        """In a fork, which has none of the threads."""
        self.__init__()  # type: ignore[misc]


def _served(control: Table, number: int, event: threading.Event, seen: int) -> None:
    """A thread's life. Before it sleeps it says so and looks once more, so no call is missed."""
    address = control.ctypes.data
    while (seen := serve(address, number, seen)) >= 0:
        raised(address + 8 * ASLEEP, 1)
        if read(address + 8 * CALLS) == seen:
            event.wait()
        event.clear()
        raised(address + 8 * ASLEEP, -1)


TEAM = Team()
"""Of this process."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=TEAM.forget)
