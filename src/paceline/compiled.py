"""Functions that numba compiles for this processor. Numba takes a while to load, so modules that define such functions
are imported where the first of them is called."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any


def compiled(*, public: bool = False, **options: Any) -> Callable[[Any], Any]:
    """Compiles a function when it is first called, and keeps that for later processes, if there is a place for it.
    Python can call it where it is ``public``."""
    from numba import njit

    def decorate(function: Any) -> Any:
        # a division by 0 is no exception; what is only called from here needs nothing to be called from Python
        inner = {} if public else {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
        how = {"nogil": True, "error_model": "numpy", **inner, **options}
        try:
            made = njit(cache=True, **how)(function)
            made._cache._cache_file._source_stamp = _digest(function)
        except (RuntimeError, AttributeError):  # there is no folder that can be written, or another cache
            return njit(**how)(function)
        return made

    return decorate


def native(signature: str) -> Callable[[Any], Callable[[], int]]:
    """Compiles a function that is called by its address, when that is asked for."""
    from numba.core.ccallback import CFunc
    from numba.core.sigutils import normalize_signature

    def decorate(function: Any) -> Callable[[], int]:
        @cache
        def address() -> int:
            made: Any = CFunc(function, normalize_signature(signature), {}, {"nopython": True, "error_model": "numpy"})
            with suppress(RuntimeError, AttributeError):
                made.enable_caching()
                made._cache._cache_file._source_stamp = _digest(function)
            made.compile()
            return int(made.address)

        return address

    return decorate


def exact(module: str, finds_the_same: Callable[[ModuleType], bool]) -> ModuleType | None:
    """A module of compiled functions; None where numba is missing, fails or finds other numbers."""
    try:
        found = import_module(module)
        return found if finds_the_same(found) else None
    except Exception:
        return None


def _digest(function: Any) -> str:
    """The digest of everything a function is compiled from. Numba itself looks only at the function's own file."""
    return _digest_of(Path(function.__code__.co_filename).parent)


@cache
def _digest_of(folder: Path) -> str:
    here = Path(__file__).parent
    shared = [Path(__file__), here / "law" / "kernels.py", here / "law" / "outlook.py"]
    sources = [*shared, *sorted({*folder.glob("*.py"), *(here / "targets" / "hf" / "fused").glob("*.py")})]
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
