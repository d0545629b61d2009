"""A configuration of transformers in the words that mlx-lm reads.

transformers 5 writes some entries under new names, rotary settings above all: ``rope_parameters``. Most model files of
mlx-lm read the old names and take a default where these are missing, so that positions or windows are wrong without an
error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FULL, SLIDING = "full_attention", "sliding_attention"
OLD_NAMES = {"num_experts": "num_local_experts", "n_ctx": "n_positions"}
"""Names that mlx-lm reads -> those that transformers 5 writes."""


def mlx_words(config: Mapping[str, Any]) -> dict[str, Any]:
    """The entries that a configuration lacks for mlx-lm."""
    found = _rotary(config.get("rope_parameters") or {}) | _layers(config)
    found |= {name: config[new] for name, new in OLD_NAMES.items() if config.get(new) is not None}
    return {name: value for name, value in found.items() if config.get(name) is None}


def _rotary(given: Mapping[str, Any]) -> dict[str, Any]:
    """``given`` is for all layers, or for each type of layers."""
    nested = {kind: part for kind, part in given.items() if isinstance(part, Mapping)}
    whole = nested.get(FULL, {}) if nested else given
    found: dict[str, Any] = {}
    if (base := whole.get("rope_theta")) is not None:
        found |= {"rope_theta": base, "rotary_emb_base": base}
    if (local := nested.get(SLIDING, {}).get("rope_theta")) is not None:
        found["rope_local_base_freq"] = local
    if (share := whole.get("partial_rotary_factor")) is not None:
        found |= {"partial_rotary_factor": share, "rotary_pct": share}
    if whole.get("rope_type", "default") != "default":
        found["rope_scaling"] = {name: value for name, value in whole.items() if name != "rope_theta"}
    return {"rope_scaling": None} | found  # some model files ask for it even so


def _layers(config: Mapping[str, Any]) -> dict[str, Any]:
    """Which layers have a window: of each, or every how many layers one has none."""
    kinds = config.get("layer_types")
    if kinds and FULL in kinds and SLIDING in kinds:
        period = kinds.index(FULL) + 1
        if all((kind == FULL) == ((number + 1) % period == 0) for number, kind in enumerate(kinds)):
            return {"sliding_window_pattern": period}
    return {}
