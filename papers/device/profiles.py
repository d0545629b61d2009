"""Where the time of a text goes: kernels of the device, operations of the host, and functions of Python."""

from __future__ import annotations

import cProfile
import pstats
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import paceline

MOST = 10
"""Entries of each list."""
HOST = "CPU"
NAME = 60
"""Characters of a kernel's name."""
Top = list[tuple[str, float, float]]
"""Name, calls a round and milliseconds a round."""


def profiled(text: Callable[[], paceline.Generation], device: str) -> dict[str, Any]:
    """A text under torch's profiler, and the next one under Python's. Both slow the host down, so ``wall`` is that of a
    text without them. All numbers are per round, milliseconds."""
    started = time.perf_counter()
    done = text()
    wall = time.perf_counter() - started
    rounds = max(1, done.totals.rounds)
    on_device = torch.device(device).type == "cuda"
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_device else [])]) as trace:
        text()
    events: list[Any] = list(trace.key_averages())
    kernels = [one for one in events if one.device_type.name != HOST]
    host = [one for one in events if one.device_type.name == HOST]
    python = cProfile.Profile()
    python.runcall(text)
    return {
        "rounds": rounds,
        "wall": 1000 * wall / rounds,
        "kernels": sum(one.count for one in kernels) / rounds,
        "device": sum(one.self_device_time_total for one in kernels) / 1000 / rounds,
        "host": sum(one.self_cpu_time_total for one in host) / 1000 / rounds,
        "top_device": _top(kernels, "self_device_time_total", rounds),
        "top_host": _top(host, "self_cpu_time_total", rounds),
        "top_python": _functions(python, rounds),
    }


def _top(events: list[Any], field: str, rounds: int) -> Top:
    order = sorted(events, key=lambda one: -getattr(one, field))[:MOST]
    return [(one.key[:NAME], one.count / rounds, getattr(one, field) / 1000 / rounds) for one in order]


def _functions(run: cProfile.Profile, rounds: int) -> Top:
    """Functions by their own time."""
    stats: dict[tuple[str, int, str], tuple[int, int, float, float, Any]] = pstats.Stats(run).stats  # type: ignore[attr-defined]
    order = sorted(stats.items(), key=lambda one: -one[1][2])[:MOST]
    return [(_place(*place), calls / rounds, 1000 * own / rounds) for place, (_, calls, own, _, _) in order]


def _place(file: str, line: int, name: str) -> str:
    return name if file == "~" else f"{'/'.join(Path(file).parts[-2:])}:{line} {name}"
