"""Functions that numba compiles for this processor. Numba takes a while to load, so modules that define such functions
are imported where the first of them is called."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any


def compiled(**options: Any) -> Callable[[Any], Any]:
    """Compiles a function when it is first called, and keeps that for later processes, if there is a place for it."""
    from numba import njit

    def decorate(function: Any) -> Any:
        how = {"nogil": True, "error_model": "numpy", **options}  # a division by 0 is no exception
        try:
            made = njit(cache=True, **how)(function)
            made._cache._cache_file._source_stamp = _digest(Path(function.__code__.co_filename).parent)
        except (RuntimeError, AttributeError):  # there is no folder that can be written, or another cache
            return njit(**how)(function)
        return made

    return decorate


def exact(module: str, finds_the_same: Callable[[ModuleType], bool]) -> ModuleType | None:
    """A module of compiled functions; None where numba is missing, fails or finds other numbers."""
    try:
        found = import_module(module)
        return found if finds_the_same(found) else None
    except Exception:
        return None


@cache
def _digest(folder: Path) -> str:
    """Of all that functions of a folder are compiled from. Numba itself looks only at the file that a function stands
    in."""
    return hashlib.sha256(b"".join(source.read_bytes() for source in sorted(folder.glob("*.py")))).hexdigest()
