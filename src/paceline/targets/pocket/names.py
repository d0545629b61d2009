"""The names of the bundled models. Read where no model is loaded, so it imports nothing heavy."""

from __future__ import annotations

import difflib
from pathlib import Path

from paceline.errors import InputError
from paceline.targets.mlx.names import is_mlx

POCKET_NAMES = ("pocket", "pocket-draft", "pocket-foreign")
MODELS = Path(__file__).parent / "models"
"""Where their folders are."""
BALLAST_MARK = "+ballast"
"""The mark between a name and the size of its ballast."""


def is_bundled(name: str) -> bool:
    """Whether a name is that of a bundled model; `InputError` if it is almost one."""
    if is_mlx(name):
        return False
    if name in POCKET_NAMES or BALLAST_MARK in name:
        return True
    if "/" not in name and (close := close_name(name)) and not Path(name).is_dir():
        raise InputError(f"no model at {name!r}; did you mean {close!r}? Bundled are {', '.join(POCKET_NAMES)}")
    return False


def bundled_name(said: object) -> str:
    """The name of a bundled model, with its ballast, that a file says it was made of; empty where it says none."""
    return said if isinstance(said, str) and said.partition(BALLAST_MARK)[0] in POCKET_NAMES else ""


def close_name(name: str) -> str | None:
    """The bundled name that a misspelt one probably means."""
    return next(iter(difflib.get_close_matches(name, POCKET_NAMES, n=1, cutoff=0.8)), None)
