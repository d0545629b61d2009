"""Recording a forward: a CUDA graph on CUDA, elsewhere the function itself.

A recording holds kernels and addresses, and no decision of the host. So a forward that reads its own numbers (an expert
that is called only if it was chosen), or that copies from the host, must not be recorded. `rehearse` detects that
before a capture: a capture that fails half-way may leave the device unusable.
"""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Protocol, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

T = TypeVar("T")


class Uncapturable(Exception):
    """The forward does something that a recording cannot repeat."""


class Recorder(Protocol):
    """Turns a function of no arguments into one that does the same again, from the same memory into the same memory."""

    def __call__(self, function: Callable[[], T]) -> Callable[[], T]: ...


def direct(function: Callable[[], T]) -> Callable[[], T]:
    """No recording: on other devices the function is called every time."""
    return function


class CapturesGraphs(Recorder):
    """Captures CUDA graphs on one stream and in one memory pool, which they may share because their results are copied
    before the next replay."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None
        self._alive: weakref.WeakSet[Callable[[], Any]] = weakref.WeakSet()
        self._stream = torch.cuda.Stream(device)
        self._trusted = False

    def __call__(self, function: Callable[[], T]) -> Callable[[], T]:
        with torch.cuda.device(self._device):
            current = torch.cuda.current_stream()
            self._stream.wait_stream(current)
            with torch.cuda.stream(self._stream), nullcontext() if self._trusted else _no_waiting():
                function()
            current.wait_stream(self._stream)
            if not self._alive:  # the pool of graphs that are all gone must not be used again
                self._pool = torch.cuda.graph_pool_handle()
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            with torch.cuda.stream(self._stream), _no_collection():
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    result = function()
                except BaseException:
                    with suppress(RuntimeError):  # the first error, or Ctrl-C, is the one to raise
                        graph.capture_end()
                    raise
                graph.capture_end()
        self._trusted = True

        def replay() -> T:
            graph.replay()
            return result

        self._alive.add(replay)
        return replay


@contextmanager
def _no_waiting() -> Iterator[None]:
    """Whatever waits for the device raises inside. This is set for all threads, so only a model's first recording is
    rehearsed in this way."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns that the mode does not detect everything
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Without garbage collection, which may destroy another graph and so end a capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def rehearse(function: Callable[[], T]) -> T:
    """Call a function; `Uncapturable` if a recording of it would not repeat it."""
    with _Rules():  # type: ignore[no-untyped-call]
        return function()


COPIES = (torch.ops.aten.copy_, torch.ops.aten._to_copy)
"""Operations that copy. To others a single number of the host is an ordinary argument."""


class _Rules(TorchDispatchMode):
    """Refuses operations whose result the host must read, and copies between host and device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.data_dependent_output in func.tags or _finds_its_shape(func, args):
            raise Uncapturable(f"the model looks at its own numbers ({func})")
        result = func(*args, **(kwargs or {}))
        copies = func.overloadpacket in COPIES
        places = {t.device.type for t in (*args, result) if isinstance(t, torch.Tensor) and (copies or t.dim() > 0)}
        if len(places) > 1:
            raise Uncapturable(f"the model moves numbers between {' and '.join(sorted(places))} ({func})")
        return result


def _finds_its_shape(func: Any, args: Any) -> bool:
    """Whether the shape of the result depends on values. Indexing is marked so, but does only by flags."""
    if torch.Tag.dynamic_output_shape not in func.tags:
        return False
    if func.overloadpacket is not torch.ops.aten.index:
        return True
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
