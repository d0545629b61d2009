"""What an NVIDIA card counts itself, by way of nvidia-ml-py. The card alone: processor and memory are not in it."""

from __future__ import annotations

import threading
from importlib import import_module
from typing import Any, ClassVar

from paceline.bench.energy.meter import Meter, Unmetered
from paceline.bench.energy.samples import Samples

MILLI = 1e-3
PAUSE = 0.02
"""Seconds between two looks at the power, where the card keeps no count of energy."""


class Nvml(Meter):
    """The card's own count of energy since the driver came up; of an older card, the mean of its power."""

    source: ClassVar[str] = "nvml"
    measured: ClassVar[bool] = True

    def __init__(self, device: str) -> None:
        try:
            self._nvml: Any = import_module("pynvml")
        except ImportError:
            raise Unmetered("nvidia-ml-py is not installed; pip install nvidia-ml-py") from None
        self._samples: Samples | None = None
        self._ended = threading.Event()
        try:
            self._nvml.nvmlInit()
            self._card = self._handle(device)
            try:
                self._began = self._count()
            except self._nvml.NVMLError:
                self._watch()
        except self._nvml.NVMLError as error:
            raise Unmetered(f"NVML does not answer: {error}") from None

    def start(self) -> None:
        if self._samples is not None:
            self._samples.begin()
        else:
            self._began = self._count()

    def stop(self, seconds: float) -> float | None:
        if self._samples is not None:
            watts = self._samples.mean()
            return None if watts is None else watts * seconds
        moved = self._count() - self._began
        return moved * MILLI if moved > 0 else None

    def close(self) -> None:
        self._ended.set()
        self._nvml.nvmlShutdown()

    def _count(self) -> int:
        return int(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._card))

    def _power(self) -> float:
        return float(self._nvml.nvmlDeviceGetPowerUsage(self._card)) * MILLI

    def _handle(self, device: str) -> Any:
        """The card that torch calls by this name: which of them it sees, and in which order, can be set outside."""
        import torch

        number = torch.device(device).index or 0
        try:
            name = f"GPU-{torch.cuda.get_device_properties(number).uuid}"
        except (AttributeError, AssertionError, RuntimeError):
            return self._nvml.nvmlDeviceGetHandleByIndex(number)
        return self._nvml.nvmlDeviceGetHandleByUUID(name)

    def _watch(self) -> None:
        samples = self._samples = Samples()
        samples.add(self._power())

        def look() -> None:
            while not self._ended.wait(PAUSE):
                try:
                    samples.add(self._power())
                except self._nvml.NVMLError:
                    return

        threading.Thread(target=look, name="paceline-nvml", daemon=True).start()
