"""The most memory that was in use while a text was written."""

from __future__ import annotations

from pathlib import Path

import torch

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"


class Peak:
    """Watches a device's memory, or this process's own where the model runs on the CPU: resident, everything that is
    loaded included, so what differs between contestants counts and not the sum."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def start(self) -> None:
        """Forget the highest mark so far."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            return
        try:
            CLEAR.write_text(RESET_PEAK)
        except OSError:
            self._device = torch.device("meta")  # nothing here can be asked again for every text

    def read(self) -> int | None:
        """Bytes at the highest mark since the start; None where the system does not tell."""
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
