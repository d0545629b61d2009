"""Energy meters: what one is, the mean of sampled powers, and an estimate from a stated power."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from typing import ClassVar

from paceline.errors import Unavailable


class Unmetered(Unavailable):
    """A meter does not work here; the message says why."""


class Meter(ABC):
    """Counts joules between `start` and `stop`."""

    source: ClassVar[str]
    """nvml, rapl, powermetrics or stated."""
    measured: ClassVar[bool] = True
    watts: float | None = None
    """The power that an estimate rests on."""

    @abstractmethod
    def start(self) -> None:
        """Begin to count."""

    @abstractmethod
    def stop(self, seconds: float) -> float | None:
        """Joules since `start`, which was ``seconds`` ago; None where the meter did not move."""

    def close(self) -> None:
        """End threads and programs of the meter."""


class Stated(Meter):
    """A stated power times the time. It says nothing of what the machine drew: faster entries look better by it."""

    source = "stated"
    measured = False

    def __init__(self, watts: float) -> None:
        self.watts: float = watts

    def start(self) -> None:
        """Nothing to do: `stop` is given the time."""

    def stop(self, seconds: float) -> float:
        return self.watts * seconds


class Samples:
    """Powers, added by another thread, and their mean since `begin`."""

    def __init__(self) -> None:
        self._found: list[tuple[float, float]] = []
        self._began = time.monotonic()
        self._lock = threading.Lock()

    def add(self, watts: float) -> None:
        """The power as of now."""
        with self._lock:
            self._found.append((time.monotonic(), watts))

    def begin(self) -> None:
        """Forget all but the last, which stands for a span that is too short for a sample of its own."""
        with self._lock:
            del self._found[:-1]
            self._began = time.monotonic()

    def joules(self, seconds: float) -> float | None:
        """The mean power since the beginning, else the last one before, times the seconds; None without any sample."""
        with self._lock:
            fresh = [watts for when, watts in self._found if when >= self._began]
            known = fresh or [watts for _, watts in self._found[-1:]]
        return seconds * sum(known) / len(known) if known else None
