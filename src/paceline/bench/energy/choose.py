"""Which meter there is."""

from __future__ import annotations

import sys
from collections.abc import Callable

from paceline.bench.energy.meter import Meter, Unmetered
from paceline.bench.energy.nvml import Nvml
from paceline.bench.energy.powermetrics import Powermetrics
from paceline.bench.energy.rapl import Rapl
from paceline.bench.energy.stated import Stated

KINDS = ("nvml", "rapl", "powermetrics", "stated")


def open_meter(kind: str | None, watts: float | None, device: str) -> tuple[Meter | None, str]:
    """The meter of a kind, or, without one, the first that counts what this device draws; else an estimate from
    ``watts``; else none. Beside it stands why it is no better one. A kind that is named and does not work is an error.
    """
    if kind is not None and kind not in KINDS:
        raise ValueError(f"unknown energy meter {kind!r}; choose {', '.join(KINDS)} or none")
    if watts is not None and not watts > 0:
        raise ValueError(f"a power must be more than 0 W, not {watts:g}")
    if kind == "stated":
        if watts is None:
            raise ValueError("an estimate of energy needs a power; give --watts W")
        return Stated(watts), ""
    if kind is not None:
        try:
            return _opening(kind, device)(), ""
        except Unmetered as why:
            raise ValueError(f"the energy meter {kind} does not work here: {why}") from None
    reasons = list[str]()
    for fitting in fitting_kinds(device):
        try:
            return _opening(fitting, device)(), ""
        except Unmetered as why:
            reasons.append(f"{fitting}: {why}")
    told = "; ".join(reasons) or f"there is no meter for {device}"
    return (None, told) if watts is None else (Stated(watts), told)


def fitting_kinds(device: str) -> list[str]:
    """Meters that count what a device draws. A processor's counter says nothing of a card."""
    if device.startswith("cuda"):
        return ["nvml"]
    if sys.platform == "darwin":
        return ["powermetrics"]
    return ["rapl"] if device.startswith("cpu") else []


def _opening(kind: str, device: str) -> Callable[[], Meter]:
    if kind == "nvml":
        return lambda: Nvml(device)
    return Rapl if kind == "rapl" else Powermetrics
