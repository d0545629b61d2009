"""Replaces the forwards of modules that keep a state in a way of their own.

Most layers that keep a state call functions that `functions` replaces. Some families compute the state inside a module.
In our forwards such a module is called once for the rows in front of a draft, and once for each level of the draft
tree: the rows of a level lie side by side in the batch dimension, each with its parent's state where the module looks
for it. The module's weights are read once per level, so this is slower than the functions. The states of all rows of a
draft are kept, whatever memory they take.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from paceline.targets.hf.recurrent import functions
from paceline.targets.hf.recurrent.kinds import Function
from paceline.targets.hf.recurrent.rows import Key, StatefulRows, StateTrail
from paceline.targets.hf.recurrent.walk import PackedPart, RowWalk, in_order
from paceline.tree import Ints

if TYPE_CHECKING:
    from paceline.targets.hf.recurrent.forward import RecurrentForward

State = tuple[torch.Tensor, ...]
"""The tensors that a module keeps, with or without a batch dimension in front."""
Outputs = tuple[torch.Tensor, ...]
"""Tensors ``[batch, rows, ...]``."""
MIXER = -1
"""In place of a layer's number in the key of a module's state: the second number is that of the call in a forward."""


class Mixer(ABC):
    """How a module is called with a state."""

    rows: ClassVar[tuple[str, ...]]
    """The arguments ``[1, rows, ...]``, or tuples of such, that have an entry for each row. The first is never left
    out."""
    dropped: ClassVar[tuple[str, ...]] = ()
    """Arguments that are left out: masks of padding, and the cache."""

    def run(self, forward: RecurrentForward, right: Function, module: Any, given: dict[str, Any]) -> Any:
        """What the module returns for all rows of a forward."""
        return self.result(_mixed(forward, self, right, module, given))

    @abstractmethod
    def call(self, right: Function, module: Any, given: dict[str, Any], state: State | None) -> tuple[Outputs, State]:
        """The outputs of the module's own forward ``right``, and the states after it, of the states before it
        ``[batch, ...]``, which stay as they are; None at the beginning of a text."""

    @abstractmethod
    def result(self, outputs: Outputs) -> Any:
        """Outputs as the module returns them."""


@dataclass
class ModuleStates:
    """The states of one call of a module over a sequence's tentative rows."""

    lead: int
    before: State | None
    """Behind the rows that were read in one piece, or of the committed text."""
    kept: dict[int, State] = field(default_factory=dict)
    """By tentative row."""

    def after(self, path: Ints) -> State:
        """The states after these rows, the path from the committed text to a row."""
        if len(path) and path[-1] >= self.lead:
            return self.kept[int(path[-1])]
        assert self.before is not None, "a text has rows"
        return self.before


@dataclass
class ModuleTrail(StateTrail):
    """One tensor of a `ModuleStates`."""

    run: ModuleStates
    number: int

    def after(self, path: Ints) -> torch.Tensor:
        found = self.run.after(path)[self.number]
        return found if found.untyped_storage().nbytes() == found.nbytes else found.clone()


def _mixed(forward: RecurrentForward, mixer: Mixer, right: Function, module: Any, given: dict[str, Any]) -> Outputs:
    walk, call = forward.walk, forward.number()
    given = {name: value for name, value in given.items() if name not in mixer.dropped}
    assert given[mixer.rows[0]].shape[:2] == (1, walk.count), "a module is given all rows of a forward"
    pieces, order, runs = list[Outputs](), list[Ints](), list[ModuleStates]()
    for part in walk.parts:
        run = _run(part, call)
        if part.lead:
            out, states = mixer.call(right, module, _taken(mixer, given, part.read), _batch(run.before))
            pieces.append(tuple(each[0] for each in out))
            order.append(np.arange(part.read.start, part.read.stop))
            run.before = tuple(state[0] for state in states)
        runs.append(run)
    for level, out, states in _levels(mixer, right, module, given, walk, runs):
        pieces.append(tuple(each[:, 0] for each in out))
        order.append(level)
        _keep(walk, runs, level, states)
    for part, run in zip(walk.parts, runs, strict=True):
        _leave(part.rows, call, run)
    return tuple(in_order(list(each), order)[None] for each in zip(*pieces, strict=True))


