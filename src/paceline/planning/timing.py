"""One measured forward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from paceline.files.shape import LARGEST, Count, Within

Nodes = Annotated[int, Within(0, 2**12)]
Rows = Annotated[int, Within(1, 2**24)]
BatchSize = Annotated[int, Within(1, 1024)]
Seconds = Annotated[float, Within(1e-12, LARGEST)]
"""Bounds of what is read from a file."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Seconds that a round took which scored ``rows`` rows (roots included) of ``sequences`` sequences together, each
    with about ``length`` tokens before it: all of the round but the drafting."""

    rows: Rows
    seconds: Seconds
    length: Count = 0
    sequences: BatchSize = 1
