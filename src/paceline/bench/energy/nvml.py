"""The energy counter of an NVIDIA card, by nvidia-ml-py. The card alone: processor and memory are not in it."""

from __future__ import annotations

import threading
from importlib import import_module
from typing import Any

from paceline.bench.energy.meter import Meter, Samples, Unmetered

MILLI = 1e-3
PAUSE = 0.02
"""Seconds between two samples of the power, where the card does not count energy."""


class Nvml(Meter):
    """The card's count of energy since the driver was loaded; of an older card, the mean of its power."""

    source = "nvml"

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
                self._sample(samples := Samples())
                self._samples = samples
                threading.Thread(target=self._watch, args=[samples], name="paceline-nvml", daemon=True).start()
        except self._nvml.NVMLError as error:
            raise Unmetered(f"NVML does not answer: {error}") from None

    def start(self) -> None:
        if self._samples is not None:
            self._samples.begin()
        else:
            self._began = self._count()

    def stop(self, seconds: float) -> float | None:
        if self._samples is not None:
            return self._samples.joules(seconds)
        moved = self._count() - self._began
        return moved * MILLI if moved > 0 else None

    def close(self) -> None:
        self._ended.set()
        self._nvml.nvmlShutdown()

    def _count(self) -> int:
        return int(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._card))

    def _sample(self, samples: Samples) -> None:
        samples.add(float(self._nvml.nvmlDeviceGetPowerUsage(self._card)) * MILLI)

    def _watch(self, samples: Samples) -> None:
        while not self._ended.wait(PAUSE):
            try:
                self._sample(samples)
            except self._nvml.NVMLError:
                return

    def _handle(self, device: str) -> Any:
        """The card that torch calls by this name: the environment decides which cards torch sees, in which order."""
        import torch

        number = torch.device(device).index or 0
        try:
            name = f"GPU-{torch.cuda.get_device_properties(number).uuid}"
        except (AttributeError, AssertionError, RuntimeError):
            return self._nvml.nvmlDeviceGetHandleByIndex(number)
        return self._nvml.nvmlDeviceGetHandleByUUID(name)
