"""Functions of tensors, recorded as a whole: what drafts beside the forwards of a model."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence

import torch

from paceline.once import once
from paceline.targets.hf.fixed.capture import Leave, Recorder, Uncapturable, pass_by, rehearse

KEPT = 32
"""Recordings that are kept; the least recently used one is dropped first."""
ROUNDING = 1e-3
"""How far what is played may lie from what was called."""

Function = Callable[..., torch.Tensor]


class WholeFunctions:
    """The recordings of functions, each with the memory that its tensors are copied to."""

    def __init__(self, record: Recorder, forgiven: tuple[type[Exception], ...]) -> None:
        self._record = record
        self._forgiven: tuple[type[Exception], ...] = (Uncapturable, torch.OutOfMemoryError, *forgiven)
        self.recorded: OrderedDict[Hashable, tuple[list[torch.Tensor], Callable[[Leave], torch.Tensor]]] = OrderedDict()
        self._held: dict[Hashable, Function] = {}
        """What a key was made of must not be replaced by something at its address."""
        self._refused: set[Hashable] = set()

    def played(self, key: Hashable, function: Function, given: Sequence[torch.Tensor]) -> torch.Tensor:
        if key in self._refused:
            return function(*given)
        try:
            if key not in self.recorded:
                return self._recorded(key, function, given)
            self.recorded.move_to_end(key)
            memory, play = self.recorded[key]
            for place, values in zip(memory, given, strict=True):
                place.copy_(values, non_blocking=True)
            return play(pass_by)
        except self._forgiven as error:
            self.forget()
            self._refused.add(key)
            why = f"{type(error).__name__}: {error}".splitlines()[0]
            warnings.warn(f"drafts are not recorded, which costs speed and nothing else: {why}", UserWarning, 3)
            return function(*given)

    def _recorded(self, key: Hashable, function: Function, given: Sequence[torch.Tensor]) -> torch.Tensor:
        """Call, record, play."""
        with once():
            memory = [values.clone() for values in given]
            expected = rehearse(lambda: function(*memory)).clone()
            play = self._record(lambda leave: function(*memory))
        found = play(pass_by)
        if not torch.allclose(found, expected, rtol=ROUNDING, atol=ROUNDING, equal_nan=True):
            raise Uncapturable("what is played is not what was recorded")
        self.recorded[key], self._held[key] = (memory, play), function
        while len(self.recorded) > KEPT:
            self._held.pop(self.recorded.popitem(last=False)[0])
        return found

    def forget(self) -> None:
        self.recorded.clear()
        self._held.clear()
