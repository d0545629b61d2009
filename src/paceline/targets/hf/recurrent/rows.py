"""Rows of a sequence whose layers keep a state that each token changes.

The states after the last committed token stay as they are while a draft is scored. Of the draft's rows the inputs to
each recurrence are kept. Once it is known which path is accepted, the recurrence of that path alone is computed again
(no weight is read for it), unless the states of all rows were kept as well.

States cannot be taken back token by token, so copies stay at a few places of the text: a later text that shares its
beginning goes on behind the nearest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from paceline.targets.base import Rows
from paceline.targets.cache import CacheRows
from paceline.tree import ROOT, Ints

Key = tuple[int, int, int]
"""A state's layer, its number in the layer, and the number of the call there (some layers call head by head)."""

APART = 64
"""Tokens between the places at which states are kept while a text is written."""
SNAPSHOTS = 8
"""The most places at which the states of a text are kept."""
SNAPSHOT_BYTES = 256 << 20
"""The most bytes that they take; two places are kept in any case."""


@dataclass(frozen=True)
class States:
    """The states of all layers after the first ``length`` tokens of a text. Nobody writes to these tensors."""

    length: int
    windows: Mapping[Key, torch.Tensor]
    """The last inputs of each convolution, ``[width - 1, channels]``."""
    recurrent: Mapping[Key, torch.Tensor]

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for kept in (self.windows, self.recurrent) for tensor in kept.values())


START = States(0, {}, {})


def owned(state: torch.Tensor) -> torch.Tensor:
    """A state in one piece of memory that nothing else is in."""
    state = state.contiguous()
    return state if state.untyped_storage().nbytes() == state.nbytes else state.clone()


class StateTrail(ABC):
    """The recurrence of one layer over the tentative rows of a sequence."""

    @abstractmethod
    def after(self, path: Ints) -> torch.Tensor:
        """The state after these rows, the path from the committed text to a row."""


@dataclass
class Tentative:
    """What the tentative rows left in the layers."""

    lead: int = 0
    """How many rows at the front were read in one piece, as a prompt is."""
    parents: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    inputs: dict[Key, tuple[int, torch.Tensor]] = field(default_factory=dict)
    """Of each convolution how many inputs it reads before the rows, and ``[..., channels]``: these, then the rows'."""
    trails: dict[Key, StateTrail] = field(default_factory=dict)


class StatefulRows(CacheRows):
    """Keys and values of the layers that attend, and the states of those that do not."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.states = START
        self._before = START
        """The states before the last rows were kept: drafts are often taken back by a few tokens."""
        self.tentatives = Tentative()
        self._snapshots: list[States] = []

    def common_prefix(self, tokens: Ints) -> int:
        return self._within_reach(super().common_prefix(tokens))

    def _within_reach(self, length: int) -> int:
        return self._nearest(length).length

    def _nearest(self, length: int) -> States:
        """The last states that are kept of the first ``length`` tokens."""
        kept = (*self._snapshots, self._before, self.states)
        kept = tuple(states for states in kept if states.length <= min(length, self.committed))
        return max(kept, key=lambda states: states.length, default=START)

    def _truncate(self) -> None:
        super()._truncate()
        self.states = self._nearest(self.committed)
        self._before = self.states
        self._snapshots = [states for states in self._snapshots if states.length <= self.committed]
        self.tentatives = Tentative()

    def _copy(self, other: Rows, count: int) -> None:
        assert isinstance(other, StatefulRows), "rows are copied from a sequence of the same target"
        if count:
            super()._copy(other, count)
        self.states = self._before = other._nearest(count)
        self._snapshots = [states for states in other._snapshots if states.length <= count]

    def _gather(self, rows: Ints) -> None:
        if not len(rows):
            super()._gather(rows)
            self.tentatives = Tentative()
            return
        found, lead = self._after(rows), self.tentatives.lead
        read = self._after(np.arange(lead)) if lead > 1 else None
        super()._gather(rows)
        self._before, self.states, self.tentatives = self.states, found, Tentative()
        if read is not None:
            self._remember(read)
        last = self._snapshots[-1].length if self._snapshots else 0
        if found.length - last >= APART:
            self._remember(found)

    def _after(self, path: Ints) -> States:
        """The states once these tentative rows are committed."""
        held = self.tentatives
        assert path[-1] + 1 >= held.lead, "a piece of a prompt is kept whole, where layers keep a state"
        windows = {key: self._window(*inputs, path) for key, inputs in held.inputs.items()}
        recurrent = {key: trail.after(path) for key, trail in held.trails.items()}
        return States(self.committed + len(path), windows, recurrent)

    @staticmethod
    def _window(before: int, inputs: torch.Tensor, path: Ints) -> torch.Tensor:
        """The last inputs of a convolution behind a path of tentative rows."""
        seen = np.concatenate([np.arange(before), path + before])[len(path) :]
        return inputs[torch.from_numpy(seen).to(inputs.device)]

    def begin(self, held: int, lead: int, parents: Ints) -> None:
        """Note a forward over more rows; the first ``held`` stay, with what they left."""
        assert self.states.length == self.committed, "states are of the committed text"
        before = self.tentatives
        self.tentatives = Tentative(lead, parents)
        if held:
            assert lead == 0, "rows that are held are a draft's"
            self.tentatives = Tentative(before.lead, parents, before.inputs, before.trails)

    def inputs(self, key: Key, fresh: torch.Tensor, width: int, held: int) -> torch.Tensor:
        """Add the inputs ``[rows, channels]`` of a convolution; what it has read so far (`Tentative.inputs`)."""
        if held:
            before = self.tentatives.inputs[key][1][: width - 1 + held]
        elif (window := self.states.windows.get(key)) is not None:
            before = window
        else:
            before = fresh.new_zeros(width - 1, fresh.shape[1])
        found = torch.cat([before, fresh])
        self.tentatives.inputs[key] = width - 1, found
        return found

    def path_to(self, row: int) -> Ints:
        """The tentative rows from the committed text to a row, which comes last."""
        path = list[int]()
        while row != ROOT:
            path.append(row)
            row = int(self.tentatives.parents[row])
        return np.array(path[::-1], np.int64)

    def _remember(self, states: States) -> None:
        """Keep these states for later texts. Where there are too many, one goes whose neighbours are near: changes are
        likelier close to a text's end."""
        self._snapshots.append(states)
        while len(self._snapshots) > self._most_places(states.bytes):
            lengths = [0, *(kept.length for kept in self._snapshots)]
            gaps = [
                (lengths[i + 1] - lengths[i - 1]) / (states.length - lengths[i] + APART)
                for i in range(1, len(lengths) - 1)
            ]
            self._snapshots.pop(int(np.argmin(gaps)))

    @staticmethod
    def _most_places(size: int) -> int:
        """At how many places states of so many bytes are kept."""
        return max(2, min(SNAPSHOTS, SNAPSHOT_BYTES // max(1, size)))

    @property
    def sequence_bytes(self) -> int:
        """Bytes that a text takes beside its rows: its states, and their copies."""
        size = self.states.bytes
        return size * (2 + self._most_places(size))

    def check(self) -> None:
        super().check()
        assert self.states.length == self.committed, f"states of {self.states.length} tokens, {self.committed} rows"

    def close(self) -> None:
        super().close()
        self.states, self._before, self.tentatives = START, START, Tentative()
        self._snapshots.clear()
