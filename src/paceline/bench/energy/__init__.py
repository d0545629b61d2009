"""Joules: measured where the machine has a meter, estimated from a stated power where not, and always labelled.

`open_meter` is the way in: a `Meter` is started and stopped around each text and closed at the end, and says whether it
`measured` and by which `source`.
"""

from __future__ import annotations

import sys

from paceline.bench.energy.meter import Meter, Stated, Unmetered
from paceline.bench.energy.nvml import Nvml
from paceline.bench.energy.powermetrics import Powermetrics
from paceline.bench.energy.rapl import Rapl
from paceline.errors import InputError

__all__ = ["KINDS", "Meter", "Unmetered", "open_meter"]

KINDS = ("nvml", "rapl", "powermetrics", "stated")


def open_meter(kind: str | None, watts: float | None, device: str) -> tuple[Meter | None, str]:
    """The meter of a kind, or by default the first that counts what this device draws, else an estimate from ``watts``,
    else none. The text beside it says why no better one works. A kind that is named and does not work is an error.
    """
    if kind is not None and kind not in KINDS:
        raise InputError(f"unknown energy meter {kind!r}; choose {', '.join(KINDS)} or none")
    if watts is not None and not watts > 0:
        raise InputError(f"a power must be more than 0 W, not {watts:g}")
    if kind == "stated":
        if watts is None:
            raise InputError("an estimate of energy needs a power; give --watts W")
        return Stated(watts), ""
    obstacles = dict[str, str]()
    for fitting in _fitting(device) if kind is None else [kind]:
        try:
            return _opened(fitting, device), ""
        except Unmetered as why:
            obstacles[fitting] = str(why)
    if kind is not None:
        raise InputError(f"the energy meter {kind} does not work here: {obstacles[kind]}")
    said = "; ".join(f"{name}: {why}" for name, why in obstacles.items()) or f"there is no meter for {device}"
    return (None if watts is None else Stated(watts)), said


def _fitting(device: str) -> list[str]:
    """Meters that count what a device draws. A processor's counter says nothing of a card."""
    if device.startswith("cuda"):
        return ["nvml"]
    if sys.platform == "darwin":
        return ["powermetrics"]
    return ["rapl"] if device.startswith("cpu") else []


def _opened(kind: str, device: str) -> Meter:
    if kind == "nvml":
        return Nvml(device)
    return Rapl() if kind == "rapl" else Powermetrics()
