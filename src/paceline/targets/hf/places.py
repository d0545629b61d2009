"""The positions at which a configuration lets its model change, and texts that get there.

A window, a chunk, a floor, an original length: beyond such a size a model may rotate, scale or mask in another way. A
short probe sees none of it, so drafts are also scored across each of these positions and behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from paceline.targets.hf.kinds import STATIC

SWITCHES = ("window", "chunk", "floor", "original", "initial_context", "extent")
"""Parts of the names of such sizes."""
NEAR = 64
"""Up to this position a text is read to get there; farther ones are stated to the model, with no rows in front."""


@dataclass(frozen=True)
class Place:
    """Where drafts are scored for the sake of a switch: behind ``prefix`` tokens that are taken to stand behind
    ``moved`` others."""

    switch: int
    prefix: int
    moved: int = 0


def places(config: dict[str, Any], prefix: int, draft: int, *, drawn: bool) -> Iterator[Place]:
    """For each switch a draft whose last tokens cross it (those of a tree would cross it earlier if positions were
    counted by packed rows), and one behind it. Far ones stand behind ``prefix`` tokens. Windows that are ``drawn`` by
    our attention need none."""
    for name, size in _named_sizes(config):
        if size < 2 or not any(part in name for part in SWITCHES) or (drawn and "window" in name):
            continue
        for first in (size - draft + 1, size + 1):
            near = max(first, 1) if first <= NEAR else prefix
            yield Place(size, near, max(0, first - near))


def _named_sizes(config: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Whole numbers by name. What a static rotary embedding was scaled from is no switch."""
    for name, value in config.items():
        if isinstance(value, dict) and value.get("rope_type") not in STATIC:
            yield from _named_sizes(value)
        elif type(value) is int:
            yield name, value
