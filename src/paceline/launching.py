"""Kernels written in Triton: whether they can be compiled here, and how they are started.

Triton comes with torch's builds for CUDA on Linux. Without it everything is computed by torch's own operations.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any


def installed() -> bool:
    return find_spec("triton") is not None


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Start so many programs of a kernel. All launches pass here."""
    kernel[grid](*arguments, **constants)
