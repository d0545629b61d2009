"""A recording on the CPU, as strict as a CUDA graph: the operations of one call on the tensors of that call.

A played tape runs the same kernels on the same memory and writes to the same memory. What the recorded function
decided on the host (a length, a slot, which row is hidden) is decided for ever, and a tensor it made of host numbers
never changes again: a function that a graph would repeat wrongly, a tape repeats wrongly, too.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

T = TypeVar("T")


class Tape(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, dict[str, Any], list[Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, tree_leaves(result)))
        return result

    def play(self) -> None:
        for func, args, kwargs, results in self.calls:
            for new, old in zip(tree_leaves(func(*args, **kwargs)), results, strict=True):
                if isinstance(old, torch.Tensor) and new.data_ptr() != old.data_ptr():
                    old.copy_(new)


def taped(function: Callable[[], T]) -> Callable[[], T]:
    """A `Recorder`."""
    with Tape() as tape:
        result = function()

    def replay() -> T:
        tape.play()
        return result

    return replay
