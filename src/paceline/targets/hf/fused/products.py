"""Products of all rows with some outputs of a weight. A weight is read once: all rows take a few of its outputs."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from paceline.compiled import native
from paceline.targets.hf.fused import layout as at
from paceline.targets.hf.fused.loops import each, long
from paceline.targets.hf.fused.tiles import OUTPUTS, PREFETCHED_BYTES, Brains, Bytes, Floats, Given, Nibbles, Tile
from paceline.targets.hf.fused.vector import FLOAT, INT, LONG, SHORT, Built


class _Product:
    """Emits the product of rows with the outputs ``first .. last`` of a linear layer."""

    def __init__(self, kind: type[Tile], builder: Any, *given: Any) -> None:
        self._kind, self._builder = kind, builder
        linear, self._inputs, self._first, self._last, self._rows, self._steps, *rest = given
        self._count, self._result, self._stride = rest
        fields = (at.WEIGHT, at.SCALES, at.BIAS, at.GROUPS)
        self._weight, self._scales, self._bias, self._groups = (self._load(linear, field) for field in fields)
        self._size, self._row_size = kind.bytes_of(builder, self._inputs), kind.bytes_of_row(builder, self._inputs)

    def emit(self) -> None:
        builder = self._builder
        units = builder.udiv(builder.sub(self._last, self._first), long(OUTPUTS))
        ends = builder.add(self._first, builder.mul(units, long(OUTPUTS)))
        fours = builder.and_(self._count, long(-4))
        self._count_tiles(fours)
        with each(builder, self._first, ends, OUTPUTS) as output:
            with each(builder, long(0), fours, 4) as row:
                self._tiles(output, row, 4)
            for count in (2, 1):
                with builder.if_then(self._has(count)):
                    self._tiles(output, builder.and_(self._count, long(-2 * count)), count)
        with each(builder, ends, self._last, 1) as output, each(builder, long(0), self._count, 1) as row:
            self._tile(output, row, 1, 1, together=False)

    def _has(self, count: int) -> Any:
        """Whether ``count`` rows are left over."""
        return self._builder.icmp_signed("!=", self._builder.and_(self._count, long(count)), long(0))

    def _count_tiles(self, fours: Any) -> None:
        """The number of tiles of the adjacent outputs, and of the first one for each number of rows."""
        builder, parts = self._builder, {count: long(OUTPUTS // outputs) for count, outputs in self._kind.SPLIT.items()}
        twos = builder.mul(builder.lshr(fours, long(2)), parts[4])
        ones = builder.add(twos, builder.select(self._has(2), parts[2], long(0)))
        self._number = {4: long(0), 2: twos, 1: ones}
        tiles = builder.add(ones, builder.select(self._has(1), parts[1], long(0)))
        self._distance = builder.shl(self._size, long(2))
        if self._kind.TOGETHER:  # one tile alone reads on and on
            alone = builder.icmp_signed("==", tiles, long(1))
            self._distance = builder.select(alone, long(PREFETCHED_BYTES), self._distance)
        self._tiles_ask = builder.udiv(builder.shl(self._size, long(2)), tiles)
        self._steps_ask = builder.udiv(long(OUTPUTS * self._kind.STEP_BYTES), tiles)

    def _tiles(self, output: Any, row: Any, count: int) -> None:
        """The adjacent outputs, with ``count`` rows."""
        outputs = self._kind.SPLIT[count]
        for part in range(0, OUTPUTS, outputs):
            self._tile(output, row, count, outputs, part)

    def _tile(self, output: Any, row: Any, count: int, outputs: int, part: int = 0, *, together: bool = True) -> None:
        """``part`` is the number of the tile's first output among those that stand together."""
        builder, kind = self._builder, self._kind
        begin = builder.add(self._weight, builder.mul(output, self._size))
        number = builder.add(output, long(part))
        apart = long(part * kind.STEP_BYTES) if kind.TOGETHER else builder.mul(self._size, long(part))
        weight, groups = builder.add(begin, apart), self._groups
        if kind is Nibbles:
            line = builder.shl(Nibbles.lines(builder, self._inputs), long(1))
            groups = builder.add(groups, builder.mul(number, line))
        apart = long(kind.STEP_BYTES * (OUTPUTS if together else 1))
        rows = builder.add(self._rows, builder.mul(row, self._row_size))
        ahead = self._ahead(begin, row, count, part // outputs)
        given = Given(weight, groups, rows, self._inputs, apart, ahead, self._steps_ask)
        sums = kind(builder, count, outputs).sums(given)
        for place in range(count):
            for other in range(outputs):
                self._store(sums[place][other], builder.add(number, long(other)), builder.add(row, long(place)))

    def _ahead(self, begin: Any, row: Any, count: int, part: int) -> Any:
        """The address that a tile prefetches: its share of the memory behind the adjacent outputs."""
        builder = self._builder
        parts = OUTPUTS // self._kind.SPLIT[count]
        before = builder.mul(builder.lshr(row, long(2)), long(parts)) if count == 4 else self._number[count]
        share = builder.mul(builder.add(before, long(part)), self._tiles_ask)
        return builder.add(builder.add(begin, self._distance), share)

    def _store(self, value: Any, output: Any, row: Any) -> None:
        """Scale a sum, add the bias, if there is one, and write it."""
        builder = self._builder
        if self._kind.SCALED:
            scaled = builder.fmul(builder.sitofp(value, FLOAT), self._float(self._scales, output))
            value = builder.fmul(scaled, self._float(self._steps, row))
        place = self._place(self._result, builder.add(builder.mul(row, self._stride), output))
        with builder.if_else(builder.icmp_signed("!=", self._bias, long(0))) as (then, otherwise):
            with then:
                builder.store(builder.fadd(value, self._of_bias(output)), place)
            with otherwise:
                builder.store(value, place)

    def _of_bias(self, output: Any) -> Any:
        """In the type of the weights, where these are floats."""
        if self._kind is not Brains:
            return self._float(self._bias, output)
        builder = self._builder
        place = builder.add(self._bias, builder.shl(output, long(1)))
        half = builder.load(builder.inttoptr(place, SHORT.as_pointer()))
        return builder.bitcast(builder.shl(builder.zext(half, INT), ir.Constant(INT, 16)), FLOAT)

    def _float(self, address: Any, number: Any) -> Any:
        return self._builder.load(self._place(address, number))

    def _place(self, address: Any, number: Any) -> Any:
        builder = self._builder
        return builder.inttoptr(builder.add(address, builder.shl(number, long(2))), FLOAT.as_pointer())

    def _load(self, table: Any, field: int) -> Any:
        place = self._builder.add(table, long(8 * field))
        return self._builder.load(self._builder.inttoptr(place, LONG.as_pointer()))


def _of(kind: type[Tile]) -> Any:
    """The product with weights of a kind, as a function for numba."""

    @intrinsic  # type: ignore[untyped-decorator]
    def product(
        context: Any,
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
        def build(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            _Product(kind, builder, *given).emit()
            return context.get_dummy_value()

        return types.void(*[types.int64] * 9), build

    return product


BYTES, NIBBLES, FLOATS, BRAINS = map(_of, (Bytes, Nibbles, Floats, Brains))
GIVEN = f"void({', '.join(['int64'] * 9)})"
"""Addresses of a layer's table, numbers of inputs, of the first output and of the one behind the last, addresses of
rows and of their steps, the number of rows, the address of the result, and values from one of its rows to the next."""


@native(GIVEN)
def of_bytes(
    linear: int, inputs: int, first: int, last: int, rows: int, steps: int, count: int, result: int, stride: int
) -> None:
    BYTES(linear, inputs, first, last, rows, steps, count, result, stride)


@native(GIVEN)
def of_nibbles(
    linear: int, inputs: int, first: int, last: int, rows: int, steps: int, count: int, result: int, stride: int
) -> None:
    NIBBLES(linear, inputs, first, last, rows, steps, count, result, stride)


@native(GIVEN)
def of_floats(
    linear: int, inputs: int, first: int, last: int, rows: int, steps: int, count: int, result: int, stride: int
) -> None:
    FLOATS(linear, inputs, first, last, rows, steps, count, result, stride)


@native(GIVEN)
def of_brains(
    linear: int, inputs: int, first: int, last: int, rows: int, steps: int, count: int, result: int, stride: int
) -> None:
    BRAINS(linear, inputs, first, last, rows, steps, count, result, stride)
