"""Joules: measured if the machine has a meter, else estimated from a stated power, and always labelled.

`open_meter` returns a `Meter`. It is started and stopped around each text and closed at the end, and says whether it
`measured` and by which `source`. Three meters measure: the energy counter of an NVIDIA card, the counters of Intel and
AMD processors (RAPL), and powermetrics of macOS for Apple chips.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from paceline.errors import InputError, Unavailable

KINDS = ("nvml", "rapl", "powermetrics", "stated")
MILLI, MICRO = 1e-3, 1e-6


class Unmetered(Unavailable):
    """A meter does not work here; the message says why."""


class Meter(ABC):
    """Counts joules between `start` and `stop`."""

    source: ClassVar[str]
    """nvml, rapl, powermetrics or stated."""
    measured: ClassVar[bool] = True
    watts: float | None = None
    """The power behind an estimate."""

    @abstractmethod
    def start(self) -> None:
        """Begin to count."""

    @abstractmethod
    def stop(self, seconds: float) -> float | None:
        """Joules since `start`, which was ``seconds`` ago; None where the meter did not move."""

    def close(self) -> None:
        """End threads and programs of the meter."""


class Stated(Meter):
    """A stated power times the time. It does not know the actual power, so faster entries look better."""

    source = "stated"
    measured = False

    def __init__(self, watts: float) -> None:
        self.watts: float = watts

    def start(self) -> None:
        """Nothing to do: `stop` is given the time."""

    def stop(self, seconds: float) -> float:
        return self.watts * seconds


class Sampled(Meter):
    """The mean of power samples, which another thread adds."""

    def __init__(self) -> None:
        self._found: list[tuple[float, float]] = []
        self._began = time.monotonic()
        self._lock = threading.Lock()

    def add(self, watts: float) -> None:
        """Add the current power."""
        with self._lock:
            self._found.append((time.monotonic(), watts))

    def start(self) -> None:
        """Forget all samples but the last, which counts for spans too short to have a sample."""
        with self._lock:
            del self._found[:-1]
            self._began = time.monotonic()

    def stop(self, seconds: float) -> float | None:
        """The mean power since `start`, else the last one before, times the seconds; None without any sample."""
        with self._lock:
            fresh = [watts for when, watts in self._found if when >= self._began]
            known = fresh or [watts for _, watts in self._found[-1:]]
        return seconds * sum(known) / len(known) if known else None


PAUSE = 0.02
"""Seconds between two samples of the power, where the card does not count energy."""


class Nvml(Sampled):
    """The energy counter of an NVIDIA card, by nvidia-ml-py; for older cards the mean of the power. It does not include
    processor and memory."""

    source = "nvml"

    def __init__(self, device: str) -> None:
        super().__init__()
        try:
            self._nvml: Any = import_module("pynvml")
        except ImportError:
            raise Unmetered("nvidia-ml-py is not installed; pip install nvidia-ml-py") from None
        self._ended, self._before, self._counts = threading.Event(), 0, True
        try:
            self._nvml.nvmlInit()
            self._card = self._handle(device)
            try:
                self._count()
            except self._nvml.NVMLError:
                self._counts = False
                self._sample()
                threading.Thread(target=self._watch, name="paceline-nvml", daemon=True).start()
        except self._nvml.NVMLError as error:
            raise Unmetered(f"NVML does not answer: {error}") from None

    def start(self) -> None:
        super().start()
        self._before = self._count() if self._counts else 0

    def stop(self, seconds: float) -> float | None:
        if not self._counts:
            return super().stop(seconds)
        moved = self._count() - self._before
        return moved * MILLI if moved > 0 else None

    def close(self) -> None:
        self._ended.set()
        self._nvml.nvmlShutdown()

    def _count(self) -> int:
        return int(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._card))

    def _sample(self) -> None:
        self.add(float(self._nvml.nvmlDeviceGetPowerUsage(self._card)) * MILLI)

    def _watch(self) -> None:
        while not self._ended.wait(PAUSE):
            try:
                self._sample()
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


POWERCAP = Path("/sys/class/powercap")
COUNTED = ("package", "dram")
"""Parts that do not contain one another: packages contain cores and graphics, and psys contains everything."""


@dataclass
class Zone:
    """One counter of microjoules, which starts again at zero when it is full."""

    counter: Path
    full: int
    began: int = 0

    def read(self) -> int:
        return int(self.counter.read_text())

    def moved(self) -> int:
        """Microjoules since it began. A counter that is full more than once in between counts short."""
        moved = self.read() - self.began
        return moved if moved >= 0 else moved + self.full


class Rapl(Meter):
    """Processor packages and their memory; the work of other programs counts, too."""

    source = "rapl"

    def __init__(self, root: Path = POWERCAP) -> None:
        self.zones = _zones(root)
        if not self.zones:
            raise Unmetered(f"there is no RAPL counter under {root}")

    def start(self) -> None:
        for zone in self.zones:
            zone.began = zone.read()

    def stop(self, seconds: float) -> float | None:
        moved = sum(zone.moved() for zone in self.zones)
        return moved * MICRO if moved else None


def _zones(root: Path) -> list[Zone]:
    """The zones of the plain interface; ``intel-rapl-mmio`` shows the same packages a second time."""
    found = []
    for folder in sorted(root.glob("intel-rapl:*")):
        try:
            if (folder / "name").read_text().strip().startswith(COUNTED):
                zone = Zone(folder / "energy_uj", int((folder / "max_energy_range_uj").read_text()))
                zone.read()
                found.append(zone)
        except PermissionError:
            raise Unmetered(
                f"{folder / 'energy_uj'} is for root only; 'sudo chmod a+r' on it, or on all of them, opens it"
            ) from None
        except (OSError, ValueError):
            continue
    return found


COMMAND = ("powermetrics", "--samplers", "cpu_power,gpu_power", "--sample-rate", "100", "--buffer-size", "0")
PATIENCE = 5.0
"""Seconds until the first sample must be there."""
HEAD = re.compile(r"\*\*\* Sampled system activity")
COMBINED = re.compile(r"Combined Power[^:]*: *(\d+(?:\.\d+)?) *mW")
PART = re.compile(r"(?:CPU|GPU|ANE) Power: *(\d+(?:\.\d+)?) *mW")


def powers(lines: Iterable[str]) -> Iterator[float]:
    """Watts of each sample: processor, graphics and neural engine together. Where their sum is not reported, the parts
    are added up when the next sample begins."""
    parts, summed = list[float](), False
    for line in lines:
        if HEAD.search(line):
            if parts and not summed:
                yield sum(parts) * MILLI
            parts, summed = [], False
        elif found := COMBINED.search(line):
            yield float(found[1]) * MILLI
            summed = True
        elif found := PART.match(line.strip()):
            parts.append(float(found[1]))
    if parts and not summed:
        yield sum(parts) * MILLI


class Powermetrics(Sampled):
    """The mean power of the samples during a text, times its seconds. The chip alone; other programs count, too."""

    source = "powermetrics"

    def __init__(self, command: tuple[str, ...] = COMMAND) -> None:
        if shutil.which(command[0]) is None:
            raise Unmetered(f"there is no {command[0]} here; macOS has it")
        super().__init__()
        self._child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
        )
        assert self._child.stdout is not None, "opened above"
        assert self._child.stderr is not None, "opened above"
        self._stdout, self._stderr = self._child.stdout, self._child.stderr
        self._first = threading.Event()
        self._reader = threading.Thread(target=self._listen, name="paceline-powermetrics", daemon=True)
        self._reader.start()
        self._await_first()

    def close(self) -> None:
        self._child.terminate()
        self._child.wait()
        self._reader.join()
        self._stdout.close()
        self._stderr.close()

    def _listen(self) -> None:
        for watts in powers(self._stdout):
            self.add(watts)
            self._first.set()

    def _await_first(self) -> None:
        """Wait for the first sample. powermetrics needs root; without it the child ends at once and says so."""
        end = time.monotonic() + PATIENCE
        while not self._first.wait(0.02):
            if self._child.poll() is not None or time.monotonic() > end:
                self._child.terminate()
                said = self._stderr.read().strip().splitlines()
                self.close()
                raise Unmetered(said[0] if said else "powermetrics reports nothing; run as root, with sudo")


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
    """Meters that count the energy of a device. A processor's counter does not include a card."""
    if device.startswith("cuda"):
        return ["nvml"]
    if sys.platform == "darwin":
        return ["powermetrics"]
    return ["rapl"] if device.startswith("cpu") else []


def _opened(kind: str, device: str) -> Meter:
    if kind == "nvml":
        return Nvml(device)
    return Rapl() if kind == "rapl" else Powermetrics()
