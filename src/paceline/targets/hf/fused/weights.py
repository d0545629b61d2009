"""Weights in the order in which compiled products read them."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import torch

from paceline.targets.hf.fused import forward, products
from paceline.targets.hf.fused import layout as at
from paceline.targets.hf.fused.instructions import NARROW
from paceline.targets.hf.fused.stages import reach, size_of
from paceline.targets.hf.fused.team import TEAM
from paceline.targets.hf.fused.tiles import (
    CACHE_LINE_BYTES,
    LEAST_FLOATS,
    OUTPUTS,
    SPAN,
    Brains,
    Bytes,
    Floats,
    Nibbles,
)
from paceline.targets.hf.threads import compiled_threads

PAGE = 1 << 21
"""Bytes of a large page."""


class WeightKind(NamedTuple):
    """The parts of weights, and the function that computes with them."""

    name: str
    form: int
    """Of rows."""
    bits: int
    product: Callable[[], int]
    """The address of the function."""
    head: str
    """The kind of the head's weights."""


FUSED_KINDS = {
    kind.name: kind
    for kind in (
        WeightKind("bytes", Bytes.FORM, 8, products.of_bytes, "bytes"),
        WeightKind("nibbles", Nibbles.FORM, 4, products.of_nibbles, "bytes"),
        WeightKind("floats", Floats.FORM, 32, products.of_floats, "floats"),
        WeightKind("brains", Brains.FORM, 16, products.of_brains, "brains"),
    )
}
OF_TYPE = {torch.float32: FUSED_KINDS["floats"], torch.bfloat16: FUSED_KINDS["brains"]}


class Weights(NamedTuple):
    """A weight ``[outputs, inputs]``, with a scale for each output where it consists of integers."""

    kind: WeightKind
    outputs: int
    inputs: int
    """Of these, those that were added are zeros."""
    memory: torch.Tensor
    scales: torch.Tensor | None = None
    multipliers: torch.Tensor | None = None
    """Of groups: whole numbers of 16 bits."""

    def at(self, first: int, bias: int) -> tuple[int, int, int, int, int]:
        """Addresses of the product, of the outputs from ``first`` on, and of a bias."""
        place = self.memory.data_ptr() + first * self.inputs * self.kind.bits // 8
        scales = 0 if self.scales is None else self.scales.data_ptr() + 4 * first
        groups = 0 if self.multipliers is None else self.multipliers[first:].data_ptr()
        return self.kind.product(), place, scales, bias, groups


def can_be(kind: WeightKind, inputs: int) -> bool:
    """Whether a weight of ``inputs`` inputs can be computed: vectors divide floats, and to integers zeros are added."""
    return kind.form != at.FLOATS or inputs % LEAST_FLOATS == 0


def padded(kind: WeightKind, inputs: int) -> int:
    """Inputs with the zeros that are added to them."""
    return int(reach.py_func(inputs, kind.form))


def of_floats(weight: torch.Tensor) -> Weights | None:
    """A weight as it is, row by row."""
    kind = OF_TYPE.get(weight.dtype)
    if kind is None or not weight.is_contiguous() or not can_be(kind, weight.shape[1]):
        return None
    return Weights(kind, len(weight), weight.shape[1], weight)


def of_bytes(weight: torch.Tensor, scales: torch.Tensor) -> Weights:
    """A weight of 8-bit integers: the steps of some outputs by turns, and what is left of the outputs row by row."""
    outputs, inputs = weight.shape
    wide = padded(FUSED_KINDS["bytes"], inputs)
    whole = weight if wide == inputs else torch.nn.functional.pad(weight, (0, wide - inputs))
    memory = in_large_pages(together(whole ^ Bytes.ZERO, Bytes.STEP_BYTES))
    return Weights(FUSED_KINDS["bytes"], outputs, wide, memory, scales.float().contiguous())


def bytes_of(weights: Weights) -> torch.Tensor:
    """The integers of `of_bytes`, those that were added included."""
    return apart(weights.memory, weights.outputs, weights.inputs, Bytes.STEP_BYTES) ^ Bytes.ZERO


def of_nibbles(values: torch.Tensor, multipliers: torch.Tensor, scales: torch.Tensor) -> Weights:
    """A weight of integers from -8 to 7, each ``[outputs, inputs]``, of whole numbers that its groups are multiplied
    with, ``[outputs, groups]``, and of a scale for each output. `groups_of` says which inputs are a group."""
    outputs, inputs = values.shape
    wide = padded(FUSED_KINDS["nibbles"], inputs)
    raised = torch.full((outputs, wide), 8, dtype=torch.uint8)
    raised[:, :inputs] = values + 8
    steps = raised.view(outputs, -1, 2, Nibbles.STEP_BYTES)
    both = (steps[:, :, 0] | steps[:, :, 1] << 4).view(outputs, -1)
    memory = in_large_pages(together(both, Nibbles.STEP_BYTES).view(torch.int8))
    lines = multipliers.to(torch.int16).contiguous()
    return Weights(FUSED_KINDS["nibbles"], outputs, wide, memory, scales.float().contiguous(), lines)


