"""Where and when a run was made: what a reader needs in order to believe a number, or to doubt it."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from paceline import __version__

LIBRARIES = ("torch", "transformers", "numpy")
CPU_INFO = Path("/proc/cpuinfo")


def sitting(command: str | None = None) -> dict[str, Any]:
    """Time, versions, machine, threads, load and the state of the source tree, now."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "versions": {"paceline": __version__, "python": platform.python_version(), **_versions()},
        "machine": {
            "system": f"{platform.system()} {platform.release()}",
            "architecture": platform.machine(),
            "processor": _processor(),
            "cores": os.cpu_count(),
            "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "git": _git(),
    }


def _versions() -> dict[str, str]:
    found = {}
    for library in LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    """The processor's own name; the platform's word for it where that is not told."""
    try:
        lines = CPU_INFO.read_text(encoding="utf8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "unknown")


def _git() -> dict[str, Any] | None:
    """Commit of the source tree this runs from, and whether it was changed since; None where it is no checkout."""
    here = Path(__file__).resolve().parent

    def ask(*words: str) -> str | None:
        try:
            found = subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, timeout=10, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return found.stdout.strip() if found.returncode == 0 else None

    tracked = ask("ls-files", "--error-unmatch", Path(__file__).name)
    if tracked is None:
        return None
    return {"commit": ask("rev-parse", "--short=12", "HEAD"), "changed": bool(ask("status", "--porcelain", "-uno"))}
