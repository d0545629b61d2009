"""A Ray cluster: joining one, and the errors of its tasks."""

from __future__ import annotations

import logging
import os

from paceline.errors import InputError


def join(address: str) -> None:
    """Be part of a cluster. `local` starts one on this machine, whatever the environment names; a process that is part
    of one already stays there."""
    import ray

    if ray.is_initialized():
        return
    # one failed task fails all that wait for it, and Ray would print a traceback for each of them
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except ConnectionError as error:
        raise InputError(f"there is no Ray cluster at {address}: {str(error).splitlines()[0]}") from None


def innermost(error: BaseException) -> BaseException:
    """The error of a task. Ray wraps it around a traceback as text, once more for each task that waited for it."""
    from ray.exceptions import RayTaskError

    while isinstance(error, RayTaskError):
        error = error.cause
    return error
