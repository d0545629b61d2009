"""What an energy meter is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar


class Unmetered(Exception):
    """A meter does not work here; the message says why."""


class Meter(ABC):
    """Counts joules between `start` and `stop`."""

    source: ClassVar[str]
    """nvml, rapl, powermetrics or stated."""
    measured: ClassVar[bool]
    watts: float | None = None
    """The power an estimate rests on."""

    @abstractmethod
    def start(self) -> None:
        """Begin to count."""

    @abstractmethod
    def stop(self, seconds: float) -> float | None:
        """Joules since `start`, which was ``seconds`` ago; None where the meter did not move on."""

    def close(self) -> None:
        """End what runs beside."""
