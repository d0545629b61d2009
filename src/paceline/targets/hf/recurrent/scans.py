"""Recurrences of linear-attention layers over the rows of a draft tree.

Two kinds: the delta rule (`delta_rule`), where a row's change depends on what the state holds for its key, and the
diagonal recurrence of Mamba (`diagonal`), where each number of a state has a separate recurrence. States, inputs and
outputs are floats. A row continues the state of its parent. Its output and its state depend bitwise on its path alone:
they are those of a call for each row of the path, each with the state that the last call left.

The rows are visited in depth-first order (`Visits`), so few states are in memory at a time. Heads are shared by the
``threads`` of `fused.team`. Between operations of torch on as many threads, one is faster: idle threads of both kinds
look for work on the same cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.targets.hf.fused import layout
from paceline.targets.hf.recurrent import table

Table = NDArray[np.int64]
PART_FLOATS = 4096
"""Floats of a part of a head's state that stays in the cache while all rows are computed (diagonal recurrence)."""
SLOT_FLOATS = 16
"""A slot is a multiple of this, so that each begins with a cache line."""


class DeltaRows(NamedTuple):
    """Inputs of the delta rule for n rows, normed and scaled. Each of G key heads serves H/G heads, one after another.
    Rows may lie apart in memory."""

    query: Tensor | None
    """``[n, G, K]``; needed for outputs only."""
    key: Tensor
    """``[n, G, K]``"""
    value: Tensor
    """``[n, H, V]``"""
    decay: Tensor
    """Factors of the state, ``[n, H]`` or ``[n, H, K]``."""
    beta: Tensor
    """``[n, H]``"""
    raw: bool = False
    """Of any type; queries and keys are neither normed nor scaled, and decays are logarithms. On a GPU only: one kernel
    does the rest."""


class DiagonalRows(NamedTuple):
    """Inputs of the diagonal recurrence for n rows. Each of G groups serves H/G heads, one after another."""

    inputs: Tensor
    """The inputs times their step sizes, ``[n, H, P]``."""
    decay: Tensor
    """Factors of the state, ``[n, H]`` (Mamba-2); with rates, step sizes ``[n, H, P]`` (Mamba-1, which has one
    head)."""
    B: Tensor
    """``[n, G, N]``"""
    C: Tensor | None
    """``[n, G, N]``; needed for outputs only."""
    rates: Tensor | None = None
    """A, ``[H, P, N]``: the factors of a state are the exponentials of step sizes times these."""


def outputs_of(rows: DeltaRows | DiagonalRows) -> Tensor:
    """Memory for the outputs of rows."""
    return torch.empty_like(
        rows.value if isinstance(rows, DeltaRows) else rows.inputs, memory_format=torch.contiguous_format
    )


