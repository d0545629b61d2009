"""How many processors there are for this process."""

from __future__ import annotations

import os


def cores() -> int:
    """Those that it is allowed; macOS and Windows only know how many the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
