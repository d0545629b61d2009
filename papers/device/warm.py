"""Programs that begin with the libraries imported: forks of a process that has done nothing else.

A machine that has just started reads torch and transformers from a cold disk for a quarter of a minute. A process that
has used a GPU cannot be forked, so the one that is forked imports and no more. If a library asked for the GPU
meanwhile, a program starts afresh, which costs the imports and nothing else.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from typing import Any

IMPORTED = "papers.device.imports"
WAY: Any = "forkserver"
COUNTS_WITHOUT_USE = "PYTORCH_NVML_BASED_CUDA_CHECK"
"""With it torch counts GPUs without a use of CUDA."""


def possible() -> bool:
    """Whether this system can fork."""
    return WAY in multiprocessing.get_all_start_methods()


def prepare() -> None:
    """Begin to import, in the background."""
    if possible():
        os.environ.setdefault(COUNTS_WITHOUT_USE, "1")
        multiprocessing.get_context(WAY).set_forkserver_preload([IMPORTED])
        forkserver.ensure_running()


def start(command: Sequence[str], environment: Mapping[str, str], said: str, warned: str) -> BaseProcess:
    """Start ``-m MODULE ARGUMENTS`` in a separate group; its output goes to two files."""
    prepare()
    given = list(command), dict(environment), os.getcwd(), said, warned
    process: BaseProcess = multiprocessing.get_context(WAY).Process(target=_begin, args=given)
    process.start()
    return process


def _begin(command: list[str], environment: dict[str, str], place: str, said: str, warned: str) -> None:
    os.setsid()
    for number, path in ((0, os.devnull), (1, said), (2, warned)):
        opened = os.open(path, os.O_RDWR | os.O_APPEND)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.update(environment)
    os.chdir(place)
    if _used():
        os.execv(sys.executable, [sys.executable, *command])
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w", buffering=1), open(2, "w", buffering=1)  # noqa: SIM115
    _, module, *arguments = command
    sys.argv = [module, *arguments]
    sys.path.insert(0, place)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _used() -> bool:
    """Whether CUDA was used before this process was forked, so that it cannot be used here."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda._is_in_bad_fork())
