"""Functions of tensors, recorded as a whole: what drafts beside the forwards of a model."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch

from paceline.once import once
from paceline.targets.hf.fixed.capture import Leave, Recorder, Uncapturable, pass_by, rehearse
from paceline.targets.hf.fixed.recordings import Recordings

KEPT = 32
APART = 1e-3
"""How far what is played may lie from what was called."""

Function = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Recorded:
    """A recording, with the memory that tensors are copied to. The function is held, so that a key may have the address
    of what it uses."""

    memory: list[torch.Tensor]
    play: Callable[[Leave], torch.Tensor]
    function: Function


class WholeFunctions:
    """The recordings of functions, each with the memory that its tensors are copied to."""

    def __init__(self, record: Recorder, forgiven: tuple[type[Exception], ...]) -> None:
        self._record = record
        self._forgiven: tuple[type[Exception], ...] = (Uncapturable, torch.OutOfMemoryError, *forgiven)
        self.recorded = Recordings[Hashable, Recorded](KEPT)
        self._refused: set[Hashable] = set()

    def played(self, key: Hashable, function: Function, given: Sequence[torch.Tensor]) -> torch.Tensor:
        if key in self._refused:
            return function(*given)
        try:
            recorded = self.recorded.used(key)
            if recorded is None:
                return self._recorded(key, function, given)
            for place, values in zip(recorded.memory, given, strict=True):
                place.copy_(values, non_blocking=True)
            return recorded.play(pass_by).clone()
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
        if not torch.allclose(found, expected, rtol=APART, atol=APART, equal_nan=True):
            raise Uncapturable("what is played is not what was recorded")
        self.recorded.keep(key, Recorded(memory, play, function))
        return found.clone()

    def forget(self) -> None:
        self.recorded.clear()
