"""The recurrences of `scans` on a GPU: one launch for the rows of all sequences of a forward.

States, inputs and outputs are those of `scans`, with a dimension of sequences in front of the states. Here, too, a
row's output and its state depend bitwise on its path alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline import launching
from paceline.targets.hf.recurrent import table
from paceline.targets.hf.recurrent.scans import DeltaRows, DiagonalRows, Table, Visits, piece

PART_FLOATS = 1024
"""Floats of a state in one program. One warp computes it, so no sum waits for another warp."""
LEAST_BLOCK = 4
"""Columns, or lines, that a program takes at least."""
ALIGNED = 16
"""Bytes. States begin at a multiple of this, so that the same code computes all of them."""


class VisitTable:
    """The visits of several sequences, copied to a device once for all layers of a forward."""

    def __init__(self, parts: Sequence[tuple[Visits, int]], device: torch.device) -> None:
        """Of each sequence its visits, and the number of its first row among the rows of the forward."""
        found = [_in_registers(visits.table, first) for visits, first in parts]
        starts = np.cumsum([0, *map(len, found)])
        numbers = np.concatenate([starts, *(visits.ravel() for visits in found)]).astype(np.int32)
        self.numbers = torch.from_numpy(numbers).to(device)
        self.sequences, self.device = len(parts), device
        self.slots = max((int(visits[:, 2].max(initial=-1)) + 1 for visits in found), default=0)
        self.keeps = any(visits.kept is not None for visits, _ in parts)
        self.are_paths = all(visits.is_path for visits, _ in parts)

    @classmethod
    def of(cls, visits: Visits, device: torch.device) -> VisitTable:
        """That of one sequence, whose rows are all rows."""
        if device not in visits.copies:
            visits.copies[device] = cls([(visits, 0)], device)
        found = visits.copies[device]
        assert isinstance(found, cls), "nothing else is kept there"
        return found


def _in_registers(visits: Table, first: int) -> Table:
    """Visits without the places of states that stay in registers. The numbers of the rows begin with ``first``."""
    found, awaited = visits.copy(), set[int]()
    for number in reversed(range(len(visits))):
        _, source, target = visits[number].tolist()
        if target >= 0 and target not in awaited:
            found[number, 2] = table.NOWHERE
        awaited.discard(target)
        if number and source == visits[number - 1, 2]:
            found[number, 1] = table.HERE
        else:
            awaited.add(source)
    found[:, 0] += first
    return found


def scan(
    visits: VisitTable,
    states: Tensor,
    rows: DeltaRows | DiagonalRows,
    outputs: Tensor | None = None,
    finals: Tensor | None = None,
) -> None:
    """The recurrence that has such rows."""
    if isinstance(rows, DeltaRows):
        delta_rule(visits, states, rows, outputs, finals)
    else:
        diagonal(visits, states, rows, outputs, finals)


def delta_rule(
    visits: VisitTable, states: Tensor, rows: DeltaRows, outputs: Tensor | None = None, finals: Tensor | None = None
) -> None:
    """`scans.delta_rule` from the states ``[sequences, H, K, V]``. To ``finals`` the states after the rows that are
    kept are written, for the sequences that keep one."""
    from paceline.targets.hf.recurrent import kernels_gpu

    _, heads, size, width = states.shape
    n, groups = rows.key.shape[:2]
    channels, pad = rows.decay.dim() == 3, power(size)
    assert rows.query is not None, "the same code computes rows with and without outputs"
    given = [
        piece(rows.query, (n, groups, size)),
        piece(rows.key, (n, groups, size)),
        piece(rows.value, (n, heads, width)),
        piece(rows.decay, (n, heads, size) if channels else (n, heads)),
        piece(rows.beta, (n, heads)),
    ]
    constants = {"SIZE": size, "WIDTH": width, "PAD": pad, "BLOCK": _block(width, pad)}
    constants |= {"HEADS": heads, "SERVED": heads // groups, "RAW": rows.raw, "CHANNELS": channels}
    shape, more = (n, heads, width), (size**-0.5,)
    _run(kernels_gpu.delta, visits, states, given, (), outputs, shape, finals, more, constants)


def diagonal(
    visits: VisitTable,
    states: Tensor,
    rows: DiagonalRows,
    outputs: Tensor | None = None,
    finals: Tensor | None = None,
) -> None:
    """`scans.diagonal` from the states ``[sequences, H, P, N]``."""
    from paceline.targets.hf.recurrent import kernels_gpu

    _, heads, lines, size = states.shape
    n, groups = rows.B.shape[:2]
    full, pad = rows.rates is not None, power(size)
    assert rows.C is not None, "the same code computes rows with and without outputs"
    given = [
        piece(rows.C, (n, groups, size)),
        piece(rows.B, (n, groups, size)),
        piece(rows.inputs, (n, heads, lines)),
        piece(rows.decay, (n, heads, lines) if full else (n, heads)),
    ]
    rates = states if rows.rates is None else rows.rates.contiguous()
    constants = {"LINES": lines, "SIZE": size, "PAD": pad, "BLOCK": _block(lines, pad)}
    constants |= {"HEADS": heads, "SERVED": heads // groups, "FULL": full}
    _run(kernels_gpu.diagonal, visits, states, given, (rates,), outputs, (n, heads, lines), finals, (), constants)


def power(size: int) -> int:
    """The least power of two that is not below ``size``, and not below `LEAST_BLOCK`."""
    return max(LEAST_BLOCK, 1 << (size - 1).bit_length())


def _block(width: int, pad: int) -> int:
    """Columns of a state, each of ``pad`` numbers, in one program."""
    return min(power(width), max(LEAST_BLOCK, PART_FLOATS // pad))


def _run(
    kernel: Any,
    visits: VisitTable,
    states: Tensor,
    given: Sequence[Tensor],
    fixed: Sequence[Tensor],
    outputs: Tensor | None,
    shape: tuple[int, ...],
    finals: Tensor | None,
    more: tuple[float, ...],
    constants: dict[str, int],
) -> None:
    """Start a kernel. ``given`` has an entry for each row, ``fixed`` has not."""
    _check(visits, states, outputs, shape, finals)
    values = given[2]
    assert outputs is None or outputs.dtype == values.dtype, "the same code computes rows with and without outputs"
    if not len(states):
        return
    if states.data_ptr() % ALIGNED:
        states = states.clone()
    scratch = states if not visits.slots else states.new_empty((visits.slots, *states.shape))
    strides = (rows.stride(0) for rows in given)
    launching.launch(
        kernel,
        (-(-shape[2] // constants["BLOCK"]), shape[1], visits.sequences),
        *(states, scratch, states if finals is None else finals, visits.numbers),
        *(*given, *fixed, values if outputs is None else outputs),
        *(*strides, int(outputs is not None), *more),
        **constants,
        num_warps=1,
        num_stages=1,
    )


def _check(
    visits: VisitTable, states: Tensor, outputs: Tensor | None, shape: tuple[int, ...], finals: Tensor | None
) -> None:
    assert len(states) == visits.sequences, f"{len(states)} states of {visits.sequences} sequences"
    assert finals is not None or not visits.keeps, "a state is kept where there is memory for it"
    for tensor, sizes in ((states, states.shape), (finals, states.shape)):
        if tensor is not None:
            assert tensor.shape == sizes, f"{tuple(tensor.shape)} instead of {tuple(sizes)}"
            assert tensor.dtype == torch.float32 and tensor.is_contiguous(), "floats in one piece"
    if finals is not None:
        assert finals.data_ptr() % ALIGNED == 0, "the same code computes all states"
    if finals is not None and finals.data_ptr() == states.data_ptr():
        assert visits.are_paths, "rows of other branches still need the state before the draft"
    if outputs is not None:
        assert outputs.shape == shape and outputs.is_contiguous(), f"{tuple(outputs.shape)} instead of {shape}"
