"""The order in which a forward's rows enter the layers that keep a state.

Rows in front of a draft (a piece of a prompt, or the first token of a text) are read in one piece. The others are taken
by their depth, those of all sequences together. The root behind a prompt is one of these, so that the state behind the
prompt is there for other texts that begin with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from paceline.targets.base import Request
from paceline.targets.hf.recurrent.rows import StatefulRows
from paceline.targets.hf.recurrent.scans import Visits
from paceline.targets.hf.recurrent.scans_gpu import VisitTable
from paceline.tree import ROOT, Ints, is_chain


@dataclass(frozen=True)
class RowLevel:
    """Rows of one depth, by their numbers in the packed forward."""

    rows: Ints
    parents: Ints
    """Their parents' numbers in the level before; in the first level, each row's own."""
    in_order: bool
    """Whether the parents are the whole level before, one after the other."""


class PackedPart:
    """One sequence's rows in a packed forward, ``start`` and the following."""

    def __init__(self, request: Request, start: int) -> None:
        rows = request.rows
        assert isinstance(rows, StatefulRows), "this target scores the rows it opened"
        self.rows, self.start, self.count = rows, start, len(request.tokens)
        self.held = request.held
        self.lead = request.prompt or int(rows.committed == 0 and not request.held)
        self.parents = np.asarray(request.parents, np.int64)
        behind = self.parents[self.held + self.lead :]
        assert not self.lead or (behind != ROOT).all(), "what is read in one piece is above all other rows"
        rows.begin(self.held, self.lead, self.parents)

    @property
    def read(self) -> slice:
        """The packed rows that are read in one piece."""
        return slice(self.start, self.start + self.lead)

    @property
    def nodes(self) -> slice:
        """The packed rows that are not."""
        return slice(self.start + self.lead, self.start + self.count)

    @cached_property
    def depths(self) -> Ints:
        """Of each fresh row that is not read in one piece, how many such rows are above it."""
        first = self.held + self.lead
        if is_chain(self.parents):
            return np.arange(self.count - self.lead)
        depths = list[int]()
        for parent in self.parents[first:].tolist():
            depths.append(0 if parent < first else depths[parent - first] + 1)
        return np.array(depths, np.int64)

    @cached_property
    def order(self) -> Order:
        first = self.rows.tentatives.lead
        return Order(np.maximum(self.parents[first:] - first, ROOT))

    def columns(self, width: int) -> Ints:
        """``[nodes, width]``: of each node which inputs its convolution reads, its own last: numbers in the
        ``width - 1`` inputs before the tentative rows, then those of the tentative rows."""
        above = np.empty((len(self.parents), width), np.int64)
        for row, parent in enumerate(self.parents.tolist()):
            above[row, -1] = row + width - 1
            above[row, :-1] = np.arange(width - 1) if parent == ROOT else above[parent, 1:]
        return above[self.held + self.lead :]


class Order:
    """The tree of a sequence's rows that were not read in one piece, and in which order compiled recurrences take
    them."""

    def __init__(self, parents: Ints) -> None:
        self.parents = parents
        self._visits: dict[int | None, Visits] = {}

    @property
    def single(self) -> bool:
        return len(self.parents) == 1

    def every(self) -> Visits:
        """All rows. Of a single one the state is kept at once: plain decoding accepts it."""
        if None not in self._visits:
            self._visits[None] = Visits(self.parents, 0 if self.single else None)
        return self._visits[None]

    def path_to(self, row: int) -> Visits:
        """The path to a row, whose state is kept."""
        if row not in self._visits:
            self._visits[row] = Visits(self.parents, row, path_only=True)
        return self._visits[row]


class RowWalk:
    """The parts of a forward, and the levels of their rows."""

    def __init__(self, requests: Sequence[Request]) -> None:
        starts = np.cumsum([0, *(len(request.tokens) for request in requests)])
        self.parts = [PackedPart(request, int(start)) for request, start in zip(requests, starts, strict=False)]
        self.count = int(starts[-1])
        self._columns: dict[tuple[int, int, torch.device], torch.Tensor] = {}
        self._visits: dict[torch.device, VisitTable] = {}

    @cached_property
    def drafts(self) -> list[PackedPart]:
        """The parts with rows that are not read in one piece."""
        return [part for part in self.parts if part.count > part.lead]

    def visits(self, device: torch.device) -> VisitTable:
        """Of these rows, in a forward that holds none of an earlier one."""
        if device not in self._visits:
            parts = [(part.order.every(), part.nodes.start) for part in self.drafts]
            self._visits[device] = VisitTable(parts, device)
        return self._visits[device]

    @cached_property
    def levels(self) -> list[RowLevel]:
        found, before, depth = list[RowLevel](), np.empty(0, np.int64), 0
        while True:
            rows, above = list[int](), list[int]()
            places = {row: place for place, row in enumerate(before.tolist())}
            for part in self.parts:
                first = part.start + part.lead
                for node in np.flatnonzero(part.depths == depth).tolist():
                    parent = int(part.parents[part.held + part.lead + node]) - part.held + part.start
                    rows.append(first + node)
                    above.append(places[parent] if depth else len(above))
            if not rows:
                return found
            parents = np.array(above, np.int64)
            in_order = len(parents) == len(before) and bool((parents == np.arange(len(parents))).all())
            found.append(RowLevel(np.array(rows, np.int64), parents, in_order))
            before, depth = found[-1].rows, depth + 1

    @cached_property
    def firsts(self) -> list[tuple[PackedPart, int]]:
        """Of each row of the first level its part, and its parent among the tentative rows."""
        return [
            (part, int(part.parents[part.held + part.lead + node]))
            for part in self.parts
            for node in np.flatnonzero(part.depths == 0).tolist()
        ]

    def columns(self, number: int, width: int, device: torch.device) -> torch.Tensor:
        """`PackedPart.columns` of a part, made once for all layers with convolutions of this width."""
        key = number, width, device
        if key not in self._columns:
            self._columns[key] = torch.from_numpy(self.parts[number].columns(width)).to(device)
        return self._columns[key]


def in_order(outputs: list[torch.Tensor], order: list[Ints]) -> torch.Tensor:
    """Pieces of packed rows, one after the other."""
    rows = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    packed = order[0] if len(order) == 1 else np.concatenate(order)
    if bool((np.diff(packed) > 0).all()):
        return rows
    return rows[torch.from_numpy(np.argsort(packed)).to(rows.device)]
