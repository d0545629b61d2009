"""Where a draft model runs, and how its process there is reached: started here, or spoken to on another machine."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import InputError

BEGIN = "import sys; from paceline.drafters.mirror.worker import main; sys.exit(main(sys.argv[1:]))"
SOURCE = Path(__file__).parents[3]
"""Where this package lies, for a process that might not find it."""
DEVICES = ("cpu", "cuda", "mps", "xpu", "meta", "vulkan", "hpu", "npu")
"""What torch calls its devices; any other name before a colon is a machine."""
CONNECTING = 10.0
"""Seconds after which a machine that does not answer is not there."""

Read = Callable[[socket.socket], None]


@dataclass(frozen=True)
class Place:
    """Which model drafts, and where."""

    model: str
    dtype: str | None
    quantize: str | None
    device: str = "cpu"
    cpus: tuple[int, ...] = ()
    """The cores that it runs on; none for all."""
    host: str = ""
    """The machine and its port; "" for this one."""

    @property
    def threads(self) -> int:
        """0 for as many as torch takes there."""
        return 0 if self.host else max(1, len(self.cpus))

    def facts(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "dtype": self.dtype,
            "quantize": self.quantize,
            "device": self.device,
            "cpus": list(self.cpus),
            "threads": self.threads,
        }


def usable_cores() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def place_named(named: str | None, model: str, dtype: str | None, quantize: str | None) -> Place:
    """The place that ``named`` says: cores by their numbers, as in ``1`` or ``2-3``, a device of torch, or another
    machine as ``HOST:PORT``. By default the last core that this process may use."""
    usable = usable_cores()
    if named is None:
        return Place(model, dtype, quantize, cpus=(usable[-1],))
    name, colon, number = named.rpartition(":")
    if named.isalpha() or name in DEVICES:
        return Place(model, dtype, quantize, named)
    if colon and name and number.isdigit() and int(number) < 1 << 16:
        return Place(model, dtype, quantize, host=named)
    first, _, last = named.partition("-")
    if not (first.isdigit() and (last or first).isdigit()):
        raise InputError(
            f"{named!r} is no place to draft: write cores as 1 or 2-3, a device as cuda:1, or a machine as HOST:PORT"
        )
    cores = tuple(range(int(first), int(last or first) + 1))
    if missing := [core for core in cores if core not in usable]:
        listed = ", ".join(map(str, usable))
        raise InputError(f"there is no core {missing[0]} for the draft model; this process may use {listed}")
    return Place(model, dtype, quantize, cpus=cores)


# --- how it is reached ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reached:
    """A socket to the process that drafts, and the process itself where it is a child of this one."""

    link: socket.socket
    child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        return 0 if self.child is None else self.child.pid

    def end(self) -> None:
        """Part from it; a child is killed and reaped. Called once: by the last user, by the end of the program, or
        where it was given up."""
        with contextlib.suppress(OSError):
            self.link.shutdown(socket.SHUT_RDWR)
        self.link.close()
        if self.child is not None:
            self.child.kill()
            self.child.wait()


def reach(place: Place, read: Read) -> Reached:
    """A process at this place. ``read`` is called with its socket, in a thread of its own."""
    if place.host:
        return _connected(place, read)
    ours, theirs = socket.socketpair()
    begun: queue.SimpleQueue[subprocess.Popen[bytes] | OSError] = queue.SimpleQueue()

    def begin_and_read() -> None:
        """The system ends the process together with the thread that began it, so this one lives as long as the socket
        does."""
        try:
            begun.put(child_of(theirs, max(1, place.threads)))
        except OSError as error:
            begun.put(error)
            return
        read(ours)

    threading.Thread(target=begin_and_read, name="draft process", daemon=True).start()
    child = begun.get()
    if isinstance(child, OSError):
        raise InputError(f"the process of draft model {place.model} did not start: {child}")
    return Reached(ours, child)


def child_of(link: socket.socket, threads: int) -> subprocess.Popen[bytes]:
    """A process that drafts for the program at the other end of ``link``, which is its own from now on.

    It has a group of its own, since Ctrl-C is for the text. Its outputs are not ours: a reader of these need not wait
    for it.
    """
    nowhere = subprocess.DEVNULL
    try:
        return subprocess.Popen(
            [sys.executable, "-c", BEGIN, str(link.fileno())],
            pass_fds=[link.fileno()],
            env=_environment(threads),
            stdin=nowhere,
            stdout=nowhere,
            stderr=nowhere,
            process_group=0,
        )
    finally:
        link.close()


def _environment(threads: int) -> dict[str, str]:
    """This process's environment and search path, with threads for the draft model's cores alone."""
    path = [str(SOURCE), os.environ.get("PYTHONPATH", "")]
    sized = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)} if threads else {}
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path)), **sized}


# --- another machine -----------------------------------------------------------------------------------------


def address_of(host: str) -> tuple[str, int]:
    name, _, port = host.rpartition(":")
    return name.strip("[]"), int(port)


def _connected(place: Place, read: Read) -> Reached:
    try:
        link = socket.create_connection(address_of(place.host), timeout=CONNECTING)
    except OSError as error:
        raise InputError(
            f"nobody drafts at {place.host} ({error}); on that machine, run python -m paceline.drafters.mirror "
            f"{place.host}"
        ) from None
    prompt_and_alive(link)
    threading.Thread(target=read, args=(link,), name="draft process", daemon=True).start()
    return Reached(link)


def prompt_and_alive(link: socket.socket) -> None:
    """Small frames leave at once, and a machine that is gone without a word is noticed."""
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def serve(host: str, say: Callable[[str], None]) -> None:
    """Draft for other machines: a process for every one that connects, until this one is interrupted."""
    try:
        waiting = socket.create_server(address_of(host))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot listen at {host}: {error}") from None
    children: list[subprocess.Popen[bytes]] = []
    with waiting:
        name, port = waiting.getsockname()[:2]
        say(f"drafting for every program that connects to {name}:{port}, with models of this machine; Ctrl-C ends it")
        try:
            while True:
                link, _ = waiting.accept()
                prompt_and_alive(link)
                children = [child for child in children if child.poll() is None]
                children.append(child_of(link, 0))
        finally:
            for child in children:
                child.kill()
                child.wait()
