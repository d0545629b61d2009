"""What torchrun says in the environment of a process that it started."""

from __future__ import annotations

import os
from threading import Event

from paceline.errors import InputError

LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Environment variables that it sets."""

REPORTING = 5.0
"""Seconds for the first process to report a failure."""


def by_torchrun() -> bool:
    """Whether torchrun started this process."""
    return all(name in os.environ for name in LAUNCHED)


def launched() -> int:
    """How many processes it started, this one included; 1 without it."""
    if not by_torchrun():
        return 1
    if not (said := os.environ["WORLD_SIZE"]).isdecimal():
        raise InputError(f"WORLD_SIZE in the environment is a number of processes, not {said!r}; torchrun sets it")
    return int(said)


def follows() -> bool:
    """Whether several processes were started, and this is not the first of them."""
    return launched() > 1 and os.environ["RANK"] != "0"


def refuse_copies(ranks: int | None) -> None:
    """Refuse several processes without a model over them: each would write the whole text."""
    if (count := launched()) > 1 and ranks in (None, 1):
        raise InputError(
            f"torchrun started {count} processes, and each of them would do the whole work; add --tensor-parallel "
            f"{count} for one model over all of them, or start one process"
        )


def let_first_report() -> None:
    """Wait before this process ends with a failure that the first one reports: torchrun ends all with the first that
    ends."""
    Event().wait(REPORTING)
