"""A row's step of a recurrence for a part of a head's state, written in LLVM's code.

Each number of a state and of an output is computed in one order of operations, which depends on nothing but the sizes
of the state. So a row has the same bits whatever rows are computed beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from paceline.targets.hf.fused.instructions import INSTRUCTION_SETS
from paceline.targets.hf.fused.loops import each, long, loop
from paceline.targets.hf.fused.tiles import LANES
from paceline.targets.hf.fused.vector import FLOAT, INT, Built, function

LINES = 4
"""Lines of a state that the diagonal recurrence computes together."""
WIDE = 32
"""Columns of a state that the delta rule computes together: so few that those of two rows fit into the nearest
cache."""
LOWEST, HIGHEST = -87.0, 88.0
"""The least and the largest number whose exponential is computed; numbers beyond are replaced by them."""
MAGIC = 12582912.0
"""Next to a number as large as this, floats are whole."""
LOG2_E, LN2_HIGH, LN2_LOW = 1.4426950408889634, 0.693359375, -2.12194440e-4
POWERS = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5, 1.0, 1.0)
"""Factors of the powers of a number below ln 2 / 2, the largest first (Cephes)."""
FRACTION_BITS = 23
"""Of a float."""


class _Floats:
    """Emits operations with vectors of ``lanes`` floats."""

    def __init__(self, builder: Any, lanes: int) -> None:
        self.builder, self.lanes = builder, lanes
        self.kind = ir.VectorType(FLOAT, lanes)
        self.zero = ir.Constant(self.kind, [0.0] * lanes)

    def at(self, base: Any, number: Any) -> Any:
        """The address of a float."""
        return self.builder.add(base, self.builder.shl(number, long(2)))

    def load(self, address: Any) -> Any:
        return self.builder.load(self.builder.inttoptr(address, self.kind.as_pointer()), align=4)

    def store(self, value: Any, address: Any) -> None:
        self.builder.store(value, self.builder.inttoptr(address, self.kind.as_pointer()), align=4)

    def spread(self, address: Any) -> Any:
        """The float at an address, in each lane."""
        value = self.builder.load(self.builder.inttoptr(address, FLOAT.as_pointer()), align=4)
        one = self.builder.insert_element(ir.Constant(self.kind, ir.Undefined), value, ir.Constant(INT, 0))
        return self.builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(INT, self.lanes), [0] * self.lanes))

    def added(self, one: Any, other: Any, total: Any) -> Any:
        """``one * other + total``, rounded once where the processor does that in one instruction."""
        if "fma" in INSTRUCTION_SETS:
            both = function(self.builder, f"llvm.fma.v{self.lanes}f32", self.kind, [self.kind] * 3)
            return self.builder.call(both, [one, other, total])
        return self.builder.fadd(self.builder.fmul(one, other), total)

    def exponential(self, x: Any) -> Any:
        """e to the power of x, right but for the last bits of a float; of NaN NaN."""
        builder, constant, ints = self.builder, self.constant, ir.VectorType(INT, self.lanes)
        for sign, limit in (("<", LOWEST), (">", HIGHEST)):
            x = builder.select(builder.fcmp_ordered(sign, x, constant(limit)), constant(limit), x)
        shifted = self.added(x, constant(LOG2_E), constant(MAGIC))
        whole = builder.fsub(shifted, constant(MAGIC))
        r = self.added(whole, constant(-LN2_HIGH), x)
        r = self.added(whole, constant(-LN2_LOW), r)
        power = constant(POWERS[0])
        for factor in POWERS[1:]:
            power = self.added(power, r, constant(factor))
        shift = ir.Constant(ints, [FRACTION_BITS] * self.lanes)
        raised = builder.add(builder.bitcast(power, ints), builder.shl(builder.bitcast(shifted, ints), shift))
        return builder.bitcast(raised, self.kind)

    def constant(self, value: float) -> Any:
        return ir.Constant(self.kind, [value] * self.lanes)


class _Delta:
    """Emits the delta rule for ``vectors`` vectors of columns. Columns do not depend on each other. Sums over the lines
    of a state are those over the first lines of pairs and those over the second ones, so that twice as many additions
    are under way."""

    def __init__(self, floats: _Floats, vectors: int, given: tuple[Any, ...]) -> None:
        self._floats, self._builder, self._vectors = floats, floats.builder, vectors
        self._source, self._source_line, self._target, self._target_line, *more = given
        self._size, self._query, self._key, self._value, self._decay, self._decay_step, self._beta, self._out = more

    def emit(self) -> None:
        builder, floats = self._builder, self._floats
        beta, deltas = floats.spread(self._beta), list[Any]()
        for part, memory in enumerate(self._summed(self._key, self._decayed)):
            value = floats.load(self._part(self._value, part))
            deltas.append(builder.fmul(builder.fsub(value, memory), beta))
        with builder.if_else(builder.icmp_signed("!=", self._out, long(0))) as (then, otherwise):
            with then:
                for part, total in enumerate(self._summed(self._query, lambda number: self._updated(number, deltas))):
                    floats.store(total, self._part(self._out, part))
            with otherwise, each(builder, long(0), self._size, 1) as number:
                self._updated(number, deltas)

    def _summed(self, weights: Any, line: Callable[[Any], list[Any]]) -> list[Any]:
        """Sums of the lines that ``line`` finds, each times its weight."""
        builder, floats = self._builder, self._floats

        def added(number: Any, totals: list[Any]) -> list[Any]:
            weight = floats.spread(floats.at(weights, number))
            return [floats.added(state, weight, total) for state, total in zip(line(number), totals, strict=True)]

        def pair(number: Any, totals: list[list[Any]]) -> list[list[Any]]:
            return [added(builder.add(number, long(place)), line) for place, line in enumerate(totals)]

        zeros, whole = [floats.zero] * self._vectors, builder.and_(self._size, long(-2))
        one, other = loop(builder, long(0), whole, 2, [zeros, zeros], pair)
        one = loop(builder, whole, self._size, 1, [one], lambda number, totals: [added(number, totals[0])])[0]
        return [builder.fadd(*both) for both in zip(one, other, strict=True)]

    def _decayed(self, number: Any) -> list[Any]:
        """A line of the state before the row, times its decay."""
        builder, floats = self._builder, self._floats
        decay = floats.spread(builder.add(self._decay, builder.mul(number, self._decay_step)))
        line = builder.add(self._source, builder.mul(number, self._source_line))
        return [builder.fmul(floats.load(self._part(line, part)), decay) for part in range(self._vectors)]

    def _updated(self, number: Any, deltas: list[Any]) -> list[Any]:
        """A line of the state after the row, which is stored."""
        builder, floats = self._builder, self._floats
        key = floats.spread(floats.at(self._key, number))
        line = builder.add(self._target, builder.mul(number, self._target_line))
        states = [floats.added(key, *both) for both in zip(deltas, self._decayed(number), strict=True)]
        for part, state in enumerate(states):
            floats.store(state, self._part(line, part))
        return states

    def _part(self, base: Any, part: int) -> Any:
        return self._builder.add(base, long(4 * self._floats.lanes * part))


class _Diagonal:
    """Emits a recurrence whose numbers do not depend on each other: ``S = S * decay + x B``, and the output ``S C``.
    The decay is a number of the row, or where it is ``full`` the exponential of a number for each line times a rate for
    each number of the state."""

    def __init__(self, builder: Any, given: tuple[Any, ...], *, full: bool) -> None:
        self._builder, self._full, self._rows, self._one = builder, full, _Floats(builder, LANES), _Floats(builder, 1)
        self._source, self._target, self._lines, self._size, *more = given
        self._x, self._decay, self._rates, self._b, self._c, self._out = more
        self._whole = builder.and_(self._size, long(-LANES))
        self._bytes = builder.shl(self._size, long(2))

    def emit(self) -> None:
        builder = self._builder
        with builder.if_else(builder.icmp_signed("!=", self._out, long(0))) as (then, otherwise):
            with then:
                self._all(reads=True)
            with otherwise:
                self._all(reads=False)

    def _all(self, *, reads: bool) -> None:
        fours = self._builder.and_(self._lines, long(-LINES))
        with each(self._builder, long(0), fours, LINES) as line:
            self._some(line, LINES, reads)
        with each(self._builder, fours, self._lines, 1) as line:
            self._some(line, 1, reads)

    def _some(self, line: Any, count: int, reads: bool) -> None:
        """``count`` lines of the state, from ``line`` on."""
        lines = [self._builder.add(line, long(number)) for number in range(count)]
        sums = self._numbers(self._rows, long(0), self._whole, lines, reads)
        singles = self._numbers(self._one, self._whole, self._size, lines, reads)
        if reads:
            folded = _folded(self._builder, sums)
            for number, (place, single) in enumerate(zip(lines, singles, strict=True)):
                mask = ir.Constant(ir.VectorType(INT, 1), [number])
                total = self._builder.fadd(self._builder.shuffle_vector(folded, folded, mask), single)
                self._one.store(total, self._one.at(self._out, place))

    def _numbers(self, floats: _Floats, first: Any, last: Any, lines: list[Any], reads: bool) -> list[Any]:
        """Compute the numbers ``first .. last`` of some lines; the sums of the output, lane by lane."""
        builder = self._builder
        starts = [builder.mul(line, self._bytes) for line in lines]
        xs = [floats.spread(floats.at(self._x, line)) for line in lines]
        decays = [floats.spread(floats.at(self._decay, line) if self._full else self._decay) for line in lines]

        def body(number: Any, totals: list[list[Any]]) -> list[list[Any]]:
            b, found = floats.load(floats.at(self._b, number)), list[Any]()
            c = floats.load(floats.at(self._c, number)) if reads else None
            for position, (start, x, decay) in enumerate(zip(starts, xs, decays, strict=True)):
                place = floats.at(start, number)
                if self._full:
                    rate = floats.load(builder.add(self._rates, place))
                    decay = floats.exponential(builder.fmul(decay, rate))
                state = builder.fmul(floats.load(builder.add(self._source, place)), decay)
                state = floats.added(x, b, state)
                floats.store(state, builder.add(self._target, place))
                if reads:
                    found.append(floats.added(state, c, totals[0][position]))
            return [found]

        begun = [[floats.zero] * len(lines)] if reads else [list[Any]()]
        return loop(builder, first, last, floats.lanes, begun, body)[0]


def _folded(builder: Any, vectors: list[Any]) -> Any:
    """A vector of the sums of each vector's numbers, which are added up in pairs of neighbours."""
    count = len(vectors)
    while len(vectors) > 1:
        vectors = [_pairs(builder, vectors[place : place + 2]) for place in range(0, len(vectors), 2)]
    while vectors[0].type.count > count:
        vectors = [_pairs(builder, vectors)]
    return vectors[0]


