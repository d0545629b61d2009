"""Rows of heads that read the target's hidden states (`states`)."""

from __future__ import annotations

from abc import abstractmethod

import torch

from paceline.targets.base import Request, Rows
from paceline.targets.cache import CacheRows, persistent_tensors


class ShownRows(CacheRows):
    """Keys and values of a head to which the target shows the states of the text's tokens."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.shown = 0
        """The number of the text's first tokens whose states are there."""

    @abstractmethod
    def show(self, start: int, states: torch.Tensor) -> None:
        """Note the target's states of the text's tokens from a place on. Those of a prompt's beginning that the target
        had cached, and these rows have not, are zeros."""

    def _truncate(self) -> None:
        super()._truncate()
        self.shown = min(self.shown, self.committed)


class StateRows(ShownRows):
    """Keys and values of a head, and the states ``[tokens, width]`` that the target has shown of the text's tokens."""

    def __init__(self, capacity: int, like: torch.Tensor) -> None:
        """``like`` has the width, type and device of a state."""
        super().__init__(capacity)
        self._states = _zeros(like, max(1, capacity))
        self._given = _zeros(like, 1)

    def show(self, start: int, states: torch.Tensor) -> None:
        end, held = start + len(states), self._states
        if end > len(held):
            self._states = _zeros(held[0], 2 * end)
            self._states[: self.shown] = held[: self.shown]
        self._states[self.shown : max(self.shown, start)] = 0
        self._states[start:end] = states
        self.shown = end

    def before(self, request: Request) -> torch.Tensor:
        """The state that each row of a request is read with."""
        if self._guesses:
            return self._given[torch.from_numpy(request.parents[request.held :] + 1)]
        end = self.committed + len(request.tokens) - 1
        if self.committed:
            return self._states[self.committed - 1 : end]
        return torch.cat([torch.zeros_like(self._states[:1]), self._states[:end]])

    def give(self, request: Request, states: torch.Tensor) -> None:
        """Note what the head gave for the rows of a request: the nodes below them are read with it."""
        self._given = torch.cat([self._given[: request.held + 1], states]) if self._guesses else states[-1:]

    @property
    def _guesses(self) -> bool:
        """Whether the next rows are a draft's: the target has not shown the state before them."""
        return self.committed > self.shown

    def _copy(self, other: Rows, count: int) -> None:
        assert isinstance(other, StateRows), "rows are copied from a sequence of the same head"
        super()._copy(other, count)
        self.show(0, other._states[: min(count, other.shown)])


def _zeros(like: torch.Tensor, count: int) -> torch.Tensor:
    with persistent_tensors():
        return like.new_zeros(count, like.shape[-1])
