"""Energy: counters are read as they are meant, and an estimate is called one."""

import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clock import comes_true
from paceline_lab.bench import energy
from paceline_lab.bench.energy import PAUSE, Meter, Nvml, Powermetrics, Rapl, Stated, Unmetered, open_meter, powers

# --- RAPL ---------------------------------------------------------------------------------------------------

FULL = 1_000_000


class Tree:
    """A powercap folder: a package with cores and memory in it, a second package, the whole board, and a double."""

    def __init__(self, root: Path) -> None:
        self.root = root
        zones = {"0": "package-0", "0:0": "core", "0:1": "dram", "1": "package-1", "2": "psys"}
        self.zones = {f"intel-rapl:{place}": name for place, name in zones.items()}
        self.zones["intel-rapl-mmio:0"] = "package-0"
        for place, name in self.zones.items():
            folder = root / place
            folder.mkdir(parents=True)
            (folder / "name").write_text(f"{name}\n")
            (folder / "max_energy_range_uj").write_text(f"{FULL}\n")
            self.set(place, 1000)
        (root / "intel-rapl").mkdir()

    def set(self, place: str, value: int) -> None:
        (self.root / place / "energy_uj").write_text(f"{value}\n")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "powercap")


def test_packages_and_memory_count_and_nothing_counts_twice(tree: Tree) -> None:
    meter = Rapl(tree.root)
    meter.start()
    for place in tree.zones:
        tree.set(place, 1000 + {"package-0": 100_000, "dram": 20_000, "package-1": 3000}.get(tree.zones[place], 7))
    assert meter.stop(1.0) == pytest.approx(0.123)


def test_a_counter_that_was_full_goes_on_and_one_that_stands_still_measured_nothing(tree: Tree) -> None:
    meter = Rapl(tree.root)
    tree.set("intel-rapl:0", FULL - 1000)
    meter.start()
    assert meter.stop(1.0) is None
    tree.set("intel-rapl:0", 4000)
    assert meter.stop(1.0) == pytest.approx(0.005)


