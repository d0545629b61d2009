"""Kernels written in Triton: whether they can be compiled here, and how they are started.

Triton comes with torch's builds for CUDA on Linux. Without it everything is computed by torch's own operations.
"""

from __future__ import annotations

from contextlib import nullcontext
from importlib.util import find_spec
from typing import Any

import torch

NOT_INSTALLED = "triton is not installed"


def installed() -> bool:
    return find_spec("triton") is not None


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Start a ``grid`` of programs of a kernel, on the device of its first argument. All launches pass here."""
    device: torch.device = arguments[0].device
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        kernel[grid](*arguments, **constants)
