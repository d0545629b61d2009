"""The data of each training step: rows of labels that are stored, or windows that are labelled there and then."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
import torch.distributed as distributed

from paceline_make.heads.labels import Labels, Teacher, joined


def world() -> int:
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def rank() -> int:
    return distributed.get_rank() if world() > 1 else 0


class Batches(Protocol):
    """A function of the step alone, so that a training that was stopped reads on where it stopped."""

    @property
    def positions(self) -> int: ...

    @property
    def size(self) -> int:
        """Positions in a step of all processes: about as many as were asked for, in whole units, and where there are
        enough of these at least one for each process."""
        ...

    def at(self, step: int) -> tuple[Labels, int]:
        """This process's part of a batch, which may be empty, and the number of positions in all parts, at least
        1."""
        ...


class _Shuffled:
    """Numbers below ``count``, ``size`` at a time, in another order in each pass."""

    def __init__(self, count: int, size: int, seed: int) -> None:
        self.count, self.size, self.seed = count, min(size, count), seed
        self._order: tuple[int, np.ndarray] | None = None

    def at(self, step: int) -> np.ndarray:
        number, place = divmod(step, self.count // self.size)
        if self._order is None or self._order[0] != number:
            self._order = number, np.random.default_rng([self.seed, number]).permutation(self.count)
        return np.sort(self._order[1][place * self.size : (place + 1) * self.size])


def units_in_step(batch: int, unit: int) -> int:
    """Each process has a part of every step, if there are as many units."""
    return max(world(), round(batch / unit))


class StoredBatches:
    """Positions from all over the labels that are there; of heads that learn from whole windows ``unit`` positions
    behind one another."""

    def __init__(self, labels: Labels, batch: int, seed: int, unit: int = 1) -> None:
        self.labels, self._unit = labels, unit
        self._shuffled = _Shuffled(len(labels.tokens) // unit, units_in_step(batch, unit), seed)

    @property
    def positions(self) -> int:
        return len(self.labels.tokens)

    @property
    def size(self) -> int:
        return self._shuffled.size * self._unit

    def at(self, step: int) -> tuple[Labels, int]:
        chosen = self._shuffled.at(step)
        mine = rows_of(np.array_split(chosen, world())[rank()], self._unit)
        return self.labels.rows(torch.from_numpy(mine)), len(chosen) * self._unit


def rows_of(numbers: np.ndarray, unit: int) -> np.ndarray:
    """The positions of these units."""
    found: np.ndarray = (numbers[:, None] * unit + np.arange(unit)).ravel()
    return found


class FreshBatches:
    """Whole windows, labelled when they are learnt: nothing is stored, and each pass labels them again."""

    def __init__(self, teacher: Teacher, windows: int, batch: int, seed: int) -> None:
        self.teacher, self.windows = teacher, windows
        self.numbers = teacher.shuffled()[:windows]
        self._shuffled = _Shuffled(windows, units_in_step(batch, teacher.size), seed)

    @property
    def positions(self) -> int:
        return self.windows * self.teacher.size

    @property
    def size(self) -> int:
        return self._shuffled.size * self.teacher.size

    def at(self, step: int) -> tuple[Labels, int]:
        chosen = self.numbers[self._shuffled.at(step)]
        mine = np.array_split(chosen, world())[rank()]
        if len(mine):
            labels = joined([self.teacher.label(int(number)) for number in mine])
        else:  # none of the labels, in their shape
            labels = self.teacher.label(int(chosen[0])).rows(slice(0))
        count = torch.tensor(len(labels.tokens))
        if world() > 1:
            distributed.all_reduce(count)
        return labels, max(1, int(count))
