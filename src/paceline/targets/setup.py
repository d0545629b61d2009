"""What measured seconds hold for: a machine, and how a target runs on it."""

from __future__ import annotations

import hashlib
import json
import platform
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from paceline import __version__
from paceline.files.shape import Count
from paceline.targets.base import Target

CPU_INFO = Path("/proc/cpuinfo")
DIGITS = 16
"""Of the digest that a setup is known by."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Everything that seconds depend on and that can be told before a round is timed.

    Versions are no part of what identifies it: a newer library replaces what was measured with the older one.
    """

    model: str
    """Its name, for people; `fingerprint` tells which weights."""
    fingerprint: str
    device: str
    """The kind: cpu, cuda, mps."""
    dtype: str
    threads: Count
    processor: str
    """The processor's own name, or the accelerator's."""
    recorded: bool = False
    """Whether forwards are recorded once for all drafts of a shape."""

    @property
    def digest(self) -> str:
        """Names it: equal for equal setups."""
        told = {name: value for name, value in asdict(self).items() if name != "model"}
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:DIGITS]

    @property
    def told(self) -> str:
        """In a line."""
        threads = f", {self.threads} {'thread' if self.threads == 1 else 'threads'}" if self.device == "cpu" else ""
        return f"{self.model} {self.dtype} on {self.processor}{threads}"


def versions() -> dict[str, str]:
    """The libraries whose change changes seconds."""
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = ""
    return {"paceline": __version__, "torch": torch}


@cache
def processor() -> str:
    """The processor's own name; the platform's word for it where that is not told."""
    try:
        lines = CPU_INFO.read_text(encoding="utf8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "unknown")


def setup_of(target: Target) -> Setup:
    """Of a target as it stands."""
    import torch

    kind = target.device.type
    return Setup(
        model=target.name,
        fingerprint=target.fingerprint(),
        device=kind,
        dtype=target.dtype_name,
        threads=torch.get_num_threads() if kind == "cpu" else 0,
        processor=torch.cuda.get_device_name(target.device) if kind == "cuda" else processor(),
        recorded=target.recorded,
    )


def described(target: Target) -> dict[str, Any]:
    """What a reader of a measurement must know of the model it was made on."""
    import torch

    return {
        "model": target.name,
        "dtype": target.dtype_name,
        "fingerprint": target.fingerprint(),
        "device": str(target.device),
        "threads": torch.get_num_threads(),
    }