class Visits:
    """The order in which rows are computed, and the slots where their states are in the meantime. A row takes its
    parent's slot if it is the parent's last child, else another one. One object serves all layers of a forward, one
    thread at a time."""

    def __init__(self, parents: Sequence[int] | Table, kept: int | None = None, *, path_only: bool = False) -> None:
        """``parents`` has an earlier row for each row, or -1 for the state before the draft. The state after the row
        ``kept`` is written to memory that the caller gives. With ``path_only``, only the rows of its path are
        computed."""
        self.parents = [int(parent) for parent in parents]
        if not all(-1 <= parent < row for row, parent in enumerate(self.parents)):
            raise ValueError(f"each parent must be an earlier row or -1: {self.parents}")
        if kept is not None and not 0 <= kept < len(self.parents):
            raise ValueError(f"no row {kept} among {len(self.parents)}")
        self.kept = kept
        rows = range(len(self.parents)) if not path_only else [] if kept is None else self.path(kept)
        self.is_path = all(self.parents[row] == before for row, before in zip(rows, [-1, *rows], strict=False))
        self.table, self.slots = self._visits(rows)
        self._scratch = torch.empty(0, dtype=torch.float32, device="cpu")
        self.copies: dict[torch.device, Any] = {}
        """Of the table, on GPUs (`scans_gpu`)."""

    def path(self, row: int) -> list[int]:
        """A row's ancestors, from the first one, and the row."""
        found = list[int]()
        while row >= 0:
            found.append(row)
            row = self.parents[row]
        return found[::-1]

    def scratch(self, floats: int) -> int:
        """The address of memory for this number of floats."""
        if self._scratch.numel() < floats:
            self._scratch = torch.empty(floats, dtype=torch.float32, device="cpu")
        return self._scratch.data_ptr()

    def _visits(self, rows: Sequence[int]) -> tuple[Table, int]:
        """For each visit the row and the places of the states before and after it; how many slots there are."""
        children = self._children(rows)
        last = {parent: line[-1] for parent, line in children.items()}
        open_, free, slots, found = children.get(-1, [])[::-1], list[int](), 0, list[tuple[int, int, int]]()
        place = {-1: table.BEFORE}
        while open_:
            row = open_.pop()
            parent = self.parents[row]
            before = place[parent]
            if before >= 0 and last[parent] == row:
                free.append(before)
            if row == self.kept:
                place[row] = table.KEPT
            elif free:
                place[row] = free.pop()
            else:
                place[row], slots = slots, slots + 1
            found.append((row, before, place[row]))
            if row in children:
                open_ += children[row][::-1]
            elif place[row] >= 0:
                free.append(place[row])
        return np.array(found, np.int64).reshape(-1, 3), slots

    def _children(self, rows: Sequence[int]) -> dict[int, list[int]]:
        """The children of each row that has some; the one whose descendants need the most slots is the last."""
        children, needs = dict[int, list[int]](), dict[int, int]()
        for row in reversed(rows):
            line = sorted(children.get(row, []), key=lambda child: (needs[child], child))
            own = 0 if row == self.kept else 1
            needs[row] = max(
                [own, *(needs[child] + own for child in line[:-1]), *(needs[child] for child in line[-1:])]
            )
            if line:
                children[row] = line
            children.setdefault(self.parents[row], []).append(row)
        if -1 in children:
            children[-1].reverse()
        return children


def delta_rule(
    visits: Visits,
    state: Tensor,
    rows: DeltaRows,
    outputs: Tensor | None = None,
    final: Tensor | None = None,
    threads: int = 1,
) -> None:
    """Of each head's state ``[H, K, V]``, S: ``S *= decay; S += key (value - S key) beta; output = S query``. Write the
    ``outputs`` ``[n, H, V]`` of all visited rows, and to ``final`` the state after the row that is kept. For a path,
    ``final`` may be ``state``."""
    from paceline.targets.hf.recurrent import kernels
    from paceline.targets.hf.recurrent.steps import WIDE

    heads, size, width = state.shape
    n, groups = len(visits.parents), rows.key.shape[1]
    assert not rows.raw, "normed and scaled"
    job = _job(kernels.delta(), visits, state, outputs, final, threads)
    _sized(outputs, (n, heads, width))
    job[table.LINES], job[table.LINE], job[table.GROUPS] = size, width, groups
    given = [
        _into(job, table.KEY, rows.key, (n, groups, size)),
        _into(job, table.VALUE, rows.value, (n, heads, width)),
        _into(job, table.DECAY, rows.decay, (n, heads, size) if rows.decay.dim() == 3 else (n, heads)),
        _into(job, table.BETA, rows.beta, (n, heads)),
        _read(job, rows.query, (n, groups, size)),
    ]
    job[table.DECAY_STEP] = rows.decay.dim() == 3
    _run(job, visits, min(width, WIDE) * size, given)


