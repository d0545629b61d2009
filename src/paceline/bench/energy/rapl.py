"""The energy counters of Intel and AMD processors (RAPL), as Linux shows them under ``/sys/class/powercap``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from paceline.bench.energy.meter import Meter, Unmetered

POWERCAP = Path("/sys/class/powercap")
COUNTED = ("package", "dram")
"""Parts that do not contain one another: packages contain cores and graphics, and psys contains everything."""
MICRO = 1e-6


@dataclass
class Zone:
    """One counter of microjoules, which starts again at zero where it is full."""

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
