"""SIGTERM ends a process as Ctrl-C does: unfinished files are removed."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

CODE = 128 + signal.SIGTERM
AT_ONCE = 5.0
"""Seconds within which a second signal is ignored: some programs signal both the process and its group."""


class Terminated(SystemExit):
    """Raised at the current line when SIGTERM comes."""


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM raises `Terminated` inside, unless the program handles that signal already."""
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
