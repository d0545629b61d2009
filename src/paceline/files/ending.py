"""SIGTERM ends a process as Ctrl-C does: what it was writing is removed."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

CODE = 128 + signal.SIGTERM
AT_ONCE = 5.0
"""Seconds in which a second signal is the first one again: some send it to the process and to its group."""


class Terminated(SystemExit):
    """Raised where the program was when SIGTERM came."""


@contextmanager
def terminable() -> Iterator[None]:
    """`Terminated` is raised inside when SIGTERM comes. Who handles that signal already goes on handling it."""
    here = threading.current_thread() is threading.main_thread()
    if not here or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    last = -AT_ONCE

    def end(*_: object) -> None:
        nonlocal last
        if time.monotonic() - last >= AT_ONCE:
            last = time.monotonic()
            raise Terminated(CODE)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
