"""What numba's Python does not say: memory by its address, bits of floats, atomic counters, and products of integers
in the processor's vector instructions.

The inner loop of a product is written in LLVM's code. Rows of 16-bit integers are multiplied with weights of 8-bit
integers and added up in 32 bits, where nothing overflows, so the sums are exact in any order.
"""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core.registry import cpu_target
from numba.extending import intrinsic

BYTE, SHORT, INT, LONG = (ir.IntType(bits) for bits in (8, 16, 32, 64))
FLOAT = ir.FloatType()
SOURCES = sorted(Path(__file__).parent.glob("*.py"))
DIGEST = hashlib.sha256(b"".join(source.read_bytes() for source in SOURCES)).hexdigest()
"""Of all that functions are compiled from. Numba itself looks only at the file that a function stands in."""

Built = tuple[Any, Callable[..., Any]]


def compiled(**options: Any) -> Callable[[Any], Any]:
    """Compiles a function when it is first called, and keeps that for later processes, if there is a place for it."""

    def decorate(function: Any) -> Any:
        how = {"nogil": True, "error_model": "numpy", **options}  # a division by 0 is no exception
        try:
            made = njit(cache=True, **how)(function)
            made._cache._cache_file._source_stamp = DIGEST
        except (RuntimeError, AttributeError):  # there is no folder that can be written, or another cache
            return njit(**how)(function)
        return made

    return decorate


# --- memory and bits -------------------------------------------------------------------------------------------


