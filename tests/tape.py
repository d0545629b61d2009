"""A recording on the CPU, as strict as a CUDA graph: the operations of one call on the tensors of that call, in two
parts where the function leaves early.

A played tape runs the same kernels on the same memory and writes to the same memory. What the recorded function
decided on the host (a length, a slot, which row is hidden) is decided for ever, and a tensor it made of host numbers
never changes again: a function that a graph would repeat wrongly, a tape repeats wrongly, too.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from paceline import launching
from paceline.targets.hf.fixed.capture import Leave, hear_nothing

T = TypeVar("T")


class Tape(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, dict[str, Any], list[Any]]] = []
        self.exits: list[tuple[int, torch.Tensor]] = []
        """What is left early, and how many calls come before."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, tree_leaves(result)))
        return result

    def launched(self, launch: Callable[..., None], *arguments: Any, **constants: Any) -> None:
        """A kernel, which torch does not see. What an interpreter of kernels does is no operation of the forward."""
        with _disable_current_modes():
            launch(*arguments, **constants)
        self.calls.append((launch, arguments, constants, [None]))

    def cut(self, early: torch.Tensor) -> Callable[[], None]:
        self.exits.append((len(self.calls), early))
        return hear_nothing

    def play(self, leave: Leave) -> None:
        """What is left is heard at once, while the later calls have still to come."""
        start = 0
        for end, early in self.exits:
            self._play(start, end)
            leave(early)()
            start = end
        self._play(start, len(self.calls))

    def _play(self, start: int, end: int) -> None:
        for func, args, kwargs, results in self.calls[start:end]:
            for new, old in zip(tree_leaves(func(*args, **kwargs)), results, strict=True):
                if isinstance(old, torch.Tensor) and new.data_ptr() != old.data_ptr():
                    old.copy_(new)


@contextmanager
def launches(seen: Callable[..., None]) -> Iterator[None]:
    """``seen`` is called for every kernel that is started, with what starts it and its arguments."""
    launch = launching.launch
    launching.launch = lambda *arguments, **constants: seen(launch, *arguments, **constants)
    try:
        yield
    finally:
        launching.launch = launch


def taped(function: Callable[[Leave], T]) -> Callable[[Leave], T]:
    """A `Recorder`."""
    with Tape() as tape, launches(tape.launched):
        result = function(tape.cut)

    def replay(leave: Leave) -> T:
        tape.play(leave)
        return result

    return replay
