"""Operations that numba's Python lacks: memory by its address, bits of floats, atomic counters, LLVM's own
functions."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.registry import cpu_target
from numba.extending import intrinsic

BYTE, SHORT, INT, LONG = (ir.IntType(bits) for bits in (8, 16, 32, 64))
FLOAT = ir.FloatType()
Built = tuple[Any, Callable[..., Any]]


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


bytes_at = _pointer(types.int8)
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
float_of, int_of = _recast(types.int32, types.float32), _recast(types.float32, types.int32)


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


def _caller(count: int) -> Any:
    """Calls the function at an address with ``count`` whole numbers."""
    longs = [types.int64] * count

    def build(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [LONG] * count)
        builder.call(builder.inttoptr(given[0], kind.as_pointer()), given[1:])
        return context.get_dummy_value()

    return types.void(types.int64, *longs), build


@intrinsic  # type: ignore[untyped-decorator]
def call(context: Any, address: Any, job: Any, thread: Any) -> Built:
    """A thread's part of a job, by the function at an address."""
    return _caller(2)  # type: ignore[no-any-return]


@intrinsic  # type: ignore[untyped-decorator]
def multiply(
    context: Any,
    address: Any,
    linear: Any,
    inputs: Any,
    first: Any,
    last: Any,
    rows: Any,
    steps: Any,
    count: Any,
    result: Any,
    stride: Any,
) -> Built:
    """A product, by the function at an address."""
    return _caller(9)  # type: ignore[no-any-return]


@intrinsic  # type: ignore[untyped-decorator]
def mix(
    context: Any,
    address: Any,
    values: Any,
    size: Any,
    seen: Any,
    weights: Any,
    apart: Any,
    count: Any,
    totals: Any,
) -> Built:
    """Values by their weights, by the function at an address."""
    return _caller(7)  # type: ignore[no-any-return]


# --- functions of LLVM and the system ---------------------------------------------------------------------------


def function(builder: Any, name: str, made: Any, given: list[Any]) -> Any:
    known = builder.module.globals.get(name)
    return known or ir.Function(builder.module, ir.FunctionType(made, given), name)


def _of_one(name: str, kind: Any) -> Any:
    """A function of one number."""

    @intrinsic  # type: ignore[untyped-decorator]
    def call(context: Any, value: Any) -> Built:
        def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            value_type = context.get_value_type(kind)
            return builder.call(function(builder, name, value_type, [value_type]), values)

        return kind(kind), build

    return call


def _of_none(name: str) -> Any:
    """A function without arguments, whatever it returns."""

    @intrinsic  # type: ignore[untyped-decorator]
    def call(context: Any) -> Built:
        def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            builder.call(function(builder, name, ir.VoidType(), []), [])
            return context.get_dummy_value()

        return types.void(), build

    return call


@intrinsic  # type: ignore[untyped-decorator]
def fused(context: Any, one: Any, other: Any, more: Any) -> Built:
    """``one * other + more``, rounded once where the processor does that in one instruction."""

    def build(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        double = ir.DoubleType()
        return builder.call(function(builder, "llvm.fmuladd.f64", double, [double] * 3), given)

    return types.float64(*[types.float64] * 3), build


round_even, root = _of_one("llvm.rint.f32", types.float32), _of_one("llvm.sqrt.f64", types.float64)


def features() -> frozenset[str]:
    """The instruction sets that numba compiles for, by LLVM's names. They may be fewer than the processor has."""
    found = cpu_target.target_context.codegen()._get_host_cpu_features().split(",")
    return frozenset(name[1:] for name in found if name.startswith("+"))


IS_X86 = platform.machine().lower() in ("x86_64", "amd64")
pause = _of_none("llvm.x86.sse2.pause" if IS_X86 else "sched_yield")
"""A moment's rest of a thread that looks at a counter again and again."""
yields = pause if sys.platform == "win32" else _of_none("sched_yield")
"""Leaves the processor to others."""