def _pointer(kind: Any) -> Any:
    """Makes a pointer of an address."""

    @intrinsic  # type: ignore[untyped-decorator]
    def pointer(context: Any, address: Any) -> Built:
        made = types.CPointer(kind)

        def build(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            return builder.inttoptr(given[0], context.get_value_type(made))

        return made(types.int64), build

    return pointer


shorts_at, ints_at, longs_at = _pointer(types.int16), _pointer(types.int32), _pointer(types.int64)
floats_at, doubles_at = _pointer(types.float32), _pointer(types.float64)


def _recast(given: Any, made: Any) -> Any:
    """Reads the bits of a value as those of another type."""

    @intrinsic  # type: ignore[untyped-decorator]
    def recast(context: Any, value: Any) -> Built:
        def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            return builder.bitcast(values[0], context.get_value_type(made))

        return made(given), build

    return recast


long_of, double_of = _recast(types.float64, types.int64), _recast(types.int64, types.float64)
float_of = _recast(types.int32, types.float32)


@intrinsic  # type: ignore[untyped-decorator]
def load(context: Any, address: Any) -> Built:
    """The counter at an address; all that was written before it was raised is there."""

    def build(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(given[0], LONG.as_pointer()), "seq_cst", 8)

    return types.int64(types.int64), build


@intrinsic  # type: ignore[untyped-decorator]
def add(context: Any, address: Any, value: Any) -> Built:
    """Raise the counter at an address."""

    def build(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.atomic_rmw("add", builder.inttoptr(given[0], LONG.as_pointer()), given[1], "seq_cst")

    return types.int64(types.int64, types.int64), build


# --- functions of LLVM and the system ---------------------------------------------------------------------------


def _function(builder: Any, name: str, made: Any, given: list[Any]) -> Any:
    known = builder.module.globals.get(name)
    return known or ir.Function(builder.module, ir.FunctionType(made, given), name)


def _of_one(name: str, kind: Any) -> Any:
    """A function of one number."""

    @intrinsic  # type: ignore[untyped-decorator]
    def call(context: Any, value: Any) -> Built:
        def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            value_type = context.get_value_type(kind)
            return builder.call(_function(builder, name, value_type, [value_type]), values)

        return kind(kind), build

    return call


def _of_none(name: str) -> Any:
    """A function without arguments, whatever it returns."""

    @intrinsic  # type: ignore[untyped-decorator]
    def call(context: Any) -> Built:
        def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            builder.call(_function(builder, name, ir.VoidType(), []), [])
            return context.get_dummy_value()

        return types.void(), build

    return call


round_even, root = _of_one("llvm.rint.f32", types.float32), _of_one("llvm.sqrt.f64", types.float64)


def features() -> frozenset[str]:
    """The instruction sets that products use, by LLVM's names: those that numba compiles for, which may be fewer than
    the processor has."""
    found = cpu_target.target_context.codegen()._get_host_cpu_features().split(",")
    return frozenset(name for name in ("avx2", "avx512bw", "avx512vnni") if f"+{name}" in found)


IS_X86 = platform.machine().lower() in ("x86_64", "amd64")
pause = _of_none("llvm.x86.sse2.pause" if IS_X86 else "sched_yield")
"""A moment's rest of a thread that looks at a counter again and again."""
yields = pause if sys.platform == "win32" else _of_none("sched_yield")
"""Leaves the processor to others."""


# --- products of integers ---------------------------------------------------------------------------------------


class Multiply:
    """Emits the multiplication of vectors of 16-bit integers; pairs of products are added to sums of 32 bits."""

    def __init__(self, sets: frozenset[str]) -> None:
        self.values = 32 if "avx512bw" in sets else 16
        """Of a vector."""
        self._is_one = {"avx512bw", "avx512vnni"} <= sets
        """Whether one instruction multiplies and adds."""
        self._adds_pairs = "avx2" in sets
        self.shorts, self.bytes = ir.VectorType(SHORT, self.values), ir.VectorType(BYTE, self.values)
        self.sums = ir.VectorType(INT, self.values // 2)

    def added(self, builder: Any, total: Any, one: Any, other: Any) -> Any:
        """``total`` and the products of two vectors."""
        if self._is_one:
            function = _function(builder, "llvm.x86.avx512.vpdpwssd.512", self.sums, [self.sums] * 3)
            return builder.call(function, [total, *(builder.bitcast(each, self.sums) for each in (one, other))])
        if self._adds_pairs:
            name = "llvm.x86.avx512.pmaddw.d.512" if self.values == 32 else "llvm.x86.avx2.pmadd.wd"
            function = _function(builder, name, self.sums, [self.shorts] * 2)
            return builder.add(total, builder.call(function, [one, other]))
        half = self.values // 2
        for first in (0, half):
            part = ir.Constant(ir.VectorType(INT, half), list(range(first, first + half)))
            pieces = (builder.shuffle_vector(each, each, part) for each in (one, other))
            one_wide, other_wide = (builder.sext(piece, self.sums) for piece in pieces)
            total = builder.add(total, builder.mul(one_wide, other_wide))
        return total

    def total(self, builder: Any, sums: Any) -> Any:
        name = f"llvm.vector.reduce.add.v{self.values // 2}i32"
        return builder.call(_function(builder, name, INT, [self.sums]), [sums])


MULTIPLY = Multiply(features())
AHEAD = 4
"""The outputs behind those of a tile that are asked for ahead."""


def tile(count: int, outputs: int) -> Any:
    """The product of ``count`` rows with ``outputs`` outputs of a weight, scaled and stored as floats::

        tile(weight, rows, inputs, scales, steps, bias, result, stride)

    All are addresses but the number of ``inputs``, which vectors divide, and the ``stride`` from one row of results to
    the next. A ``bias`` of 0 is none.
    """
    signature = types.void(*[types.int64] * 8)

    @intrinsic  # type: ignore[untyped-decorator]
    def product(
        context: Any, weight: Any, rows: Any, inputs: Any, scales: Any, steps: Any, bias: Any, result: Any, stride: Any
    ) -> Built:
        def build(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            _Tile(builder, count, outputs).build(*given)
            return context.get_dummy_value()

        return signature, build

    return product


class _Tile:
    """Emits one tile."""

    def __init__(self, builder: Any, count: int, outputs: int) -> None:
        self._builder, self._count, self._outputs = builder, count, outputs

    def build(
        self, weight: Any, rows: Any, inputs: Any, scales: Any, steps: Any, bias: Any, result: Any, stride: Any
    ) -> None:
        sums = self._loop(weight, rows, inputs)
        builder = self._builder
        for output in range(self._outputs):
            scale = self._float(scales, output)
            for row in range(self._count):
                total = builder.sitofp(MULTIPLY.total(builder, sums[row][output]), FLOAT)
                value = builder.fmul(builder.fmul(total, scale), self._float(steps, row))
                into = builder.add(builder.mul(stride, _long(row)), _long(output))
                place = self._at(builder.add(result, builder.shl(into, _long(2))), FLOAT)
                with builder.if_else(builder.icmp_signed("!=", bias, _long(0))) as (then, otherwise):
                    with then:
                        builder.store(builder.fadd(value, self._float(bias, output)), place)
                    with otherwise:
                        builder.store(value, place)

    def _loop(self, weight: Any, rows: Any, inputs: Any) -> list[list[Any]]:
        """Sums by row and output, each spread over a vector. A pass takes a vector of each output, and asks for
        those of the tile behind this one: outputs are too short for the processor to see where they go on."""
        builder = self._builder
        doubled = builder.shl(inputs, _long(1))
        weights = [builder.add(weight, builder.mul(inputs, _long(output))) for output in range(self._outputs)]
        places = [builder.add(rows, builder.mul(doubled, _long(row))) for row in range(self._count)]
        before, loop, done = builder.block, builder.append_basic_block("inputs"), builder.append_basic_block("summed")
        ahead = builder.mul(inputs, _long(AHEAD))
        builder.branch(loop)
        builder.position_at_end(loop)
        first = builder.phi(LONG)
        first.add_incoming(_long(0), before)
        totals = [[builder.phi(MULTIPLY.sums) for _ in range(self._outputs)] for _ in range(self._count)]
        lines = [builder.add(place, first) for place in weights]
        for line in lines:
            self._prefetch(builder.add(line, ahead))
        widened = [
            builder.sext(builder.load(self._at(line, MULTIPLY.bytes), align=1), MULTIPLY.shorts) for line in lines
        ]
        offset, sums = builder.shl(first, _long(1)), []
        for row_totals, place in zip(totals, places, strict=True):
            row = builder.load(self._at(builder.add(place, offset), MULTIPLY.shorts), align=2)
            pairs = zip(row_totals, widened, strict=True)
            sums.append([MULTIPLY.added(builder, total, row, values) for total, values in pairs])
        following = builder.add(first, _long(MULTIPLY.values))
        first.add_incoming(following, loop)
        none = ir.Constant(MULTIPLY.sums, [0] * (MULTIPLY.values // 2))
        for line, found_line in zip(totals, sums, strict=True):
            for total, value in zip(line, found_line, strict=True):
                total.add_incoming(none, before)
                total.add_incoming(value, loop)
        builder.cbranch(builder.icmp_signed("<", following, inputs), loop, done)
        builder.position_at_end(done)
        return sums

    def _prefetch(self, address: Any) -> None:
        kinds = [BYTE.as_pointer(), INT, INT, INT]
        function = _function(self._builder, "llvm.prefetch.p0", ir.VoidType(), kinds)
        flags = [ir.Constant(INT, value) for value in (0, 3, 1)]  # to be read, kept, data
        self._builder.call(function, [self._at(address, BYTE), *flags])

    def _at(self, address: Any, kind: Any) -> Any:
        return self._builder.inttoptr(address, kind.as_pointer())

    def _float(self, address: Any, number: int) -> Any:
        return self._builder.load(self._at(self._builder.add(address, _long(4 * number)), FLOAT))


def _long(value: int) -> Any:
    return ir.Constant(LONG, value)