def diagonal(
    visits: Visits,
    state: Tensor,
    rows: DiagonalRows,
    outputs: Tensor | None = None,
    final: Tensor | None = None,
    threads: int = 1,
) -> None:
    """Of each head's state ``[H, P, N]``, S: ``S *= decay; S += input B; output = S C``. Write the ``outputs``
    ``[n, H, P]`` of all visited rows, and to ``final`` the state after the row that is kept. For a path, ``final`` may
    be ``state``."""
    from paceline.targets.hf.recurrent import kernels
    from paceline.targets.hf.recurrent.steps import LINES

    heads, width, size = state.shape
    n, groups = len(visits.parents), rows.B.shape[1]
    job = _job(kernels.diagonal(), visits, state, outputs, final, threads)
    _sized(outputs, (n, heads, width))
    job[table.LINES], job[table.LINE], job[table.GROUPS] = width, size, groups
    if rows.rates is not None:
        _sized(rows.rates, (heads, width, size))
        job[table.RATES] = rows.rates.data_ptr()
    job[table.TOGETHER] = together = max(LINES, PART_FLOATS // size // LINES * LINES)
    given = [
        _into(job, table.VALUE, rows.inputs, (n, heads, width)),
        _into(job, table.KEY, rows.B, (n, groups, size)),
        _into(job, table.DECAY, rows.decay, (n, heads) if rows.rates is None else (n, heads, width)),
        _read(job, rows.C, (n, groups, size)),
    ]
    _run(job, visits, min(width, together) * size, given)


def _job(
    function: int, visits: Visits, state: Tensor, outputs: Tensor | None, final: Tensor | None, threads: int
) -> Table:
    """The fields that jobs of both kinds share."""
    _sized(state, tuple(state.shape))
    _sized(final, tuple(state.shape))
    assert (final is None) == (visits.kept is None), "a state is kept where there is memory for it"
    if final is not None and final.data_ptr() == state.data_ptr():
        assert visits.is_path, "rows of other branches still need the state before the draft"
    job = np.zeros(table.JOB, np.int64)
    job[layout.FUNCTION], job[layout.THREADS] = function, threads
    job[table.VISITS], job[table.COUNT], job[table.SLOTS] = visits.table.ctypes.data, len(visits.table), visits.slots
    job[table.HEADS], job[table.STATE] = len(state), state.data_ptr()
    job[table.FINAL] = 0 if final is None else final.data_ptr()
    job[table.OUT] = 0 if outputs is None else outputs.data_ptr()
    return job


def _sized(tensor: Tensor | None, sizes: tuple[int, ...]) -> None:
    """Check the form of a tensor that the kernels read or write as one piece of memory."""
    if tensor is None:
        return
    assert tensor.shape == sizes, f"{tuple(tensor.shape)} instead of {sizes}"
    assert tensor.dtype == torch.float32 and tensor.device.type == "cpu", f"{tensor.dtype} on {tensor.device}"
    assert tensor.is_contiguous(), "in one piece"


def _into(job: Table, field: int, rows: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Say where rows are; the tensor that has them there."""
    rows = piece(rows, sizes)
    assert rows.dtype == torch.float32 and rows.device.type == "cpu", f"{rows.dtype} on {rows.device}"
    job[field], job[field + table.QUERY_ROW - table.QUERY] = rows.data_ptr(), rows.stride(0)
    return rows


def piece(rows: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Rows of these sizes, each in one piece of memory."""
    assert rows.shape == sizes, f"{tuple(rows.shape)} instead of {sizes}"
    return rows if rows.stride()[1:] == _steps(sizes[1:]) else rows.contiguous()


def _read(job: Table, rows: Tensor | None, sizes: tuple[int, ...]) -> Tensor | None:
    """Say where the queries or C are, which only outputs need."""
    if rows is not None:
        return _into(job, table.QUERY, rows, sizes)
    assert not job[table.OUT], "outputs need it"
    return None


@cache
def _steps(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Floats from one number of a dimension to the next, in one piece."""
    return tuple(prod(sizes[place + 1 :]) for place in range(len(sizes)))


def _run(job: Table, visits: Visits, floats: int, given: Sequence[Tensor | None]) -> None:
    """Compute. A part of a state has at most ``floats`` floats. ``given`` holds the tensors whose addresses are in the
    job."""
    from paceline.targets.hf.fused.team import TEAM

    if not len(visits.table):
        return
    slot = -(-floats // SLOT_FLOATS) * SLOT_FLOATS
    job[table.SLOT] = 4 * slot
    job[table.SCRATCH] = visits.scratch(slot * visits.slots * int(job[layout.THREADS]))
    TEAM.run(job)
