"""The rows of one text in llama.cpp: which sequences each of them belongs to (`cells`)."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from itertools import compress

import numpy as np

from paceline.law.scores import Row
from paceline.targets.base import Request, Rows
from paceline.targets.gguf.cells import Cells, Marks, RowsRead, Sequences
from paceline.tree import ROOT, Ints


class GgufRows(Rows):
    """A text's home sequence, and the branches of its draft. Its committed rows are in its home."""

    def __init__(self, cells: Cells, window: int) -> None:
        """``window`` is that of the model's sliding attention, 0 without."""
        super().__init__()
        self._cells, self._window = cells, window
        self._ways: list[int] = []
        """Of each tentative row, a sequence that holds the path to it."""
        self._uncached = False
        """Whether the tentative rows have no cells, for want of sequences; those that are kept are read again."""
        with cells.held():
            self._sequences = [cells.home(self)]
        self._given = weakref.finalize(self, cells.give, self._sequences)
        self._given.atexit = False

    @property
    def home(self) -> int:
        """The sequence that holds the committed rows."""
        return self._sequences[0]

    def idle_branches(self) -> list[int]:
        """Branches that no tentative row needs; they are the caller's now."""
        if not self._sequences:
            return []  # it is closed
        needed = {self.home, *self._ways}
        idle = [branch for branch in self._sequences if branch not in needed]
        self._sequences[:] = [own for own in self._sequences if own in needed]
        return idle

    def plan(self, request: Request) -> Sequences | None:
        """The sequences of each fresh row of a request; None where there are too few for its branches, and its rows
        are scored without cells (`walk`). The first child of a row goes on in the row's sequence; any other begins a
        branch, which every row above it belongs to as well."""
        held, parents = request.held, request.parents.tolist()
        if held and self._uncached:
            return None
        tips = self._stand(request)
        found = Sequences()
        for row in range(held, len(parents)):
            parent = parents[row]
            way = self.home if parent == ROOT else self._ways[parent]
            if tips.get(way, ROOT) != parent:
                branch = self._branch_at(request, parent)
                if branch is None:
                    return None
                above = parent
                while above >= held:
                    found[above - held].append(branch)
                    above = parents[above]
                way = branch
            tips[way] = row
            self._ways.append(way)
            found.append([way])
        return found

    def _stand(self, request: Request) -> dict[int, int]:
        """Take all cells away but those of the committed and the held rows. The last row in each sequence."""
        del self._ways[request.held :]
        self._uncached = False
        tips = {way: row for row, way in enumerate(self._ways)}
        positions = request.tentative_positions if tips else ()
        for sequence in self._sequences:
            row = tips.get(sequence)
            self._cells.trim(sequence, self.committed if row is None else int(positions[row]) + 1)
        return tips

    def _branch_at(self, request: Request, parent: int) -> int | None:
        """A sequence that holds the text and the held rows down to a parent."""
        taken = {self.home, *self._ways}
        branch = next((own for own in self._sequences if own not in taken), None)
        if branch is None:
            branch = self._cells.branch()
            if branch is None:
                return None
            self._sequences.append(branch)
        while parent >= request.held:
            parent = int(request.parents[parent])
        self._cells.share(self.home, branch, self.committed)
        if parent != ROOT:
            self._cells.share(self._ways[parent], branch, int(request.tentative_positions[parent]) + 1)
        return branch

    def walk(self, request: Request, scored: Marks, shown: Marks) -> RowsRead:
        """Score a request, whose rows are noted, one path after the other in the home; no cell of them stays."""
        self._drop()
        self._uncached = True
        parents, tokens = request.parents.tolist(), self.drafted
        logits, states = dict[int, Row](), dict[int, Row]()
        for path, fresh in _descents(parents):
            begin = len(path) - fresh
            self._cells.trim(self.home, self.committed + begin)
            last = path[begin:]
            own = [[row >= request.held and marks[row - request.held] for row in last] for marks in (scored, shown)]
            positions = list(range(self.committed + begin, self.committed + len(path)))
            read = self._cells.read(tokens[last], positions, [[self.home]] * fresh, *own)
            for found, rows, marks in ((logits, read.logits, own[0]), (states, read.states, own[1])):
                found.update(zip(compress(last, marks), rows, strict=True))
        self._cells.trim(self.home, self.committed)
        return RowsRead(_in_order(logits, read.logits), _in_order(states, read.states))

    def _drop(self) -> None:
        for sequence in self._sequences:
            self._cells.trim(sequence, self.committed)
        self._ways.clear()
        self._uncached = False

    def _copy(self, other: Rows, count: int) -> None:
        assert isinstance(other, GgufRows), "rows are copied from a sequence of the same target"
        with self._cells.held():
            self._cells.share(other.home, self.home, count)

    def _gather(self, rows: Ints) -> None:
        end = self.committed + len(rows)
        alone = len(self._sequences) == 1 and not self._uncached
        if alone and self._cells.lengths[self.home] == end:  # all that was drafted is kept: no cell changes
            self._ways.clear()
            return
        with self._cells.held():
            if self._uncached and len(rows):
                none = [False] * len(rows)
                positions = list(range(self.committed, end))
                self._cells.read(self._tokens[self.committed : end], positions, [[self.home]] * len(rows), none, none)
            elif len(rows) and (way := self._ways[rows[-1]]) != self.home:
                self._cells.trim(self.home, self.committed)
                self._cells.share(way, self.home, end)
            self._cells.trim(self.home, end)
            for branch in self._sequences[1:]:
                self._cells.trim(branch, self.committed)
            self._ways.clear()
            self._uncached = False

    def _within_reach(self, length: int) -> int:
        """llama.cpp writes over cells that have left the window."""
        if not self._window or not length:
            return length
        with self._cells.held():
            first, _ = self._cells.reaches(self.home)
        return length if first <= max(0, length - self._window) else 0

    def _truncate(self) -> None:
        with self._cells.held():
            self._drop()

    def check(self) -> None:
        with self._cells.held():
            lengths, home = self._cells.lengths, self.home
            ends = {home: self.committed}
            for row, way in enumerate(self._ways):
                ends[way] = max(ends.get(way, 0), self.committed + 1)
                assert row < self.tentative, f"{len(self._ways)} rows have cells, the draft {self.tentative}"
            assert self._uncached or len(self._ways) == self.tentative, "the tentative rows have cells"
            assert self._ways or lengths[home] == self.committed, (
                f"the text holds {lengths[home]} cells, the sequence {self.committed} rows"
            )
            for sequence in self._sequences:
                first, end = self._cells.reaches(sequence)
                assert end == lengths[sequence], f"sequence {sequence} holds {end} cells instead of {lengths[sequence]}"
                assert end >= ends.get(sequence, 0), f"sequence {sequence} holds {end} cells, the draft needs more"
                assert first == 0 or self._window, f"sequence {sequence} holds no cell of the first {first} tokens"

    def close(self) -> None:
        """Safe in a finalizer, on any thread."""
        self._given()
        self.committed = self.tentative = 0


def _in_order(found: dict[int, Row], like: Row) -> Row:
    """By the numbers of rows."""
    return np.stack([found[row] for row in sorted(found)]) if found else like[:0]


def _descents(parents: Sequence[int]) -> Iterator[tuple[list[int], int]]:
    """Every path from the top to a leaf, and how many rows at its end are not on the path before."""
    children: dict[int, list[int]] = {}
    for row, parent in enumerate(parents):
        children.setdefault(parent, []).append(row)
    waiting = [[row] for row in reversed(children.get(ROOT, ()))]
    fresh = 0
    while waiting:
        path = waiting.pop()
        fresh += 1
        below = children.get(path[-1], ())
        waiting += [[*path, row] for row in reversed(below)]
        if not below:
            yield path, fresh
            fresh = 0
