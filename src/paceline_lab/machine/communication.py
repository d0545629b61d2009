"""What it costs to add up a tensor over several devices, measured on this machine's processes, and the law of it.

The paper's law (appendix on communication) is ``alpha log2 G + beta M`` for an all-reduce of M bytes over G devices.
Here M is the whole tensor that is added up; the paper divides it by G, which changes what beta means and not the fit.
A forward of a target that is cut over devices adds up twice a layer, one of a draft model in tracks twice in all.

As a program, `python -m paceline_lab.machine.communication`, this is one of the processes that are measured.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import log2
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from paceline.errors import InputError

if TYPE_CHECKING:
    from paceline_lab.machine.overlap import RoundParts

SIZES = tuple(1 << power for power in range(10, 23))
"""Bytes of the tensors that are added up to find the law: 1 kB to 4 MB."""
ROUNDS = 40
"""How often each is timed, in turns with the others."""
RUN = 8
"""All-reduces of one size that are timed together, one behind the other as in a forward."""
HUBER = 0.1
"""Relative errors beyond this one weigh by their size, not by its square: a machine stalls now and then."""
STEPS = 30
SUMS_PER_LAYER = 2
PATIENCE = 300.0
"""Seconds for all processes."""
POLLED = 0.1
"""Seconds between two looks whether they have ended."""


@dataclass(frozen=True)
class AllReduceLaw:
    """Seconds of an all-reduce."""

    alpha: float
    """Seconds for each doubling of the devices."""
    beta: float
    """Seconds for each byte."""

    def seconds(self, size: float, devices: int) -> float:
        """Of ``size`` bytes."""
        return self.alpha * log2(devices) + self.beta * size if devices > 1 else 0.0

    @classmethod
    def fit(cls, measured: dict[int, float], devices: int) -> Self:
        """By least squares of relative errors, in which few large ones weigh little (Huber's weights)."""
        sizes = np.array(list(measured), float)
        seconds = np.array(list(measured.values()))
        columns = np.stack([np.full(len(sizes), log2(devices)), sizes], axis=1) / seconds[:, None]
        weights = np.ones(len(sizes))
        found = np.zeros(2)
        for _ in range(STEPS):
            root = np.sqrt(weights)
            scale = np.abs(columns).max(axis=0)  # a byte costs a millionth of a doubling
            found = np.linalg.lstsq(columns / scale * root[:, None], root, rcond=None)[0] / scale
            errors = np.abs(columns @ found - 1)
            weights = HUBER / np.maximum(errors, HUBER)
        return cls(max(0.0, float(found[0])), max(0.0, float(found[1])))


@dataclass(frozen=True)
class Sums:
    """The all-reduces of one forward."""

    kind: str
    sizes: tuple[int, ...]
    """Bytes of each, in their order."""

    @classmethod
    def of_target(cls, layers: int, rows: int, width: int, itemsize: int = 4) -> Self:
        """Two a layer, of the states of all rows."""
        return cls("target", (rows * width * itemsize,) * (SUMS_PER_LAYER * layers))

    @classmethod
    def of_draft(cls, rows: int, width: int, vocabulary: int, itemsize: int = 4) -> Self:
        """Two in all: a draft model in tracks adds up states in its middle, and logits at its end."""
        return cls("draft", (rows * width * itemsize, rows * vocabulary * itemsize))

    def seconds(self, law: AllReduceLaw, devices: int) -> float:
        return sum(law.seconds(size, devices) for size in self.sizes)


@dataclass(frozen=True)
class Measured:
    """Seconds on this machine's processes, without interruptions (`timed`)."""

    devices: int
    single: dict[int, float]
    """Seconds of one all-reduce, by its bytes."""
    forwards: list[tuple[Sums, float]]
    """Seconds of the all-reduces of a forward, one behind the other."""

    @property
    def law(self) -> AllReduceLaw:
        return AllReduceLaw.fit(self.single, self.devices)

    def compared(self) -> list[tuple[Sums, float, float]]:
        """Each forward's all-reduces, with the seconds that the law predicts, and those that were measured."""
        law = self.law
        return [(sums, sums.seconds(law, self.devices), seconds) for sums, seconds in self.forwards]


@dataclass(frozen=True, kw_only=True)
class Devices:
    """Several devices for the target and as many for the draft model, as the law has them: each computes its share of
    every forward, and all-reduces come on top. Nothing of this is measured but the law and the parts on one device."""

    count: int
    law: AllReduceLaw
    layers: int
    width: int
    """Of the target's states."""
    draft_width: int
    vocabulary: int
    """Tokens of the draft model."""
    itemsize: int = 4
    """Bytes of a value that is added up."""

    def target(self, seconds: float, rows: int, share: float = 1.0) -> float:
        """A ``share`` of the target's layers over ``rows``, which take ``seconds`` on one device."""
        sums = Sums.of_target(self.layers, rows, self.width, self.itemsize)
        return seconds / self.count + share * sums.seconds(self.law, self.count)

    def draft(self, seconds: float, rows: int) -> float:
        """A forward of the draft model."""
        sums = Sums.of_draft(rows, self.draft_width, self.vocabulary, self.itemsize)
        return seconds / self.count + sums.seconds(self.law, self.count)

    def parts(self, parts: RoundParts, *, levels: int, branches: int, exit: float) -> RoundParts:
        """A round beside one another."""
        return replace(
            parts,
            lower=self.target(parts.lower, levels + 1, exit),
            upper=self.target(parts.upper, levels + 1, 1 - exit),
            first=self.draft(parts.first, levels + branches),
            level=self.draft(parts.level, branches),
            single=self.draft(parts.single, 1),
        )

    def turns(self, seconds: float, levels: int) -> float:
        """A round in turns with a draft of ``levels`` tokens; 0 for plain decoding."""
        target, draft = self.target(0.0, levels + 1), levels * self.draft(0.0, 1)
        return seconds / self.count + target + draft


def measure(forwards: Sequence[Sums] = (), processes: int = 2, rounds: int = ROUNDS) -> Measured:
    """Start processes on this machine, and time all-reduces between them by gloo: of all sizes, and those of forwards,
    in turns."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    jobs = json.dumps({"rounds": rounds, "forwards": [asdict(each) for each in forwards]})
    address = {"WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, "-m", "paceline_lab.machine.communication", jobs]
    running = [
        subprocess.Popen(
            command,
            env={**os.environ, **address, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(processes)
    ]
    try:
        failed = _ended(running)
    finally:
        for one in running:
            one.kill()
        said = [one.communicate() for one in running]
    if failed is not None:
        why = said[failed][1].strip().splitlines()[-1:]
        raise InputError(f"all-reduces were not measured on this machine: {' '.join(why)}")
    found = json.loads(said[0][0].splitlines()[-1])
    return Measured(
        processes,
        dict(zip(SIZES, found[: len(SIZES)], strict=True)),
        list(zip(forwards, found[len(SIZES) :], strict=True)),
    )


def _ended(running: Sequence[subprocess.Popen[str]]) -> int | None:
    """Wait until all have ended, or one has failed, whose number is returned: the others would wait for it."""
    latest = time.monotonic() + PATIENCE
    while True:
        codes = [one.poll() for one in running]
        failed = next((number for number, code in enumerate(codes) if code), None)
        if failed is not None or None not in codes:
            return failed
        if time.monotonic() > latest:
            raise InputError(f"{len(running)} processes did not meet on this machine within {PATIENCE:.0f} seconds")
        time.sleep(POLLED)


def timed(jobs: dict[str, Any]) -> list[float]:
    """Seconds of all sizes, then of all forwards; on each process at once. Other work interrupts many all-reduces more
    often than few. So each place in a run has its own median, and a run takes the sum of those."""
    import torch
    import torch.distributed as distributed

    sizes = [[size] * RUN for size in SIZES] + [one["sizes"] for one in jobs["forwards"]]
    made = {size: torch.zeros(max(1, size // 4)) for each in sizes for size in each}
    work = [[made[size] for size in each] for each in sizes]
    seconds: list[list[list[float]]] = [[] for _ in work]
    order = np.random.default_rng(0)
    meeting = torch.zeros(1)
    for _ in range(jobs["rounds"]):
        for number in order.permutation(len(work)).tolist():
            distributed.all_reduce(meeting)
            moments = [time.perf_counter()]
            for tensor in work[number]:
                distributed.all_reduce(tensor)
                moments.append(time.perf_counter())
            seconds[number].append(np.diff(moments).tolist())
    whole = [float(np.median(each, axis=0).sum()) for each in seconds]
    return [spent / RUN for spent in whole[: len(SIZES)]] + whole[len(SIZES) :]


def main() -> None:
    """One process of `measure`."""
    from paceline.targets.hf.ranks.processes import Processes

    processes = Processes()
    found = timed(json.loads(sys.argv[1]))
    processes.leave()
    if processes.rank == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
