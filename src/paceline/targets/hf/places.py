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


def places(config: Any, prefix: int, draft: int, *, drawn: bool) -> Iterator[Place]:
    """For each switch a draft whose last tokens cross it (those of a tree would cross it earlier if positions were
    counted by packed rows), and one behind it. Far ones stand behind ``prefix`` tokens. Windows that are ``drawn`` by
    our attention need none."""
    for name, size in sizes(config).items():
        for first in () if drawn and "window" in name else (size - draft + 1, size + 1):
            near = max(first, 1) if first <= NEAR else prefix
            yield Place(size, near, max(0, first - near))


def sizes(config: Any) -> dict[str, int]:
    """The sizes of a text's configuration by name. What a static rotary embedding was scaled from changes nothing."""
    fields = config.to_dict()
    ropes = [fields.get("rope_parameters") or {}]
    ropes += [rope for rope in ropes[0].values() if isinstance(rope, dict)]
    moving = [rope for rope in ropes if "rope_type" in rope and rope["rope_type"] not in STATIC]
    named = {name: size for part in (fields, *moving) for name, size in part.items() if type(size) is int and size > 1}
    return {name: size for name, size in named.items() if _is_switch(name)}


def _is_switch(name: str) -> bool:
    return any(part in name for part in SWITCHES) and not name.endswith(("_layers", "_pattern"))
