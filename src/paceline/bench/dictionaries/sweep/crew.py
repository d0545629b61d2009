"""Many pairs of tokenizer and language at a time, each in a process.

Workers are started anew rather than split off, for tokenizers and the counting engine have threads, and they keep
their tokenizer library between pairs. They do not hear Ctrl-C: whoever started them stops them, and what they were
writing has not appeared yet.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from paceline.bench.dictionaries.sweep.folder import Folder
from paceline.bench.dictionaries.sweep.settings import Settings
from paceline.bench.dictionaries.sweep.work import measure_pair
from paceline.targets.trust import trusting, trusts_all

Pair = tuple[str, str]
LOOK = 0.5
"""Seconds after which somebody looks how many cells there are."""


def measure_all(folder: Folder, pairs: Sequence[Pair], workers: int, watch: Callable[[str], None]) -> None:
    """All pairs, in their order as workers become free. ``watch`` is told now and then what is being done."""
    if workers <= 1 or len(pairs) <= 1:
        for pair in pairs:
            watch(" in ".join(pair))
            measure_pair(folder, pair)
        return
    crew = [_Worker(folder) for _ in range(min(workers, len(pairs)))]
    try:
        waiting = list(pairs)
        while waiting or any(worker.pair for worker in crew):
            for worker in crew:
                if worker.pair is None and waiting:
                    worker.take(waiting.pop(0))
            watch(", ".join(" in ".join(worker.pair) for worker in crew if worker.pair))
            for ready in wait([worker.pipe for worker in crew if worker.pair], LOOK):
                next(worker for worker in crew if worker.pipe is ready).finish()
    finally:
        for worker in crew:
            worker.stop()
        folder.tidy()


class _Worker:
    def __init__(self, folder: Folder) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.pair: Pair | None = None
        self._process: BaseProcess = context.Process(
            target=_serve, args=(theirs, str(folder.path), folder.settings, trusts_all()), daemon=True
        )
        self._process.start()
        theirs.close()

    def take(self, pair: Pair) -> None:
        self.pair = pair
        try:
            self.pipe.send(pair)
        except OSError:  # nobody reads it any more
            raise self._killed(" in ".join(pair)) from None

    def finish(self) -> None:
        """The pair is done, or it says why not."""
        assert self.pair is not None, "only who has work finishes it"
        name, self.pair = " in ".join(self.pair), None
        try:
            mistake, failure = self.pipe.recv()
        except (EOFError, OSError):  # the latter where it had not even read what it was to do
            raise self._killed(name) from None
        if mistake is not None:
            raise ValueError(mistake)
        if failure is not None:
            raise RuntimeError(f"measuring {name} failed:\n{failure}")

    def _killed(self, name: str) -> ValueError:
        self._process.join()
        return ValueError(
            f"the process that measured {name} was killed ({self._process.exitcode}), perhaps for want of memory; "
            "give --workers 1, and the same sweep goes on"
        )

    def stop(self) -> None:
        self.pipe.close()
        self._process.kill()
        self._process.join()


def _serve(pipe: Connection, path: str, settings: Settings, trusted: bool) -> None:
    """What a worker does until nobody sends it any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    folder = Folder(Path(path), settings)
    while True:
        try:
            pair = pipe.recv()
        except EOFError:
            return
        try:
            with trusting(trusted):
                measure_pair(folder, pair)
            told: tuple[str | None, str | None] = None, None
        except (ValueError, MemoryError) as error:
            told = str(error) or "there is not enough memory; give --workers 1, and the same sweep goes on", None
        except Exception:
            told = None, traceback.format_exc()
        try:
            pipe.send(told)
        except OSError:  # nobody is there any more
            return


def _end_with(parent: BaseProcess | None) -> None:
    """A process that was killed stops no workers, so they watch it."""
    assert parent is not None, "whoever works here was started"
    parent.join()
    os._exit(1)