def _pairs(builder: Any, vectors: list[Any]) -> Any:
    """Sums of neighbours in one vector or two."""
    ends = len(vectors) * vectors[0].type.count
    even, odd = (ir.Constant(ir.VectorType(INT, ends // 2), list(range(first, ends, 2))) for first in (0, 1))
    one, other = vectors[0], vectors[-1]
    return builder.fadd(builder.shuffle_vector(one, other, even), builder.shuffle_vector(one, other, odd))


def _delta(lanes: int, vectors: int) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def delta(
        context: Any,
        source: Any,
        source_line: Any,
        target: Any,
        target_line: Any,
        size: Any,
        query: Any,
        key: Any,
        value: Any,
        decay: Any,
        decay_step: Any,
        beta: Any,
        out: Any,
    ) -> Built:
        def build(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            _Delta(_Floats(builder, lanes), vectors, tuple(given)).emit()
            return context.get_dummy_value()

        return types.void(*[types.int64] * 12), build

    return delta


def _diagonal(*, full: bool) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def diagonal(
        context: Any,
        source: Any,
        target: Any,
        lines: Any,
        size: Any,
        x: Any,
        decay: Any,
        rates: Any,
        b: Any,
        c: Any,
        out: Any,
    ) -> Built:
        def build(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            _Diagonal(builder, tuple(given), full=full).emit()
            return context.get_dummy_value()

        return types.void(*[types.int64] * 10), build

    return diagonal


delta_wide, delta_narrow, delta_one = _delta(LANES, WIDE // LANES), _delta(LANES, 1), _delta(1, 1)
"""The delta rule for `WIDE` columns, for one vector of them, and for one. The addresses of the state before and after
the row, each with the bytes from one line to the next; the number of lines; the addresses of the row's query, key,
value and decay, with the bytes from one decay to the next (0 if there is one for all lines), and of beta and the
output (0 if it is not needed)."""
diagonal_even, diagonal_full = _diagonal(full=False), _diagonal(full=True)
"""The diagonal recurrence with one decay, and with one for each number. The addresses of the state before and after
the row; the number of lines and their size; the addresses of the row's input and decay, of the rates, and of the row's
B, C and output (0 if it is not needed)."""
