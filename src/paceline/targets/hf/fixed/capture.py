"""Recording a forward: a CUDA graph on CUDA, elsewhere the function itself.

A recording holds kernels and addresses, and no decision of the host. So a forward that reads its own numbers (an expert
that is called only if it was chosen), or that copies from the host, must not be recorded. `rehearse` detects that
before a capture: a capture that fails half-way may leave the device unusable.

An early exit cuts a recording in two: the early logits are copied between them, and read while the device computes the
second.
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


Leave = Callable[[torch.Tensor], Callable[[], None]]
"""Called with the early logits of all rows, which the later layers may overwrite. It returns the work to do once these
layers are under way."""


def hear_nothing() -> None:
    """The work after an exit without a listener: none."""


def pass_by(_: torch.Tensor) -> Callable[[], None]:
    """A `Leave` that does nothing."""
    return hear_nothing


class Recorder(Protocol):
    """Turns a function into one that does the same again, from the same memory into the same memory. Each is given what
    to call at an early exit."""

    def __call__(self, function: Callable[[Leave], T]) -> Callable[[Leave], T]: ...


def direct(function: Callable[[Leave], T]) -> Callable[[Leave], T]:
    """No recording: on other devices the function is called every time."""
    return function


class CapturesGraphs(Recorder):
    """Captures CUDA graphs on one stream and in one memory pool, which they may share because their results are copied
    before the next replay."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None
        self._alive: weakref.WeakSet[Callable[[Leave], Any]] = weakref.WeakSet()
        self._stream, self._hearing = torch.cuda.Stream(device), torch.cuda.Stream(device)
        self._trusted = False

    def __call__(self, function: Callable[[Leave], T]) -> Callable[[Leave], T]:
        with torch.cuda.device(self._device):
            current = torch.cuda.current_stream()
            self._stream.wait_stream(current)
            with torch.cuda.stream(self._stream), nullcontext() if self._trusted else _no_waiting():
                function(pass_by)
            current.wait_stream(self._stream)
            if not self._alive:  # the pool of graphs that are all gone must not be used again
                self._pool = torch.cuda.graph_pool_handle()
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            with torch.cuda.stream(self._stream), _no_collection():
                graphs, exits, result = self._captured(function)
        self._trusted = True

        def replay(leave: Leave) -> T:
            for graph, early in zip(graphs, exits, strict=False):
                graph.replay()
                then = leave(early)
                self._hearing.wait_stream(torch.cuda.current_stream(self._device))
            graphs[-1].replay()
            if exits:
                try:
                    with torch.cuda.stream(self._hearing):  # on the other stream it would wait for the later layers
                        then()
                finally:
                    torch.cuda.current_stream(self._device).wait_stream(self._hearing)
            return result

        self._alive.add(replay)
        return replay

    def _captured(self, function: Callable[[Leave], T]) -> tuple[list[torch.cuda.CUDAGraph], list[torch.Tensor], T]:
        """The graphs of a function, cut where it leaves early, and what it leaves there."""
        graphs, exits = list[torch.cuda.CUDAGraph](), list[torch.Tensor]()

        def begin() -> None:
            graphs.append(torch.cuda.CUDAGraph())
            graphs[-1].capture_begin(pool=self._pool, capture_error_mode="thread_local")

        def cut(early: torch.Tensor) -> Callable[[], None]:
            graphs[-1].capture_end()
            exits.append(early)
            begin()
            return hear_nothing

        try:
            begin()
            result = function(cut)
        except BaseException:
            with suppress(RuntimeError):  # the first error, or Ctrl-C, is the one to raise
                graphs[-1].capture_end()
            raise
        graphs[-1].capture_end()
        return graphs, exits, result


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
