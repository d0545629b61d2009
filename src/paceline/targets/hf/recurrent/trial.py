"""Whether the kernels of recurrences can be used for a layer: they compile for its sizes, they compute what
transformers' function for one token computes in floats, and a row of theirs depends bitwise on its path alone."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from typing import NamedTuple

import torch

from paceline import launching
from paceline.once import once
from paceline.targets.hf.recurrent import scans_gpu
from paceline.targets.hf.recurrent.kinds import Function, Given, Recurrence
from paceline.targets.hf.recurrent.scans import Visits, outputs_of

PARENTS = (-1, 0, 0, 1, 3, -1, 2)
"""Of the rows that are tried."""
KEPT = (0, 4, 6)
"""Rows whose states are compared."""
CLOSE = 1e-3
"""Share of the largest number by which floats may differ. Sums have another order, and torch may multiply in TF32."""
STEPS = 2
"""Roundings of a narrower type by which outputs may differ."""
SIGNED = {"g": -1.0, "dt": 1.0, "beta": 1.0}
"""The signs of arguments that have one: logarithms of decays, step sizes, and shares."""


class _Tried(NamedTuple):
    """A layer's recurrence on a device."""

    whole: Function
    device: torch.device
    state: torch.Size
    rows: tuple[object, ...]
    others: tuple[object, ...]


_tried: dict[_Tried, str | None] = {}


def obstacle(kind: Recurrence, given: Given, state: torch.Tensor) -> str | None:
    """Why the kernels cannot be used for such rows and such a state; None where they can."""
    sizes = tuple((name, rows.dtype, rows.shape[1:]) for name, rows in given.rows.items())
    others = tuple((name, None if value is None else value is not False) for name, value in given.others.items())
    key = _Tried(kind.whole, state.device, state.shape, sizes, others)
    if key not in _tried:
        _tried[key] = _reason(kind, given, state)
    return _tried[key]


def obstacles(homes: Container[str], device: str) -> list[str]:
    """The reasons so far for the layers of these model files on such a device."""
    found = {
        reason
        for tried, reason in _tried.items()
        if reason is not None and tried.whole.__module__ in homes and tried.device.type == device
    }
    return sorted(found)


def _reason(kind: Recurrence, given: Given, state: torch.Tensor) -> str | None:
    if not launching.installed():
        return launching.NOT_INSTALLED
    try:
        with once():
            return _difference(kind, given, state)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # anything that a compiler for an untested device may raise
        return f"{type(error).__name__}: {error}".splitlines()[0]


def _difference(kind: Recurrence, given: Given, state: torch.Tensor) -> str | None:
    random = torch.Generator().manual_seed(0)

    def drawn(like: torch.Tensor, name: str = "", *sizes: int) -> torch.Tensor:
        found = torch.randn((*sizes, *like.shape[len(sizes) :]), generator=random)
        found = found.abs() * SIGNED[name] / 2 if name in SIGNED else found
        return found.to(like.device, like.dtype)

    given = replace(given, rows={name: drawn(rows, name, len(PARENTS)) for name, rows in given.rows.items()})
    state = drawn(state).float()
    wide = replace(given, rows={name: rows.float() for name, rows in given.rows.items()})
    outputs, states = list[torch.Tensor](), {-1: state}
    for row, parent in enumerate(PARENTS):
        out, after = kind.step(wide.at(slice(row, row + 1)), states[parent][None])
        outputs.append(out)
        states[row] = after[0]
    for kept in KEPT:
        visits = Visits(PARENTS, kept)
        found, final = _scanned(kind, given, visits, state)
        if not close(found, torch.cat(outputs)) or not close(final, states[kept]):
            return "kernels differ from torch"
        before = state
        for row in visits.path(kept):
            alone, before = _scanned(kind, given.at(slice(row, row + 1)), Visits([-1], 0), before)
        again = _scanned(kind, given, Visits(PARENTS, kept, path_only=True), state, reads=False)[1]
        if not torch.equal(final, before) or not torch.equal(found[kept], alone[0]) or not torch.equal(final, again):
            return "a row of the kernels depends on other rows"
    return None


def _scanned(
    kind: Recurrence, given: Given, visits: Visits, state: torch.Tensor, *, reads: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """The outputs of rows, and the state after the one that is kept."""
    rows, finish = kind.compiled(given, raw=True)
    final = torch.empty_like(state)
    before, behind = (each if each.dim() == 3 else each[None] for each in (state, final))
    outputs = outputs_of(rows)
    table = scans_gpu.VisitTable.of(visits, state.device)
    scans_gpu.scan(table, before[None], rows, outputs if reads else None, behind[None])
    return finish(outputs), final


def close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether they differ by roundings; what is expected are floats."""
    share = max(CLOSE, STEPS * torch.finfo(found.dtype).eps)
    return bool((found.float() - expected).abs().max() <= share * expected.abs().max())