def test_a_counter_for_root_only_is_told_and_none_at_all(
    tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Unmetered, match="no RAPL counter"):
        Rapl(tmp_path)
    allowed = Path.read_text

    def read(path: Path, *args: Any, **kwargs: Any) -> str:
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied")
        return allowed(path, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", read)
    with pytest.raises(Unmetered, match="for root only"):
        Rapl(tree.root)


# --- NVML ---------------------------------------------------------------------------------------------------


class Card(SimpleNamespace):
    """Stands in for the library: a card with or without a count of energy."""

    class NVMLError(Exception):
        pass

    def __init__(self, counts: bool = True) -> None:
        self.counts, self.millijoules, self.milliwatts, self.closed = counts, 5000, 70_000, False

    def nvmlInit(self) -> None:  # noqa: N802
        pass

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.closed = True

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:  # noqa: N802
        return number

    def nvmlDeviceGetTotalEnergyConsumption(self, card: int) -> int:  # noqa: N802
        if not self.counts:
            raise self.NVMLError("Not Supported")
        return self.millijoules

    def nvmlDeviceGetPowerUsage(self, card: int) -> int:  # noqa: N802
        return self.milliwatts


def test_a_card_counts_its_millijoules(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card()
    monkeypatch.setitem(sys.modules, "pynvml", card)
    meter = Nvml("cuda")
    meter.start()
    assert meter.stop(1.0) is None
    card.millijoules += 2500
    assert meter.stop(1.0) == pytest.approx(2.5)
    meter.close()
    assert card.closed


def test_a_card_without_a_count_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card(counts=False)
    monkeypatch.setitem(sys.modules, "pynvml", card)
    meter = Nvml("cuda:0")
    meter.start()
    assert meter.stop(0.001) == pytest.approx(0.07), "too short for a sample of its own, so the last one before"
    card.milliwatts = 90_000

    def forgotten() -> bool:
        meter.start()
        time.sleep(3 * PAUSE)
        return meter.stop(2.0) == pytest.approx(180.0)

    assert comes_true(forgotten), "a mean with samples of before would never get there"
    meter.close()


def test_no_library_and_no_driver_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(Unmetered, match="pip install nvidia-ml-py"):
        Nvml("cuda")

    def fail(card: Card) -> None:
        raise Card.NVMLError("Driver Not Loaded")

    monkeypatch.setattr(Card, "nvmlInit", fail)
    monkeypatch.setitem(sys.modules, "pynvml", Card())
    with pytest.raises(Unmetered, match="Driver Not Loaded"):
        Nvml("cuda")


# --- powermetrics -------------------------------------------------------------------------------------------

TOLD = """\
Machine model: Mac14,12

*** Sampled system activity (Sun Nov 22 10:00:00 2026 +0100) (104.21ms elapsed) ***

**** Processor usage ****

E-Cluster Online: 100%
CPU 0 frequency: 1018 MHz
CPU Power: 4200 mW
GPU Power: 11800 mW
ANE Power: 0 mW
Combined Power (CPU + GPU + ANE): 16000 mW

**** GPU usage ****

GPU HW active frequency: 1398 MHz
GPU Power: 11800 mW
*** Sampled system activity (Sun Nov 22 10:00:00 2026 +0100) (100.02ms elapsed) ***

CPU Power: 3000 mW
GPU Power: 5000 mW
ANE Power: 500 mW
"""
TELLS = """\
import sys, time
print(sys.argv[1], flush=True)
time.sleep(60)
"""


def test_powers_are_read_from_what_is_told() -> None:
    assert list(powers(TOLD.splitlines())) == [16.0, 8.5]
    assert list(powers(["Combined Power (CPU + GPU + ANE): 0 mW"])) == [0.0]
    assert list(powers(["nothing of power"])) == []


def test_what_runs_beside_is_listened_to_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "PATIENCE", 60.0)
    meter = Powermetrics((sys.executable, "-c", TELLS, TOLD))
    meter.start()
    assert meter.stop(3.0) == pytest.approx(3.0 * 16.0)
    meter.close()
    assert meter._child.returncode is not None


def test_who_is_not_root_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "PATIENCE", 60.0)
    refuses = "import sys; sys.exit('powermetrics must be invoked as the superuser')"
    with pytest.raises(Unmetered, match="superuser"):
        Powermetrics((sys.executable, "-c", refuses))
    with pytest.raises(Unmetered, match="macOS"):
        Powermetrics(("no-such-powermetrics",))


# --- which one ----------------------------------------------------------------------------------------------


def none_works(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Meter:
        raise Unmetered("not here")

    for kind in ("Nvml", "Rapl", "Powermetrics"):
        monkeypatch.setattr(f"paceline_lab.bench.energy.{kind}", refuse)


def test_an_estimate_is_the_last_resort_and_never_called_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    none_works(monkeypatch)
    meter, why = open_meter(None, 30.0, "cpu")
    assert isinstance(meter, Stated)
    assert (meter.measured, meter.source, meter.watts) == (False, "stated", 30.0)
    assert "not here" in why
    meter.start()
    assert meter.stop(2.5) == 75.0
    assert open_meter(None, None, "cpu")[0] is None


def test_a_processors_counter_is_not_taken_for_a_card(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    none_works(monkeypatch)
    monkeypatch.setattr("paceline_lab.bench.energy.Rapl", lambda: Rapl(tree.root))
    monkeypatch.setattr("paceline_lab.bench.energy.sys", SimpleNamespace(platform="linux"))
    assert isinstance(open_meter(None, 30.0, "cpu")[0], Rapl)
    meter, why = open_meter(None, None, "cuda:0")
    assert meter is None
    assert why == "nvml: not here"


@pytest.mark.parametrize(
    ("kind", "watts", "told"),
    [
        ("stated", None, "needs a power; give --watts W"),
        ("stated", 0.0, "must be more than 0 W, not 0"),
        ("joules", None, "unknown energy meter 'joules'; choose nvml, rapl, powermetrics, stated or none"),
        ("rapl", 30.0, "the energy meter rapl does not work here: not here"),
    ],
)
def test_what_cannot_be_had_is_told(kind: str, watts: float | None, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    none_works(monkeypatch)
    with pytest.raises(ValueError, match=told):
        open_meter(kind, watts, "cpu")
