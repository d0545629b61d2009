"""Where a model is computed: on the device that was named, by an argument or by ``PACELINE_DEVICE``, or else on the
fastest one that works here.

Nothing is asked of a GPU before a model of floats needs a place and no device was named: a process that computes on the
CPU only holds no memory of a GPU, and can be forked.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from functools import cache

import torch

from paceline.errors import InputError
from paceline.targets.place import free_memory

VARIABLE = "PACELINE_DEVICE"
AUTO = "auto"
CPU_DEVICE = torch.device("cpu")
GPUS = "cuda", "mps"
"""Kinds of GPUs, fastest first."""
KNOWN = "choose cpu, auto, or cuda where there is one"
HEADROOM = 1.05
RESERVE = 1 << 30
"""Memory for rows, activations and the small model: a factor on that of the weights, and bytes beside it."""
ELSEWHERE = "so it is computed on the CPU"


@dataclass(frozen=True)
class WantedDevice:
    """The requested device, or the fastest."""

    device: torch.device | None
    """None where it is chosen here."""
    by_argument: bool = True
    """Whether an argument says so, not the environment."""

    def for_floats(self, name: str, needed: int, dtype: torch.dtype | None) -> torch.device:
        """The device for a model whose weights take ``needed`` bytes. One that does not fit the GPU that was chosen
        here goes to the CPU, with one note; where a device was named, its own error says so."""
        if self.device is not None:
            return self.device
        device = fastest(dtype)
        free = None if device.type == "cpu" else free_memory(device)
        whole = needed * HEADROOM + RESERVE
        if free is None or whole <= free:
            return device
        sizes = f"needs {whole / 1e9:.1f} GB and the GPU has {free / 1e9:.1f} GB free"
        warnings.warn(f"{name} {sizes}, {ELSEWHERE}", UserWarning, stacklevel=2)
        return CPU_DEVICE

    def for_integers(self) -> torch.device:
        """The CPU, unless an argument names another device, which `check_place` refuses: exact products of integers
        exist on CPUs only, and the environment names a device for models that have the choice."""
        return self.device if self.device is not None and self.by_argument else CPU_DEVICE


def asked(given: str | int | torch.device | None) -> WantedDevice:
    """The device of an argument, or else ``PACELINE_DEVICE``, or else the fastest device."""
    if given is not None:
        return WantedDevice(None if given == AUTO else _named(given, f"device {str(given)!r}"))
    named = os.environ.get(VARIABLE) or AUTO
    return WantedDevice(None if named == AUTO else _named(named, f"device {named!r}, which {VARIABLE} names,"), False)


def _named(given: str | int | torch.device, said: str) -> torch.device:
    """A device by its name or as torch has it; ``said`` begins the sentence on a wrong one."""
    try:
        device = torch.device(given)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError):
        raise InputError(f"{said} is not available here; {KNOWN}") from None
    if device.type == "meta":
        raise InputError(f"{said} holds no values, so no text can be written there; {KNOWN}")
    return device


def fastest(dtype: torch.dtype | None = None) -> torch.device:
    """A GPU that works, or else the CPU."""
    kinds = (kind for kind in GPUS if kind != "mps" or dtype != torch.float64)  # mps has no float64
    return torch.device(next(filter(computes, kinds), "cpu"))


@cache
def computes(kind: str) -> bool:
    """Whether there is a GPU of this kind and it computes. One that fails gets one note, which says why."""
    if kind == "mps":
        there, said = torch.backends.mps.is_available(), ""
    else:
        there, said = _sees_cuda()
    why = _fault(kind) if there else said
    if why:
        warnings.warn(f"the GPU ({kind}) is not used: {' '.join(why.split())}", UserWarning, stacklevel=2)
    return there and not why


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=computes.cache_clear)  # no fork has its parent's connection to the GPU


def _sees_cuda() -> tuple[bool, str]:
    """Whether torch sees a GPU, and what it says of a driver that fails, which it only warns of."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        there = torch.cuda.is_available()
    return there, "; ".join(str(one.message) for one in heard)


def _fault(kind: str) -> str:
    """Why a GPU does not compute a product of ones, sent there and read back; nothing where it does."""
    try:
        ones = torch.ones(4, 4).to(kind)
        product = (ones @ ones).tolist()
    except Exception as error:  # drivers and kernels raise errors of any type
        return f"{str(error).partition(chr(10))[0] or type(error).__name__}"
    return "" if product == [[4.0] * 4] * 4 else f"it multiplies ones to {product[0][0]:g} instead of 4"