def _run(part: PackedPart, call: int) -> ModuleStates:
    """What a module has kept of a sequence."""
    if part.held:
        trail = part.rows.tentatives.trails[MIXER, call, 0]
        assert isinstance(trail, ModuleTrail), "this module left it"
        return ModuleStates(
            trail.run.lead, trail.run.before, {row: trail.run.kept[row] for row in trail.run.kept if row < part.held}
        )
    committed, found = part.rows.states.recurrent, list[torch.Tensor]()
    while (key := (MIXER, call, len(found))) in committed:
        found.append(committed[key])
    return ModuleStates(part.lead, tuple(found) or None)


def _leave(rows: StatefulRows, call: int, run: ModuleStates) -> None:
    """Note what a path will need once it is accepted."""
    states = run.before or next(iter(run.kept.values()))
    keys: list[Key] = [(MIXER, call, number) for number in range(len(states))]
    rows.tentatives.trails.update({key: ModuleTrail(run, key[2]) for key in keys})


def _levels(
    mixer: Mixer, right: Function, module: Any, given: dict[str, Any], walk: RowWalk, runs: list[ModuleStates]
) -> Iterable[tuple[Ints, Outputs, State]]:
    """Of each level its packed rows, and what the module returns for them."""
    if not walk.levels:
        return
    by_part = {part.start: run for part, run in zip(walk.parts, runs, strict=True)}
    firsts = [by_part[part.start].after(part.rows.path_to(parent)) for part, parent in walk.firsts]
    states: State = tuple(torch.stack(each) for each in zip(*firsts, strict=True))
    for depth, level in enumerate(walk.levels):
        if depth and not level.in_order:
            index = torch.from_numpy(level.parents).to(states[0].device)
            states = tuple(state[index] for state in states)
        out, states = mixer.call(right, module, _taken(mixer, given, level.rows), states)
        yield level.rows, out, states


def _keep(walk: RowWalk, runs: list[ModuleStates], level: Ints, states: State) -> None:
    for place, row in enumerate(level.tolist()):
        number = next(i for i, part in enumerate(walk.parts) if part.start <= row < part.start + part.count)
        part = walk.parts[number]
        runs[number].kept[part.held + row - part.start] = tuple(state[place] for state in states)


def _taken(mixer: Mixer, given: dict[str, Any], index: slice | Ints) -> dict[str, Any]:
    """The arguments of a call for rows in one piece, or for rows in the batch dimension."""

    def taken(value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, tuple):
            return tuple(taken(each) for each in value)
        if isinstance(index, slice):
            return value[:, index]
        return value[0, torch.from_numpy(index).to(value.device)][:, None]

    return {name: taken(value) if name in mixer.rows else value for name, value in given.items()}


def _batch(states: State | None) -> State | None:
    return None if states is None else tuple(state[None] for state in states)


@dataclass(frozen=True)
class Family:
    """What is replaced in a model file, and how its models are called."""

    mixers: dict[str, Mixer]
    """By names of classes."""
    takes_cache: bool = True
    """Whether the model takes our cache; it is called without one if not."""
    uses_cache: bool = True
    """Whether the model is asked for a cache. Some make their own if so, or refuse ours."""
    attends: bool = True
    """Whether any layer attends."""
    slides: bool = False
    """Whether the layers that the configuration calls full have its window, if it has one."""
    measures: bool = False
    """Whether layers count queries and keys to get their distances."""
    indexes: bool = False
    """Whether layers choose keys by those of an indexer, which they take from the mask that they are given."""


def replace(module_class: Any, mixer: Mixer) -> None:
    """Replace the forward of a class of modules; once."""
    right = module_class.forward
    if hasattr(right, functions.OURS):
        return
    signature = inspect.signature(right)

    @wraps(right)
    def forward(module: Any, *args: Any, **kwargs: Any) -> Any:
        ours = functions.ours()
        if ours is None:
            return right(module, *args, **kwargs)
        given = dict(signature.bind(module, *args, **kwargs).arguments)
        given.pop("self")
        given |= given.pop("kwargs", {})
        return mixer.run(ours, right, module, given)

    setattr(forward, functions.OURS, right)
    module_class.forward = forward
