"""How far a training is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from paceline_make.models.loop import Report

EVERY = 20
"""Steps between two lines where there is no terminal."""


@contextmanager
def progress(name: str) -> Iterator[Report]:
    """A bar; lines where there is no terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(name)

        def report(step: int, steps: int, loss: float, speed: float) -> None:
            bar.update(task, completed=step, total=steps, description=f"{name} loss {loss:.3f}, {speed:.0f} tokens/s")
            if not sys.stderr.isatty() and (step % EVERY == 0 or step == steps):
                print(f"{name} step {step}/{steps} loss {loss:.3f} {speed:.0f} tokens/s", file=sys.stderr, flush=True)

        yield report
