"""One measured forward."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Seconds that a round took which scored ``rows`` rows (roots included) of ``sequences`` sequences together, each
    with about ``length`` tokens before it: all of the round but the drafting."""

    rows: int
    seconds: float
    length: int = 0
    sequences: int = 1
