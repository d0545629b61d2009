"""Types of numbers and devices by their names."""

from __future__ import annotations

import torch

from paceline.errors import InputError

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
SHORT = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "half": "float16"}
"""Other names of types."""


def named_dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    """A type of weights by its name or as torch has it; None, or ``auto``, for the model's own."""
    if dtype is None or dtype == "auto":
        return None
    name = str(dtype).removeprefix("torch.")
    name = SHORT.get(name, name)
    if name == "int8":
        raise InputError("int8 is no dtype; quantize='int8' (--quantize int8) computes in 8-bit integers")
    if name not in DTYPES:
        raise InputError(f"unknown dtype {name!r}; choose one of {', '.join(DTYPES)}")
    return DTYPES[name]


def is_quantized(given: str | None) -> bool:
    """Whether weights are to be 8-bit integers."""
    if given is None or given == "none":
        return False
    if given != "int8":
        raise InputError(f"unknown quantize {given!r}; there is int8")
    return True


def named_device(given: str | int | torch.device | None) -> torch.device:
    """A device by its name or as torch has it. ``auto`` is a GPU where there is one, and None the CPU."""
    known = "choose cpu, auto, or cuda where there is one"
    name = _fastest() if given == "auto" else "cpu" if given is None else given
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError):
        raise InputError(f"device {str(given)!r} is not available here; {known}") from None
    if device.type == "meta":
        raise InputError(f"device 'meta' holds no values, so no text can be written there; {known}")
    return device


def _fastest() -> str:
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"
