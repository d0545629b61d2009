"""Where a draft model runs, and how its process is started there: by this program, which owns it, over a pipe that
nothing else can reach."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from paceline.drafters.networks.assistant.drafter import Assistant, Model
from paceline.drafters.networks.assistant.model import DraftModel
from paceline.drafters.networks.heads import SHIPPED, STREAMING
from paceline.drafters.networks.streaming.drafter import base_model
from paceline.errors import InputError
from paceline.targets.base import Target

DRAFTS = Assistant.name, STREAMING
"""How the draft model drafts."""
BEGIN = "import sys; from paceline.drafters.networks.mirror.worker import main; sys.exit(main(sys.argv[1:]))"
SOURCE = Path(__file__).parents[4]
"""Where this package lies, for a process that might not find it."""
CORES = re.compile("([0-9]{1,20})(?:-([0-9]{1,20}))?")
DEVICE = re.compile("[a-z]{1,20}(?::([0-9]{1,9}))?")
NOWHERE = "{} is no place to draft; write cores as 1 or 2-3, or a device as cuda:1"
SAYING = 0.5
"""Seconds in which it takes a message, whatever it is doing."""
ENDING = 0.5
"""Seconds to wait for the end of a process that was killed."""
SHOWN = 40
"""Characters of a wrong value in an error."""


@dataclass(frozen=True)
class DraftPlace:
    """Which model drafts, and where."""

    model: str
    dtype: str | None
    quantize: str | None
    device: str = "cpu"
    cpus: tuple[int, ...] = ()
    """The cores that it runs on; none for all."""
    head: str | None = None
    """The adapter of its streams, where it drafts with some."""

    def facts(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "dtype": self.dtype,
            "quantize": self.quantize,
            "device": self.device,
            "cpus": list(self.cpus),
            "head": self.head,
            "threads": max(1, len(self.cpus)),
        }


def drafting(
    method: str, model: Model | None, draft: str, head: str | None, top: int, translate: str | None
) -> tuple[Any, str | None]:
    """The draft model, and the adapter of its streams if it drafts by ``streaming``."""
    if draft not in DRAFTS:
        raise InputError(f"{method} takes draft={' or draft='.join(DRAFTS)}, not {draft!r}")
    if draft == STREAMING:
        if top > 1:
            raise InputError(f"{method}:draft={STREAMING} drafts one token after another; leave top={top} out")
        if translate is not None:
            said = f"drafts in the target's tokens; leave translate={translate} out"
            raise InputError(f"{method}:draft={STREAMING} {said}")
        head = SHIPPED if head is None else head
        return (base_model(head) if model is None else model), head
    if head is not None:
        raise InputError(f"a head is for {method}:draft={STREAMING}; write that, or leave head={head} out")
    if model is None:
        give = "give draft_model=NAME (--draft-model NAME on the command line)"
        raise InputError(f"method {method!r} needs a draft model: write {method}:model=NAME or {give}")
    return model, None


def place_of(named: Any, target: Target, device: str, cpus: tuple[int, ...], *, head: str | None = None) -> DraftPlace:
    """Where a draft model runs: on a dedicated core, unless a device says otherwise."""
    if sys.platform == "win32":
        raise InputError("mirror's process inherits a pipe, which Windows does not do; use assistant")
    origin = named.origin if isinstance(named, DraftModel) else named
    if not isinstance(origin, (str, Path)):
        raise InputError(
            "mirror's draft model is loaded by a separate process; give its name or folder, not a loaded model"
        )
    quantize = target.dtype if target.exact else None
    return DraftPlace(str(origin), None if quantize else target.dtype, quantize, device, cpus, head)


def usable_cores() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def spot(named: object) -> tuple[str, tuple[int, ...]]:
    """The device and the cores that ``named`` says: cores by their numbers, as in ``1`` or ``2-3``, or a device of
    torch. By default the last core that this process may use."""
    if named is None:
        return "cpu", (usable_cores()[-1],)
    if not isinstance(named, str):
        raise InputError(f"a place to draft is a text such as '2-3' or 'cuda:1', not {str(named)[:SHOWN]}")
    if (cores := CORES.fullmatch(named)) is None:
        return _device(named), ()
    first, last = int(cores[1]), int(cores[2] or cores[1])
    if first > last:
        raise InputError(f"{named!r} names no core for the draft model; write the lower number first: {last}-{first}")
    usable = usable_cores()
    if (missing := next((core for core in range(first, last + 1) if core not in usable), None)) is not None:
        listed = ", ".join(map(str, usable))
        raise InputError(f"there is no core {missing} for the draft model; this process may use {listed}")
    return "cpu", tuple(range(first, last + 1))


def _device(named: str) -> str:
    """A device of torch, without a context on it: only the process that drafts computes there."""
    if (parts := DEVICE.fullmatch(named)) is None:
        raise InputError(NOWHERE.format(f"{named[:SHOWN]!r}{' and so on' if len(named) > SHOWN else ''}"))
    import torch

    try:
        device = torch.device("cpu" if named == "auto" else named)
    except RuntimeError:
        raise InputError(NOWHERE.format(repr(named))) from None
    if device.type == "cuda" and int(parts[1] or 0) >= torch.cuda.device_count():  # torch.device keeps 8 bits of it
        raise InputError(f"there is no device {named} for the draft model; torch sees {torch.cuda.device_count()}")
    return named


# --- its process ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Begun:
    """A process that drafts, and the connection to it."""

    link: Connection
    child: subprocess.Popen[bytes]

    def end(self) -> None:
        """Kill it. Called once: by its last user, by the end of the program, or where it was given up. Where it does
        not end at once, the thread that reads from it waits for it."""
        self.child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.child.wait(ENDING)


def begin(place: DraftPlace, read: Callable[[Connection], None]) -> Begun:
    """Begin a process at this place. ``read`` is called with the connection to it, in a separate thread."""
    ours, theirs = Pipe()
    _bound(ours)
    begun: queue.SimpleQueue[subprocess.Popen[bytes] | BaseException] = queue.SimpleQueue()

    def begin_and_read() -> None:
        """The system ends the process together with the thread that began it, so this one lives as long as the process
        does."""
        try:
            child = _child(theirs, max(1, len(place.cpus)))
        except BaseException as error:
            begun.put(error)
            return
        begun.put(child)
        read(ours)
        child.kill()
        child.wait()  # the connection closes with its last user, which may be about to send

    threading.Thread(target=begin_and_read, name="draft process", daemon=True).start()
    child = begun.get()
    if isinstance(child, BaseException):
        ours.close()
        if isinstance(child, OSError):
            raise InputError(f"the process of draft model {place.model} did not start: {child}")
        raise child
    return Begun(ours, child)


def _bound(link: Connection) -> None:
    """A message that is not taken in `SAYING` is an error: the process reads in a separate thread."""
    with socket.socket(fileno=os.dup(link.fileno())) as same:
        seconds, rest = divmod(SAYING, 1)
        same.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(seconds), int(rest * 1e6)))
        same.setblocking(True)  # whatever `socket.setdefaulttimeout` says


def _child(link: Connection, threads: int) -> subprocess.Popen[bytes]:
    """A process that drafts for the program at the other end of ``link``, which is its own from now on.

    It has a separate process group, since Ctrl-C is for the text. Its outputs are not ours, so that a reader of these
    need not wait for it.
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
    sized = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path)), **sized}
