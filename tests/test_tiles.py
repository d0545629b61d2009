"""Every way to multiply bytes that this processor can run, also those that it would not choose."""

from __future__ import annotations

import ctypes
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from paceline.targets.hf.integers import kernels

if kernels.without_numba() is not None:
    pytest.skip(f"nothing is compiled here: {kernels.without_numba()}", allow_module_level=True)

from numba import cfunc

from paceline.targets.hf.fused import layout as at
from paceline.targets.hf.fused import products
from paceline.targets.hf.fused.instructions import FOURS, INSTRUCTION_SETS, Fours, Pairs
from paceline.targets.hf.fused.tiles import CACHE_LINE_BYTES, BytesByFours, BytesByPairs, Tile
from paceline.targets.hf.fused.weights import together


def by_pairs(*sets: str) -> type[Tile]:
    """As on a processor with these instructions and no others."""
    pairs = Pairs(frozenset(sets), wide=True)

    class Other(BytesByPairs):
        VECTORS = pairs
        STEP = STEP_BYTES = pairs.values

    return Other


class OfHalfAVector(BytesByFours):
    """As with AVX-VNNI, which has vectors of 32 bytes."""

    VECTORS = Fours(32)
    STEP = STEP_BYTES = 32
    SPLIT: ClassVar = {4: 2, 2: 4, 1: 4}


def ways() -> list[type[Tile]]:
    found: list[type[Tile]] = [BytesByPairs, by_pairs()]
    kinds = (("avx2",), ("avx2", "avx512bw"), ("avx2", "avx512bw", "avx512vnni"))
    found += [by_pairs(*sets) for sets in kinds if INSTRUCTION_SETS.issuperset(sets)]
    if FOURS is not None:
        found.append(BytesByFours)
    if "avx512vl" in INSTRUCTION_SETS and "avx512vnni" in INSTRUCTION_SETS:
        found.append(OfHalfAVector)
    return found


def compiled(kind: Any) -> Any:
    product = products._of(kind)

    @cfunc(products.GIVEN)  # type: ignore[untyped-decorator]
    def run(
        linear: int, inputs: int, first: int, last: int, rows: int, steps: int, count: int, result: int, stride: int
    ) -> None:
        product(linear, inputs, first, last, rows, steps, count, result, stride)

    return run


def multiplied(run: Any, kind: Any, weight: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    outputs, inputs = weight.shape
    memory, scales = together(weight ^ kind.ZERO, kind.STEP_BYTES), torch.ones(outputs)
    if kind.FORM == at.SHORTS:
        given = rows.to(torch.int16).contiguous()
    else:
        totals = torch.zeros(len(rows), CACHE_LINE_BYTES // 4, dtype=torch.int32)
        totals[:, 0] = rows.sum(1)
        given = torch.cat((rows.to(torch.int8), totals.view(torch.int8)), dim=1).contiguous()
    linear = np.zeros(at.LINEAR, np.int64)
    linear[at.WEIGHT], linear[at.SCALES] = memory.data_ptr(), scales.data_ptr()
    found, steps = torch.full((len(rows), outputs), torch.nan), torch.ones(len(rows))
    places = linear.ctypes.data, inputs, 0, outputs, given.data_ptr(), steps.data_ptr(), len(rows), found.data_ptr()
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 9)(run.address)(*places, outputs)
    return found


@pytest.mark.parametrize("kind", ways())
def test_every_way_finds_the_sums_also_the_largest(kind: Any) -> None:
    run = compiled(kind)
    for outputs, inputs in ((1, 64), (7, 192), (12, 1088)):
        weight = torch.randint(-128, 128, (outputs, inputs), dtype=torch.int8)
        weight[0] = -128
        weight[-1, 1::2] = 127
        for count in (1, 2, 3, 4, 5, 7, 8, 13):
            rows = torch.randint(-127, 128, (count, inputs))
            rows[0] = 127
            rows[-1, ::2] = -127
            assert torch.equal(multiplied(run, kind, weight, rows), (rows @ weight.long().t()).float())


def test_the_instruction_is_used_where_the_processor_has_it() -> None:
    assert Fours.of(frozenset({"avx2", "fma"})) is None
    wide, narrow = Fours.of(frozenset({"avx512bw", "avx512vnni"})), Fours.of(frozenset({"avx2", "avxvnni"}))
    assert wide is not None
    assert narrow is not None
    assert (wide.values, narrow.values) == (64, 32)
