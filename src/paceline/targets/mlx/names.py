"""The names of models that mlx-lm loads. Read where no model is loaded, so it imports nothing heavy."""

from __future__ import annotations

MLX_MARK = "mlx:"
"""In front of a folder, of a bundled model's name, or of a name on a hub."""
BUNDLED = "paceline_bundled"
"""The entry of a configuration that says of which bundled model a folder was made: heads for that draft for it."""


def is_mlx(name: object) -> bool:
    return isinstance(name, str) and name.startswith(MLX_MARK)
