"""One measured forward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from paceline.files.shape import LARGEST_EXACT_INTEGER, Bounds, Count

Nodes = Annotated[int, Bounds(0, 2**12)]
Rows = Annotated[int, Bounds(1, 2**24)]
BatchSize = Annotated[int, Bounds(1, 1024)]
Seconds = Annotated[float, Bounds(1e-12, LARGEST_EXACT_INTEGER)]
"""Bounds of what is read from a file."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Seconds that a round took which scored ``rows`` rows (roots included) of ``sequences`` sequences together, each
    with about ``length`` tokens before it: all of the round but the drafting."""

    rows: Rows
    seconds: Seconds
    length: Count = 0
    sequences: BatchSize = 1
