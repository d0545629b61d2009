"""The power of an Apple chip, as reported by macOS's ``powermetrics``, which runs beside."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator

from paceline.bench.energy.meter import Meter, Samples, Unmetered

COMMAND = ("powermetrics", "--samplers", "cpu_power,gpu_power", "--sample-rate", "100", "--buffer-size", "0")
PATIENCE = 5.0
"""Seconds until the first sample must be there."""
MILLI = 1e-3
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


class Powermetrics(Meter):
    """The mean power of the samples during a text, times its seconds. The chip alone; other programs count, too."""

    source = "powermetrics"

    def __init__(self, command: tuple[str, ...] = COMMAND) -> None:
        if shutil.which(command[0]) is None:
            raise Unmetered(f"there is no {command[0]} here; macOS has it")
        self._samples = Samples()
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

    def start(self) -> None:
        self._samples.begin()

    def stop(self, seconds: float) -> float | None:
        return self._samples.joules(seconds)

    def close(self) -> None:
        self._child.terminate()
        self._child.wait()
        self._reader.join()
        self._stdout.close()
        self._stderr.close()

    def _listen(self) -> None:
        for watts in powers(self._stdout):
            self._samples.add(watts)
            self._first.set()

    def _await_first(self) -> None:
        """It needs root; a child that ends at once says so."""
        end = time.monotonic() + PATIENCE
        while not self._first.wait(0.02):
            if self._child.poll() is not None or time.monotonic() > end:
                self._child.terminate()
                said = self._stderr.read().strip().splitlines()
                self.close()
                raise Unmetered(said[0] if said else "powermetrics reports nothing; run as root, with sudo")