def nibbles_of(weights: Weights) -> torch.Tensor:
    """The integers of `of_nibbles`, those that were added included."""
    outputs, inputs = weights.outputs, weights.inputs
    both = apart(weights.memory.view(torch.uint8), outputs, inputs // 2, Nibbles.STEP_BYTES)
    steps = both.view(outputs, -1, 1, Nibbles.STEP_BYTES)
    halves = torch.cat((steps & 15, steps >> 4), dim=2)
    return halves.view(outputs, inputs).to(torch.int8) - 8


def groups_of(inputs: int) -> torch.Tensor:
    """The number of the group of each input of a weight of 4 bits."""
    numbers = torch.arange(inputs, device="cpu")
    pairs = NARROW.values
    return numbers // SPAN * pairs + numbers % (2 * pairs) // 2


def together(weight: torch.Tensor, step: int) -> torch.Tensor:
    """The steps of some outputs by turns."""
    outputs, size = weight.shape
    whole = outputs // OUTPUTS * OUTPUTS
    turns = weight[:whole].view(-1, OUTPUTS, size // step, step).transpose(1, 2)
    return torch.cat((turns.reshape(-1), weight[whole:].reshape(-1)))


def apart(memory: torch.Tensor, outputs: int, size: int, step: int) -> torch.Tensor:
    """The opposite of `together`."""
    whole = outputs // OUTPUTS * OUTPUTS
    turns = memory[: whole * size].view(-1, size // step, OUTPUTS, step).transpose(1, 2)
    return torch.cat((turns.reshape(-1), memory[whole * size :])).view(outputs, size)


def in_large_pages(memory: torch.Tensor) -> torch.Tensor:
    """The same in memory that is read fast from end to end: of small pages a processor forgets where they lie."""
    if memory.numel() < PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return memory.contiguous()
    room = mmap.mmap(-1, memory.numel() + PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a system without them
        room.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(room, np.int8)
    first = -whole.ctypes.data % PAGE
    moved = torch.from_numpy(whole[first : first + memory.numel()]).view(memory.shape)
    return moved.copy_(memory)


def product(rows: torch.Tensor, weights: Weights) -> torch.Tensor:
    """Scaled sums ``[n, outputs]`` of rows ``[n, inputs]`` of whole numbers, or of floats where the weight has them."""
    steps = torch.ones(len(rows), dtype=torch.float32, device="cpu")
    return _computed(_prepared(rows, weights), weights, len(rows), steps)


def rounded_product(rows: torch.Tensor, weights: Weights) -> torch.Tensor:
    """The product ``[n, outputs]`` of rows ``[n, inputs]`` of floats, each rounded to whole numbers of a step of its
    own, with a weight of integers."""
    form, given = weights.kind.form, rows.to(torch.float32, copy=True).contiguous()  # what is no number becomes 0
    size = int(size_of.py_func(weights.inputs, form))
    room = torch.empty(len(rows) * size, dtype=torch.int8, device="cpu")
    return _computed(room, weights, len(rows), torch.empty(len(rows), dtype=torch.float32, device="cpu"), given)


def _computed(
    prepared: torch.Tensor, weights: Weights, count: int, steps: torch.Tensor, given: torch.Tensor | None = None
) -> torch.Tensor:
    """A product of prepared rows, or of those that are ``given`` and prepared now."""
    found = torch.empty(count, weights.outputs, dtype=torch.float32, device="cpu")  # whatever torch's default is
    if not count:
        return found  # products divide by the number of rows
    job = np.zeros(at.JOB, np.int64)
    job[at.FUNCTION], job[at.THREADS], job[at.COUNT] = forward.product(), compiled_threads(), count
    job[at.FORM], job[at.WIDTH], job[at.VOCABULARY] = weights.kind.form, weights.inputs, weights.outputs
    if given is not None:
        job[at.STATES], job[at.WIDTH] = given.data_ptr(), given.shape[1]
    job[at.UNEMBEDDING : at.UNEMBEDDING + at.LINEAR] = weights.at(0, 0)
    job[at.PREPARED], job[at.STEPS], job[at.LOGITS] = prepared.data_ptr(), steps.data_ptr(), found.data_ptr()
    TEAM.run(job)
    return found


def _prepared(rows: torch.Tensor, weights: Weights) -> torch.Tensor:
    """Rows in the form in which a product reads them."""
    if weights.kind.form == at.FLOATS:
        return rows.float().contiguous()
    if weights.kind.form == at.SHORTS:
        return torch.nn.functional.pad(rows.to(torch.int16), (0, weights.inputs - rows.shape[1])).contiguous()
    count = len(rows)
    values = torch.zeros(count, weights.inputs, dtype=torch.int8, device="cpu")
    values[:, : rows.shape[1]] = rows
    if weights.kind.form == at.BYTES:
        behind = torch.zeros(count, CACHE_LINE_BYTES // 4, dtype=torch.int32, device="cpu")
        behind[:, 0] = values.sum(1)
    else:
        groups = -(-weights.inputs // SPAN) * NARROW.values
        behind = torch.zeros(count, groups, dtype=torch.int16, device="cpu")
        behind.index_add_(1, groups_of(weights.inputs), values.to(torch.int16))
    return torch.cat((values, behind.view(torch.int8)), dim=1).contiguous()
