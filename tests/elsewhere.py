"""A stand-in for a device: tensors that say they are on one, with numbers that only it can reach, and a count of what
crosses between it and the host.

The stand-in is called *meta*, torch's name for a device without memory, since that one needs no driver. Its tensors do
have numbers, in a tensor of the host that they hold. As on a GPU, operations take tensors of one device (and single
numbers of the host), and numbers cross by copies alone, each of which is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self, TypeVar

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from paceline.targets.hf.fixed.capture import Leave

T = TypeVar("T")
ATEN = torch.ops.aten
NAME = "meta"
COPIES = ATEN.copy_, ATEN._to_copy
INDEXING = ATEN.index, ATEN.index_put, ATEN.index_put_
"""Operations to which lists and arrays of the host may be given; they are sent."""


class Away(torch.Tensor):
    """A tensor on the stand-in."""

    held: torch.Tensor

    def __new__(cls, held: torch.Tensor) -> Self:
        made: Self = torch.Tensor._make_wrapper_subclass(
            cls, held.shape, held.stride(), held.storage_offset(), dtype=held.dtype, device=NAME
        )
        made.held = held
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return computed(func, args, kwargs or {}, lambda kind: None)


Note = Callable[[str], None]


def computed(func: Any, args: Any, kwargs: dict[str, Any], note: Note) -> Any:
    """The result of an operation, on the device that it belongs to. ``note`` is called for what it sends, makes and
    waits for."""
    given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
    here = [one for one in given if not isinstance(one, Away)]
    away, place = len(here) < len(given), kwargs.get("device")
    there = away if place is None else torch.device(place).type == NAME
    if func.overloadpacket in COPIES:
        there = isinstance(args[0], Away) if func.overloadpacket is ATEN.copy_ else there
        source = args[1] if func.overloadpacket is ATEN.copy_ else args[0]
        if there is not isinstance(source, Away):
            note("sends" if there else "waits")
            if there and not (kwargs.get("non_blocking") or args[2:3] == (True,)):
                note("waits")  # until the copy is made, which is behind all that was asked of the device before
    elif not (away or there):
        return func(*args, **kwargs)
    elif away and any(one.dim() for one in here):
        assert func.overloadpacket in INDEXING, f"{func} was given tensors of the host and of the device"
        note("sends")
        note("waits")
    elif torch.Tag.data_dependent_output in func.tags or _finds_its_shape(func, args):
        note("waits")
    elif not given or func.overloadpacket.__name__.startswith("new_"):
        note("makes")
    held = {id(one.held): one for one in given if isinstance(one, Away)}
    args, kwargs = tree_map(lambda one: one.held if isinstance(one, Away) else one, (args, kwargs))
    result = func(*args, **kwargs | ({"device": "cpu"} if place is not None else {}))
    if not there:
        return tree_map(lambda one: one.clone() if isinstance(one, torch.Tensor) and away else one, result)
    return tree_map(lambda one: held.get(id(one), Away(one)) if isinstance(one, torch.Tensor) else one, result)


def _finds_its_shape(func: Any, args: Any) -> bool:
    """Whether the shape of the result depends on values. Indexing is marked so, but does only by flags."""
    if torch.Tag.dynamic_output_shape not in func.tags:
        return False
    return func.overloadpacket is not ATEN.index or any(
        index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
    )


class AsOnADevice(TorchFunctionMode):
    """Makes tensors of numbers of the host there and sends them, and reads lists from copies, as torch does for a real
    device and not for tensors of other classes."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor) and kwargs.get("device") is not None:
            return func(*args, **kwargs | {"device": "cpu"}).to(kwargs["device"])
        if func is torch.Tensor.pin_memory:
            return args[0]
        if func is torch.Tensor.tolist or (func is torch.Tensor.numpy and kwargs.get("force")):
            return func(args[0].cpu())
        return func(*args, **kwargs)


class Crossings(TorchDispatchMode):
    """Counts what is done with the stand-in, by the call of the round in which it is done."""

    def __init__(self) -> None:
        super().__init__()
        self.rounds: list[Counter[tuple[str, str]]] = [Counter()]
        """Of each round: what it does, and in which call -> how often. The first one reads the prompt."""
        self.call = "loop"
        self._launched = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return computed(func, args, kwargs or {}, self._note)

    def _note(self, kind: str) -> None:
        if not self._launched:
            self.rounds[-1][kind, self.call] += 1

    def launching(self, function: Callable[[Leave], T]) -> Callable[[Leave], T]:
        """A `Recorder`: a recording is launched at once, whatever it does, and touches nothing of the host."""

        def replay(leave: Leave) -> T:
            self._launched = True
            try:
                return function(leave)
            finally:
                self._launched = False

        return replay

    @contextmanager
    def within(self, call: str) -> Iterator[None]:
        """During one call of the round."""
        before, self.call = self.call, call
        try:
            yield
        finally:
            self.call = before


def sent_away(model: nn.Module) -> nn.Module:
    """The same model with its weights on the stand-in."""
    for module in model.modules():
        for name, weight in module._parameters.items():
            if weight is not None:
                module._parameters[name] = nn.Parameter(Away(weight.detach()), requires_grad=False)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = Away(buffer)
    return model
