"""The ranks that compute one model: sums, gatherings and messages between them."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as distributed

from paceline.errors import InputError, RankLost, first_line
from paceline.targets.hf.ranks.processes import Processes
from paceline.targets.torchrun import by_torchrun, launched

ANSWER = timedelta(seconds=60)
"""The longest wait for another rank in the middle of a forward."""
IDLE = timedelta(days=365)
"""The longest wait for the next forward: a user may think about what to write."""
BLOCK = 4096
"""Bytes of a message that are sent at once; the first ones say how long it is."""
LENGTH = 8
"""Bytes of that length."""
NARROW = torch.bfloat16, torch.float16
"""Types whose sums gloo rounds after every addend, or does not know; they are added in float32."""


class RankGroup:
    """This rank among those of a model. Everything that it does is done by all ranks, in the same order."""

    def __init__(self, processes: Processes, device: str) -> None:
        self._processes = processes
        self.device = device
        self.rank: int = processes.rank
        self.size: int = processes.size
        self._messages = distributed.new_group(backend="gloo", timeout=IDLE)
        self.sums = self.gatherings = 0
        """Collectives of the model so far."""
        self.lost = False
        """Whether a rank is gone, or out of step."""
        self._one_at_a_time = threading.RLock()
        self.models = 0
        """How many models all ranks have begun to open."""
        self.let_go: list[int] = []
        """Numbers of models that the leader no longer holds, and the other ranks still do."""
        self._reading = False

    @property
    def leads(self) -> bool:
        """Whether this is the rank that writes, and tells the others what to compute."""
        return self.rank == 0

    @classmethod
    def join(cls, size: int, device: str | int | torch.device | None) -> RankGroup:
        """The group of the processes that torchrun started, which must be as many."""
        check_size(size)
        place = _place(size, device)
        backend = "nccl" if place.startswith("cuda") else "gloo"
        try:
            return cls(Processes(backend, ANSWER), place)
        except RuntimeError as error:
            raise RankLost(f"the {size} processes of a model did not meet: {first_line(error)}") from error

    def summed(self, part: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' parts, with the same bits on every rank."""
        self.sums += 1
        narrow = part.device.type == "cpu" and part.dtype in NARROW
        total = part.float() if narrow else part.contiguous()
        with self._answering():
            distributed.all_reduce(total)
        return total.to(part.dtype)

    def gathered(self, part: torch.Tensor) -> torch.Tensor:
        """All ranks' parts ``[..., n]`` behind one another: ``[..., ranks * n]``."""
        self.gatherings += 1
        part = part.contiguous()
        parts = [torch.empty_like(part) for _ in range(self.size)]
        with self._answering():
            distributed.all_gather(parts, part)
        return torch.cat(parts, dim=-1)

    def tell(self, said: object) -> None:
        """Send a message to the other ranks, which `hear` it."""
        packed = pickle.dumps(said)
        framed = len(packed).to_bytes(LENGTH, "little") + packed
        first = torch.zeros(BLOCK, dtype=torch.uint8)
        first[: len(framed)] = torch.frombuffer(bytearray(framed[:BLOCK]), dtype=torch.uint8)
        with self._answering():
            distributed.broadcast(first, 0, group=self._messages)
            if rest := framed[BLOCK:]:
                distributed.broadcast(torch.frombuffer(bytearray(rest), dtype=torch.uint8), 0, group=self._messages)

    def hear(self) -> Any:
        """The leader's next message."""
        first = torch.empty(BLOCK, dtype=torch.uint8)
        with self._answering():
            distributed.broadcast(first, 0, group=self._messages)
            framed = first.numpy().tobytes()
            length = int.from_bytes(framed[:LENGTH], "little")
            if (more := LENGTH + length - BLOCK) > 0:
                rest = torch.empty(more, dtype=torch.uint8)
                distributed.broadcast(rest, 0, group=self._messages)
                framed += rest.numpy().tobytes()
        return pickle.loads(framed[LENGTH : LENGTH + length])

    def everywhere(self, mine: object) -> list[Any]:
        """What every rank gave, by rank."""
        found: list[Any] = [None] * self.size
        with self._answering():
            distributed.all_gather_object(found, mine, group=self._messages)
        return found

    @contextmanager
    def opening(self) -> Iterator[None]:
        """The opening of a model by all ranks. If one of them cannot read its files, all of them raise, and so they
        stay in step."""
        self.models, self._reading = self.models + 1, True
        try:
            yield
        except InputError as error:
            if self._reading:
                self._read(str(error))
            raise

    def all_have_read(self) -> None:
        """Wait for all ranks, however long they read weights."""
        for rank, fault in enumerate(self._read("")):
            if fault:
                raise InputError(f"process {rank} of {self.size} says: {fault}")

    def _read(self, fault: str) -> list[str]:
        self._reading = False
        return self.everywhere(fault)

    @contextmanager
    def in_step(self) -> Iterator[None]:
        """Work that all ranks do together, one thread at a time. If it ends half-way on this one, the others wait for
        what never comes; so the group is given up."""
        with self._one_at_a_time:
            if self.lost:
                raise RankLost(
                    f"a forward on the {self.size} processes that compute this model was broken off, so they are out "
                    "of step; start all of them again"
                )
            try:
                yield
            except BaseException:
                self.lost = True
                raise

    def end(self) -> None:
        """Let the other ranks go, and leave."""
        try:
            if self.leads and not self.lost:
                self.tell(None)
        except RankLost:
            pass
        if self.lost:
            self.abandon()
        else:
            self._processes.leave()

    def abandon(self) -> None:
        """Leave at once, which ends what the other ranks wait for."""
        self.lost = True
        self._processes.abandon()

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """A library's error about a rank that is gone becomes ours."""
        try:
            yield
        except RuntimeError as error:
            self.lost = True
            raise self._loss() from error

    def _loss(self) -> RankLost:
        return RankLost(
            f"one of the {self.size} processes that compute this model has ended, or has not answered for "
            f"{ANSWER.seconds} seconds; its own message says why; start all of them again"
        )


def check_size(size: int) -> None:
    """Refuse another number of ranks than there are processes."""
    if distributed.is_available() and distributed.is_initialized():
        raise InputError("these processes compute a model together already; one over several ranks is opened once")
    if launched() == size:
        return
    command = f"torchrun --nproc-per-node {size} -m paceline ..., or a script of yours in its place"
    if not by_torchrun():
        raise InputError(f"a model over {size} ranks needs {size} processes, and torchrun did not start any: {command}")
    raise InputError(f"a model over {size} ranks needs {size} processes, and there are {launched()}: {command}")


def _place(size: int, device: str | int | torch.device | None) -> str:
    """This rank's device: a GPU of its own, or the CPU."""
    from paceline.targets.device import asked, fastest

    wanted = asked(device).device or fastest()
    if wanted.type == "cpu":
        return "cpu"
    if wanted.type != "cuda" or wanted.index is not None:
        raise InputError(f"ranks compute on the CPU or each on a GPU of its own: write cpu or cuda, not {wanted}")
    number = int(os.environ.get("LOCAL_RANK", os.environ["RANK"]))
    if number >= (there := torch.cuda.device_count()):
        raise InputError(f"rank {number} of {size} has no GPU, for there are {there}; start fewer, or write cpu")
    torch.cuda.set_device(number)
    return f"cuda:{number}"
