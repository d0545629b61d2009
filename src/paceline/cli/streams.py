"""Standard streams as they may come: closed, or in an encoding that has not every character."""

from __future__ import annotations

import io
import os
import sys


def prepare() -> None:
    """Closed input is empty input, and complaints that nobody hears go nowhere; a closed output is told. What an
    output's encoding lacks is written as its escape."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf8")  # noqa: SIM115  (it stands for a stream of the process)
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf8")  # noqa: SIM115
    if sys.stdout is None:
        raise ValueError("standard output is closed, so nothing can be told; give it a terminal, a pipe or a file")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def silence() -> None:
    """Let what is still buffered for standard output go nowhere: whoever read it has enough."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def speaks_unicode() -> bool:
    """Whether standard output can carry every character."""
    return (sys.stdout.encoding or "").lower().replace("-", "").replace("_", "") == "utf8"
