"""The setup that measured seconds hold for: a machine, and how a target runs on it."""

from __future__ import annotations

import hashlib
import json
import os
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
KERNEL_LIMITS = (
    *("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "FBGEMM_ENABLE_INSTRUCTIONS"),
    *("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"),
)
"""Environment variables that hold libraries below what the processor has; torch says itself what it uses."""
DIGITS = 16
"""Of a setup's digest."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Everything that seconds depend on and that is known before a round is timed, except the versions of libraries:
    what a newer library measures replaces older measurements."""

    model: str
    """Its name, for people; the fingerprint identifies the weights."""
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
        """Equal for equal setups, different for different ones."""
        fields = {name: value for name, value in asdict(self).items() if name != "model"}
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:DIGITS]

    @property
    def summary(self) -> str:
        """In a few words, for people."""
        threads = f", {self.threads} {'thread' if self.threads == 1 else 'threads'}" if self.device == "cpu" else ""
        return f"{self.model} {self.dtype} on {self.processor}{threads}"


def versions() -> dict[str, str]:
    """Versions of the libraries that seconds depend on."""
    return {"paceline": __version__, "torch": _version("torch"), "numba": _version("numba")}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


@cache
def processor() -> str:
    """The processor's own name, or else the platform's word for it."""
    try:
        lines = CPU_INFO.read_text(encoding="utf8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "unknown")


def _card(device: str) -> str:
    import torch

    return torch.cuda.get_device_name(device)


def kernels() -> str:
    """Which instructions torch and oneDNN use here. Environment variables can hold them below the processor's."""
    import torch

    limits = (f"{name}={os.environ[name]}" for name in KERNEL_LIMITS if name in os.environ)
    return " ".join([torch.backends.cpu.get_cpu_capability(), *limits])


def setup_of(target: Target) -> Setup:
    """The setup of a target."""
    kind = target.device.partition(":")[0]
    part = _card(target.device) if kind == "cuda" else processor()
    return Setup(
        model=target.name,
        fingerprint=target.fingerprint(),
        device=kind,
        dtype=target.dtype,
        threads=target.threads if kind == "cpu" else 0,
        processor=part if target.ranks == 1 else f"{target.ranks} ranks on {part}",
        recorded=target.recorded,
    )


def described(target: Target) -> dict[str, Any]:
    """The facts about a target that are printed with measurements."""
    return {
        "model": target.name,
        "dtype": target.dtype,
        "fingerprint": target.fingerprint(),
        "device": target.device,
        "threads": target.threads,
        **({"ranks": target.ranks} if target.ranks > 1 else {}),
    }
