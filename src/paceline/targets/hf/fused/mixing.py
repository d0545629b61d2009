"""Values of a text by the weights that some queries give them, added up in doubles.

Each number of each query is added up in the order of the text, whatever other queries are computed with it.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from paceline.compiled import native
from paceline.targets.hf.fused.instructions import INSTRUCTION_SETS
from paceline.targets.hf.fused.loops import each, long, loop
from paceline.targets.hf.fused.tiles import LANES, LEAST_FLOATS, Brains, Floats
from paceline.targets.hf.fused.vector import INT, Built, function

DOUBLE, WIDTH = ir.DoubleType(), LANES // 2
SUMS = ir.VectorType(DOUBLE, WIDTH)
TOGETHER = 4
"""Queries that read a value together."""


class _Mix:
    """Emits the sums of ``seen`` values for ``count`` queries; ``totals`` are added to."""

    def __init__(self, kind: type[Floats], builder: Any, *given: Any) -> None:
        self._kind, self._builder = kind, builder
        self._values, self._size, self._seen, self._weights, self._apart, self._count, self._totals = given
        self._line = builder.shl(self._size, long(kind.SHIFT))

    def emit(self) -> None:
        builder = self._builder
        whole = builder.and_(self._count, long(-TOGETHER))
        with each(builder, long(0), whole, TOGETHER) as query:
            self._queries(query, TOGETHER)
        with each(builder, whole, self._count, 1) as query:
            self._queries(query, 1)

    def _queries(self, query: Any, count: int) -> None:
        whole = self._builder.and_(self._size, long(-LANES))
        with each(self._builder, long(0), whole, LANES) as part:
            self._part(query, count, part, LANES)
        if LANES > LEAST_FLOATS:
            with each(self._builder, whole, self._size, LEAST_FLOATS) as part:
                self._part(query, count, part, LEAST_FLOATS)

    def _part(self, query: Any, count: int, part: Any, numbers: int) -> None:
        """``numbers`` numbers of each value, for ``count`` queries."""
        builder, vectors = self._builder, range(numbers // WIDTH)
        totals = [self._total(query, number, part) for number in range(count)]
        begun = [[builder.load(self._at(total, vector), align=8) for vector in vectors] for total in totals]
        weights = [self._weight(query, number) for number in range(count)]
        begin = builder.add(self._values, builder.shl(part, long(self._kind.SHIFT)))

        def body(seen: Any, now: list[list[Any]]) -> list[list[Any]]:
            values = self._wide(builder.add(begin, builder.mul(seen, self._line)), numbers)
            found = []
            for weight, line in zip(weights, now, strict=True):
                place = builder.inttoptr(builder.add(weight, builder.shl(seen, long(3))), DOUBLE.as_pointer())
                spread = self._spread(builder.load(place))
                found.append([self._added(spread, value, total) for value, total in zip(values, line, strict=True)])
            return found

        for total, line in zip(totals, loop(builder, long(0), self._seen, 1, begun, body), strict=True):
            for vector, value in enumerate(line):
                builder.store(value, self._at(total, vector), align=8)

    def _wide(self, place: Any, numbers: int) -> list[Any]:
        """``numbers`` numbers of a value, as vectors of doubles."""
        values = self._kind.widened(self._builder, place, numbers)
        kind = ir.VectorType(INT, WIDTH)
        masks = [ir.Constant(kind, list(range(first, first + WIDTH))) for first in range(0, numbers, WIDTH)]
        return [self._builder.fpext(self._builder.shuffle_vector(values, values, mask), SUMS) for mask in masks]

    def _added(self, weight: Any, values: Any, total: Any) -> Any:
        if "fma" in INSTRUCTION_SETS:
            both = function(self._builder, f"llvm.fma.v{WIDTH}f64", SUMS, [SUMS] * 3)
            return self._builder.call(both, [weight, values, total])
        return self._builder.fadd(self._builder.fmul(weight, values), total)

    def _spread(self, value: Any) -> Any:
        one = self._builder.insert_element(ir.Constant(SUMS, ir.Undefined), value, ir.Constant(INT, 0))
        return self._builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(INT, WIDTH), [0] * WIDTH))

    def _total(self, query: Any, number: int, part: Any) -> Any:
        """Where the sums of a query stand."""
        line = self._builder.mul(self._builder.add(query, long(number)), self._size)
        return self._builder.add(self._totals, self._builder.shl(self._builder.add(line, part), long(3)))

    def _weight(self, query: Any, number: int) -> Any:
        """Where the weights of a query begin."""
        line = self._builder.mul(self._builder.add(query, long(number)), self._apart)
        return self._builder.add(self._weights, self._builder.shl(line, long(3)))

    def _at(self, total: Any, vector: int) -> Any:
        return self._builder.inttoptr(self._builder.add(total, long(8 * WIDTH * vector)), SUMS.as_pointer())


def _of(kind: type[Floats]) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def mixed(
        context: Any, values: Any, size: Any, seen: Any, weights: Any, apart: Any, count: Any, totals: Any
    ) -> Built:
        def build(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            _Mix(kind, builder, *given).emit()
            return context.get_dummy_value()

        return types.void(*[types.int64] * 7), build

    return mixed


FLOATS, BRAINS = map(_of, (Floats, Brains))
GIVEN = f"void({', '.join(['int64'] * 7)})"
"""The address of the values of a head, one behind another, and their size; how many there are; the address of the
weights, in doubles, and how many lie from those of a query to those of the next; queries; and the address of sums."""


@native(GIVEN)
def of_floats(values: int, size: int, seen: int, weights: int, apart: int, count: int, totals: int) -> None:
    FLOATS(values, size, seen, weights, apart, count, totals)


@native(GIVEN)
def of_brains(values: int, size: int, seen: int, weights: int, apart: int, count: int, totals: int) -> None:
    BRAINS(values, size, seen, weights, apart, count, totals)
