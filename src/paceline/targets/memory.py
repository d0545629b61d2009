"""The memory of the host, and models that do not fit into it."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path

from paceline.errors import InputError

MEMORY, GROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")
"""Where Linux says how much memory is free, and how much a container may take."""


def host_memory() -> int | None:
    """Bytes that can be taken without swapping; None where that is unknown. A system that promises more memory than it
    has ends a process instead of refusing, so it is asked first."""
    known = [free for free in (_available(), _left_in_group()) if free is not None]
    return min(known, default=None)


SMALLER = "choose a smaller model, or one whose weights have fewer bits"
"""How to need less memory, where the weights are read as they are stored."""


def must_fit(name: object, needed: float, free: int | None, smaller: str) -> None:
    """Refuse a model that needs more bytes than are free; ``smaller`` says how to need less."""
    if free is not None and needed > free:
        raise InputError(f"{name} needs {needed / 1e9:.1f} GB of memory and {free / 1e9:.1f} GB are free; {smaller}")


def give_back() -> None:
    """Have the C library return what was freed to the system. It keeps blocks below 32 MB for later, and those of a
    model's weights in floats are not needed again once there are integers of them."""
    with suppress(OSError, AttributeError, TypeError):  # only glibc has it, and Windows loads no such library
        ctypes.CDLL(None).malloc_trim(0)


def _available() -> int | None:
    """Of the machine; where the system only says how much there is, half of that."""
    try:
        lines = MEMORY.read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, ValueError, OSError):
        return None


def _left_in_group() -> int | None:
    """Of the container, where it has a limit. It counts files that the system may drop from memory; they are free."""
    try:
        most, taken = (int((GROUP / f"memory.{which}").read_text()) for which in ("max", "current"))
        kept = dict(line.split() for line in (GROUP / "memory.stat").read_text().splitlines())
        return most - taken + int(kept["inactive_file"])
    except (OSError, ValueError, KeyError):
        return None
