"""Positions at which a model may change, and where the probe scores drafts for their sake.

A configuration may name a window, a chunk, a floor or an original length. Beyond it the model may rotate, scale or mask
in another way, which a short probe does not see. So drafts are also scored across each such position and behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from paceline.targets.hf.rope import STATIC

SWITCHES = ("window", "chunk", "floor", "original", "initial_context", "extent")
"""Parts of the names of such sizes."""
NEAR_POSITIONS = 64
"""Up to this position a text is read; farther positions are given to the model without rows in front."""


@dataclass(frozen=True)
class ProbePoint:
    """Where drafts are scored: behind ``prefix`` tokens, whose positions start at ``moved``."""

    switch: int
    """The position at which the model may change."""
    prefix: int
    moved: int = 0


SCANS = frozenset({"chunk_size", "mamba_chunk_size"})
"""Sizes of pieces in which layers with a state read a prompt; nothing changes at their ends."""


def probe_points(config: Any, prefix: int, draft: int, *, packed: bool, recurrent: bool) -> Iterator[ProbePoint]:
    """For each switch a draft whose last tokens cross it (those of a tree would cross it earlier if positions were
    counted by packed rows), and one behind it. Far ones stand behind ``prefix`` tokens. Windows of ``packed`` models
    are computed by our attention and need no point."""
    for name, size in sizes(config).items():
        if recurrent and name in SCANS:
            continue
        for first in () if packed and "window" in name else (size - draft + 1, size + 1):
            near = max(first, 1) if first <= NEAR_POSITIONS else prefix
            yield ProbePoint(size, near, max(0, first - near))


def sizes(config: Any) -> dict[str, int]:
    """The sizes in a configuration that may be switches, by name. Those of static rotary types change nothing."""
    fields = config.to_dict()
    ropes = [fields.get("rope_parameters") or {}]
    ropes += [rope for rope in ropes[0].values() if isinstance(rope, dict)]
    moving = [rope for rope in ropes if "rope_type" in rope and rope["rope_type"] not in STATIC]
    named = {name: size for part in (fields, *moving) for name, size in part.items() if type(size) is int and size > 1}
    return {name: size for name, size in named.items() if _is_switch(name)}


def _is_switch(name: str) -> bool:
    return any(part in name for part in SWITCHES) and not name.endswith(("_layers", "_pattern"))
