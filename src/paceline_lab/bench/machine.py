"""The machine that measures: its threads, its memory, and the facts that a report states about it."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from logging import ERROR, getLogger
from pathlib import Path
from typing import Any

import torch

from paceline import __version__
from paceline.targets.setup import processor
from paceline.targets.threads import with_threads

LIBRARIES = ("torch", "transformers", "numpy")
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
SETS = (
    *("avx2", "avx_vnni", "avx512_f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_int8"),
    *("neon", "dot", "i8mm", "bf16", "sve", "sve2", "sme"),
)
"""Instruction sets of matrix products, as torch calls them."""
RESET_PEAK = "5"
DRIVER = Path("/proc/driver/nvidia/version")


@contextmanager
def threads(number: int | None) -> Iterator[None]:
    """Set the number of threads of torch, and of models that other libraries compute, for a while; None leaves it as it
    is."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        with with_threads(number):
            yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def hushed() -> Iterator[None]:
    """Suppress warnings of transformers and of its hub client for a while."""
    from transformers.utils import logging

    hub = getLogger("huggingface_hub")
    before, level = logging.get_verbosity(), hub.level
    logging.set_verbosity_error()
    hub.setLevel(ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(before)
        hub.setLevel(level)


class Peak:
    """The most memory in use between start and stop: a device's, or this process's own where the model runs on the CPU.
    That is resident memory with everything that is loaded, so only compare it between contestants."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def start(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            return
        try:
            CLEAR.write_text(RESET_PEAK)
        except OSError:
            self._device = torch.device("meta")  # nothing here can be asked again for every text

    def stop(self, seconds: float) -> int | None:
        """Bytes; None where the system does not say."""
        if self._device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self._device))
        if self._device.type != "cpu":
            return None
        try:
            lines = STATUS.read_text().splitlines()
        except OSError:
            return None
        marks = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
        return next((1024 * int(mark) for mark in marks), None)


def sitting(command: str | None = None) -> dict[str, Any]:
    """Time, versions, machine, threads, load and the state of the source tree, now."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "versions": {
            "paceline": __version__,
            "python": platform.python_version(),
            **{library: version(library) for library in LIBRARIES},
        },
        "machine": {
            "system": f"{platform.system()} {platform.release()}",
            "distribution": _distribution(),
            "architecture": platform.machine(),
            "processor": processor(),
            "instruction_sets": instruction_sets(),
            "cores": os.cpu_count(),
            "memory_bytes": _memory(),
            **_accelerator(),
        },
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "git": _git(),
    }


def instruction_sets() -> str:
    """Those of the processor that matrix products are made of, what torch chose, and what the user holds oneDNN to."""
    tell: Callable[[], Mapping[str, Any]] = getattr(torch.cpu, "get_capabilities", dict)  # torch 2.5 has none
    found = tell()
    have = " ".join(name for name in SETS if found.get(name))
    held = os.environ.get("ONEDNN_MAX_CPU_ISA") or os.environ.get("DNNL_MAX_CPU_ISA")
    chosen = f"torch computes in {torch.backends.cpu.get_cpu_capability()}"
    return f"{have or platform.machine()}; {chosen}" + (f", oneDNN at most in {held}" if held else "")


def _distribution() -> str | None:
    """The system's name and version; None where it does not say, as outside Linux."""
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME")
    except OSError:
        return None


def _memory() -> int | None:
    """Bytes of main memory; None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def _accelerator() -> dict[str, Any]:
    """The graphics card that this process uses, by its name and memory, its driver, and the version of CUDA that torch
    was built with. A process that computes on the CPU takes no memory of one to ask for its name."""
    if not torch.cuda.is_initialized():
        return {"accelerator": None}
    try:
        driver = re.search(r"\d+\.\d+(\.\d+)*", DRIVER.read_text(encoding="utf8"))
    except OSError:
        driver = None
    return {
        "accelerator": torch.cuda.get_device_name(),
        "accelerator_bytes": int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory),
        "driver": driver and driver[0],
        "cuda": torch.version.cuda,
    }


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
