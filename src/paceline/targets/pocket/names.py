"""The names of the bundled models. Read where no model is loaded, so it imports nothing heavy."""

from __future__ import annotations

import difflib

NAMES = ("pocket", "pocket-draft", "pocket-foreign")


def close_name(name: str) -> str | None:
    """The bundled name that a misspelt one probably means."""
    return next(iter(difflib.get_close_matches(name, NAMES, n=1, cutoff=0.8)), None)
