"""An estimate: the power that somebody states, times the time."""

from __future__ import annotations

from typing import ClassVar

from paceline.bench.energy.meter import Meter


class Stated(Meter):
    """Says nothing of what the machine really drew; entries that are faster look better by just as much."""

    source: ClassVar[str] = "stated"
    measured: ClassVar[bool] = False

    def __init__(self, watts: float) -> None:
        self.watts = watts

    def start(self) -> None:
        """The time is told at the end."""

    def stop(self, seconds: float) -> float:
        assert self.watts is not None, "given at the start"
        return self.watts * seconds
