"""The folder of an mlx-lm model: its configuration and its weights, in few bits or not."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten
from mlx_lm.utils import quantize_model, save_config, save_model

from paceline.errors import InputError

BITS = (4, 8)
GROUPS = (64, 32)
"""Weights of a row that share a scale: as many as mlx-lm takes by default, or fewer where widths ask for it."""
LEFT = 0.1
"""The largest share of the weights that may stay in floats because no group fits their rows."""


def narrow(model: nn.Module) -> str:
    """Convert the weights to the narrowest type that holds all of them exactly, and name it: a checkpoint that was
    widened to compute it on a CPU gets its own type back."""
    floats = [weight for _, weight in tree_flatten(model.parameters()) if mx.issubdtype(weight.dtype, mx.floating)]
    for kind in (mx.bfloat16, mx.float16):
        if all(mx.array_equal(weight.astype(kind).astype(weight.dtype), weight) for weight in floats):
            model.set_dtype(kind)
            return str(kind).removeprefix("mlx.core.")
    return "float32"


def write_model(folder: Path, model: nn.Module, config: Mapping[str, Any], bits: int | None, name: str) -> None:
    """Write configuration and weights as mlx-lm has them; the model is given up. ``name`` is its name in errors."""
    written = dict(config)
    if bits is not None:
        with redirect_stdout(StringIO()):
            model, written = quantize_model(model, written, group_size(model, name), bits)
    save_model(folder, model, donate_model=True)
    save_config(written, config_path=folder / "config.json")


def group_size(model: nn.Module, name: str) -> int:
    """The weights that share a scale. mlx-lm leaves layers in floats whose rows no group fits; a model where those are
    more than a few is refused."""
    weights = {
        path: module.weight
        for path, module in model.named_modules()
        if hasattr(module, "to_quantized") and getattr(module, "weight", None) is not None
    }
    left = {group: [path for path, weight in weights.items() if weight.shape[-1] % group] for group in GROUPS}
    sizes = {group: sum(weights[path].size for path in paths) for group, paths in left.items()}
    best = min(GROUPS, key=lambda group: sizes[group])
    if not weights or sizes[best] > LEFT * sum(weight.size for weight in weights.values()):
        widths = sorted({int(weights[path].shape[-1]) for path in left[best]})
        raise InputError(
            f"{name} cannot be stored in few bits: mlx-lm quantises rows whose width is a multiple of {GROUPS[-1]}, "
            f"and here widths are {', '.join(map(str, widths)) or 'none'}; leave the bits out"
        )
    return best
