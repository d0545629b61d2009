"""Types of numbers by their names, and the memory of a device."""

from __future__ import annotations

import torch

from paceline.errors import InputError
from paceline.targets.memory import host_memory
from paceline.targets.types import BITS, type_name

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def named_dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    """A type of weights by its name or as torch has it; None, or ``auto``, where none is asked for."""
    if dtype is None or dtype == "auto":
        return None
    name = type_name(dtype)
    if name in BITS:
        raise InputError(f"{name} is not a dtype; write quantize='{name}' (--quantize {name})")
    if name not in DTYPES:
        raise InputError(f"unknown dtype {name!r}; choose one of {', '.join(DTYPES)}")
    return DTYPES[name]


def bits_of(quantize: str | None) -> int | None:
    """The bits of the integers that weights are converted to; None for floats."""
    if quantize is None or quantize == "none":
        return None
    if quantize not in BITS:
        raise InputError(f"unknown quantize {quantize!r}; there are {' and '.join(BITS)}")
    return BITS[quantize]


def free_memory(device: torch.device) -> int | None:
    """Bytes that can be taken without swapping; None where that is unknown."""
    if device.type == "cuda":
        kept_by_torch = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0] + kept_by_torch)
    if device.type != "cpu":
        return None
    return host_memory()
