"""How a target runs here: what a stored profile must have been measured on to hold for it."""

from __future__ import annotations

from typing import Any

from paceline.profile.setup import Setup, processor
from paceline.targets.base import Target


def setup_of(target: Target) -> Setup:
    """Of any target; one that is not computed with torch runs on the processor, in a type that nobody tells."""
    import torch

    device: Any = getattr(target, "device", None)
    kind = "cpu" if device is None else str(device.type)
    name = torch.cuda.get_device_name(device) if kind == "cuda" else processor()
    return Setup(
        model=target.name,
        fingerprint=target.fingerprint(),
        device=kind,
        dtype=str(getattr(target, "dtype", "")).removeprefix("torch."),
        threads=torch.get_num_threads() if kind == "cpu" else 0,
        processor=name,
        recorded=getattr(target, "fixed", None) is not None,
    )
