"""Products of a few rows with a few outputs of a weight, written in LLVM's code.

The values of one row with one output are added up in an order that depends on neither the other rows nor the other
outputs of a tile: sums of integers are exact in any order, and sums of floats always have the same one. So a row has
the same bits in every tile.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import Any, ClassVar, NamedTuple

from llvmlite import ir

from paceline.targets.hf.fused import layout as at
from paceline.targets.hf.fused.instructions import FOURS, INSTRUCTION_SETS, NARROW, PAIRS, Fours, Pairs
from paceline.targets.hf.fused.loops import Sums, long, loop
from paceline.targets.hf.fused.vector import BYTE, FLOAT, INT, SHORT, function

OUTPUTS = 4
"""Outputs of a weight that stand together."""
PREFETCHED_BYTES = 2048
"""How many bytes before it reads them a tile asks for them, where it is the only one of its outputs."""
CACHE_LINE_BYTES = 64
"""Bytes that come from memory together."""
SPAN = 512
"""Inputs whose weights of 4 bits have one vector of multipliers: 16 groups of 32."""
LEAST_FLOATS = 8
"""Floats that are added up at once, at least: what is left of a row behind whole vectors."""
LANES = 2 * LEAST_FLOATS if "avx512f" in INSTRUCTION_SETS else LEAST_FLOATS
"""Floats of a vector."""
NEAREST, NEAR = 3, 2
"""Caches, as LLVM numbers them."""


class Given(NamedTuple):
    """Where a tile begins: addresses, and whole numbers as LLVM's values."""

    weight: Any
    groups: Any
    """Multipliers of groups of weights."""
    rows: Any
    inputs: Any
    apart: Any
    """Bytes from one step of an output to its next."""
    ahead: Any
    """The memory that this tile asks for, step by step."""
    share: Any
    """How many bytes further each step asks. It asks for as many as it would have to if it were the only tile, so
    several tiles ask for some twice."""


class Tile(ABC):
    """Emits the loop of one tile over the inputs."""

    FORM: ClassVar[int]
    """Of rows."""
    STEP: ClassVar[int]
    """Inputs of a step."""
    STEP_BYTES: ClassVar[int]
    """Bytes of an output's weights in a step."""
    TOGETHER: ClassVar[bool] = True
    """Whether the steps of some outputs stand together; else each output stands by itself."""
    SPLIT: ClassVar[dict[int, int]]
    """Rows of a tile -> its outputs."""
    SCALED: ClassVar[bool]
    """Whether sums are whole numbers, to be scaled."""
    CACHE: ClassVar[int] = NEAREST
    """The cache level into which data is prefetched."""

    def __init__(self, builder: Any, count: int, outputs: int) -> None:
        self.builder, self.count, self.outputs = builder, count, outputs

    @staticmethod
    @abstractmethod
    def bytes_of(builder: Any, inputs: Any) -> Any:
        """Bytes of an output's weights."""

    @staticmethod
    @abstractmethod
    def bytes_of_row(builder: Any, inputs: Any) -> Any:
        """Bytes of a row."""

    @abstractmethod
    def sums(self, given: Given) -> Sums:
        """Sums of each row and output."""

    def zeros(self, kind: Any) -> Sums:
        return [[ir.Constant(kind, [0] * kind.count)] * self.outputs for _ in range(self.count)]

    def places(self, given: Given) -> list[Any]:
        """Where each row stands."""
        size = self.bytes_of_row(self.builder, given.inputs)
        return [self.builder.add(given.rows, self.builder.mul(size, long(row))) for row in range(self.count)]

    def ask(self, given: Given, number: Any) -> None:
        """Ask for the memory that a step of this tile is to ask for."""
        kinds = [BYTE.as_pointer(), INT, INT, INT]
        flags = [ir.Constant(INT, value) for value in (0, self.CACHE, 1)]  # read, cache, data
        prefetch = function(self.builder, "llvm.prefetch.p0", ir.VoidType(), kinds)
        place = self.builder.add(given.ahead, self.builder.mul(number, given.share))
        for part in range(0, OUTPUTS * self.STEP_BYTES, CACHE_LINE_BYTES):
            self.builder.call(prefetch, [self.at(self.builder.add(place, long(part)), BYTE), *flags])

    def step(self, given: Given, number: Any) -> Any:
        """Where a step of outputs that stand together begins."""
        self.ask(given, number)
        return self.builder.add(given.weight, self.builder.mul(number, given.apart))

    def at(self, address: Any, kind: Any) -> Any:
        return self.builder.inttoptr(address, kind.as_pointer())

    def vector(self, address: Any, kind: Any) -> Any:
        return loaded(self.builder, address, kind)


def loaded(builder: Any, address: Any, kind: Any) -> Any:
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=1)


class _OfBytes(Tile):
    """Weights of 8 bits."""

    SCALED = True
    VECTORS: ClassVar[Pairs | Fours]
    ROW_SHIFT: ClassVar[int]
    """Of an input, to the bytes of a row's value."""
    ZERO: ClassVar[int]
    """The weight 0 as stored in memory."""

    @staticmethod
    def bytes_of(builder: Any, inputs: Any) -> Any:
        return inputs

    def sums(self, given: Given) -> Sums:
        builder, rows, vectors = self.builder, self.places(given), self.VECTORS

        def body(first: Any, totals: Sums) -> Sums:
            place = self.step(given, builder.udiv(first, long(self.STEP)))
            pieces = (builder.add(place, long(self.STEP_BYTES * output)) for output in range(self.outputs))
            weights = [self.wide(self.vector(piece, vectors.bytes)) for piece in pieces]
            found = []
            for row, line in zip(rows, totals, strict=True):
                values = self.vector(builder.add(row, builder.shl(first, long(self.ROW_SHIFT))), weights[0].type)
                pairs = zip(line, weights, strict=True)
                found.append([vectors.added(builder, total, each, values) for total, each in pairs])
            return found

        totals = loop(builder, long(0), given.inputs, self.STEP, self.zeros(vectors.sums), body)
        lines = zip(rows, totals, strict=True)
        return [[self.finished(given, row, vectors.total(builder, total)) for total in line] for row, line in lines]

    def wide(self, weights: Any) -> Any:
        """Weights as they are multiplied."""
        return weights

    def finished(self, given: Given, row: Any, total: Any) -> Any:
        """The sum of a row and an output."""
        return total


class BytesByPairs(_OfBytes):
    """Rows of 16 bits, in which all products of pairs add up exactly."""

    FORM, ZERO, ROW_SHIFT = at.SHORTS, 0, 1
    VECTORS: ClassVar[Pairs] = PAIRS
    STEP = STEP_BYTES = VECTORS.values
    SPLIT: ClassVar = {4: 2, 2: 4, 1: 4}

    @staticmethod
    def bytes_of_row(builder: Any, inputs: Any) -> Any:
        return builder.shl(inputs, long(1))

    def wide(self, weights: Any) -> Any:
        return self.builder.sext(weights, self.VECTORS.shorts)


class BytesByFours(_OfBytes):
    """Weights raised by 128, and rows of 8 bits. The total of a row stands behind it: 128 times that is too much in
    each sum."""

    FORM, ZERO, ROW_SHIFT = at.BYTES, -128, 0
    VECTORS: ClassVar[Fours] = FOURS or Fours(64)
    STEP = STEP_BYTES = VECTORS.values
    SPLIT: ClassVar = {4: 4, 2: 4, 1: 4} if VECTORS.values == 64 else {4: 2, 2: 4, 1: 4}

    @staticmethod
    def bytes_of_row(builder: Any, inputs: Any) -> Any:
        return builder.add(inputs, long(CACHE_LINE_BYTES))

    def finished(self, given: Given, row: Any, total: Any) -> Any:
        own = self.builder.load(self.at(self.builder.add(row, given.inputs), INT))
        return self.builder.sub(total, self.builder.shl(own, ir.Constant(INT, 7)))


Bytes = BytesByPairs if FOURS is None else BytesByFours


class Nibbles(Tile):
    """Weights of 4 bits, from 0 to 15, and rows of 8 bits. 8 is taken from every weight afterwards.

    A vector of weights holds those of two steps, one in the lower halves of its bytes and one in the upper ones. What a
    pair of neighbours in a vector adds up to over 16 steps is a group, with a whole number as multiplier. So pairs are
    added up in 16 bits as long as they fit, which is half of a group, then multiplied and added up in 32 bits. A line
    of multipliers has one vector for each `SPAN` of inputs. The sums of a row's groups stand behind the row.
    """

    FORM = at.GROUPED
    STEP, STEP_BYTES = 64, 32
    SPLIT: ClassVar = {4: 1, 2: 2, 1: 4}
    SCALED = True
    BYTES = ir.VectorType(BYTE, STEP_BYTES)
    LOWER, HALF = ir.Constant(BYTES, [15] * STEP_BYTES), ir.Constant(BYTES, [4] * STEP_BYTES)
    FITTING = 4
    """Vectors of weights whose products with a row add up in 16 bits: 8 pairs of at most 15 * 127."""

    @staticmethod
    def bytes_of(builder: Any, inputs: Any) -> Any:
        return builder.lshr(inputs, long(1))

    @staticmethod
    def lines(builder: Any, inputs: Any) -> Any:
        """Multipliers of an output."""
        spans = builder.udiv(builder.add(inputs, long(SPAN - 1)), long(SPAN))
        return builder.mul(spans, long(NARROW.values))

    @classmethod
    def bytes_of_row(cls, builder: Any, inputs: Any) -> Any:
        return builder.add(inputs, builder.shl(cls.lines(builder, inputs), long(1)))

    def sums(self, given: Given) -> Sums:
        builder, self._rows, lines = self.builder, self.places(given), self.lines(self.builder, given.inputs)
        size = builder.shl(lines, long(1))
        self._tables = [builder.add(given.groups, builder.mul(size, long(output))) for output in range(self.outputs)]
        fitting = self.FITTING * self.STEP
        whole = builder.and_(given.inputs, long(-fitting))
        several, one = partial(self._added, given, self.FITTING), partial(self._added, given, 1)
        totals = loop(builder, long(0), whole, fitting, self.zeros(NARROW.sums), several)
        totals = loop(builder, whole, given.inputs, self.STEP, totals, one)
        each = partial(self._eighths, given)
        eighths = loop(builder, long(0), lines, NARROW.values, self.zeros(NARROW.sums), each)
        three = ir.Constant(NARROW.sums, [3] * (NARROW.values // 2))
        found = []
        for line, others in zip(totals, eighths, strict=True):
            pairs = zip(line, others, strict=True)
            found.append(
                [NARROW.total(builder, builder.sub(total, builder.shl(other, three))) for total, other in pairs]
            )
        return found

    def _added(self, given: Given, vectors: int, first: Any, totals: Sums) -> Sums:
        """``totals`` and the products of some vectors of one span."""
        builder, pairs = self.builder, [[None] * self.outputs for _ in range(self.count)]
        for number in range(vectors):
            begin = builder.add(first, long(number * self.STEP))
            place = self.step(given, builder.udiv(begin, long(self.STEP)))
            for output in range(self.outputs):
                both = self.vector(builder.add(place, long(self.STEP_BYTES * output)), self.BYTES)
                for half, weights in enumerate((builder.and_(both, self.LOWER), builder.lshr(both, self.HALF))):
                    for line, row in zip(pairs, self._rows, strict=True):
                        offset = builder.add(begin, long(self.STEP_BYTES * half))
                        found = self._products(weights, self.vector(builder.add(row, offset), self.BYTES))
                        line[output] = found if line[output] is None else builder.add(line[output], found)
        offset = builder.shl(builder.udiv(first, long(SPAN)), long(5))
        multipliers = [self.vector(builder.add(table, offset), NARROW.shorts) for table in self._tables]
        return [
            [NARROW.added(builder, *each) for each in zip(line, own, multipliers, strict=True)]
            for line, own in zip(totals, pairs, strict=True)
        ]

    def _eighths(self, given: Given, first: Any, totals: Sums) -> Sums:
        """``totals`` and the sums of a row's groups times their multipliers."""
        builder, found = self.builder, []
        offset = builder.shl(first, long(1))
        multipliers = [self.vector(builder.add(table, offset), NARROW.shorts) for table in self._tables]
        for row, line in zip(self._rows, totals, strict=True):
            own = self.vector(builder.add(builder.add(row, given.inputs), offset), NARROW.shorts)
            pairs = zip(line, multipliers, strict=True)
            found.append([NARROW.added(builder, total, own, each) for total, each in pairs])
        return found

    def _products(self, weights: Any, values: Any) -> Any:
        """Sums of pairs of products, which fit into 16 bits."""
        builder, parts = self.builder, []
        if "avx2" in INSTRUCTION_SETS:
            multiply = function(builder, "llvm.x86.avx2.pmadd.ub.sw", NARROW.shorts, [self.BYTES] * 2)
            return builder.call(multiply, [weights, values])
        for first in (0, 1):
            part = ir.Constant(ir.VectorType(INT, NARROW.values), list(range(first, self.STEP_BYTES, 2)))
            one = builder.zext(builder.shuffle_vector(weights, weights, part), NARROW.shorts)
            other = builder.sext(builder.shuffle_vector(values, values, part), NARROW.shorts)
            parts.append(builder.mul(one, other))
        return builder.add(*parts)


class Floats(Tile):
    """Weights and rows in float32. Every lane of a vector adds up its own products, and then they are added in
    pairs."""

    FORM = at.FLOATS
    STEP, STEP_BYTES, TOGETHER = LANES, 4 * LANES, False
    SPLIT: ClassVar = {4: 4 if "avx512f" in INSTRUCTION_SETS else 2, 2: 4, 1: 4}
    SCALED, CACHE = False, NEAR
    SHIFT = 2
    """Of an input, to the bytes of its weight."""
    KIND = ir.VectorType(FLOAT, LANES)

    @classmethod
    def bytes_of(cls, builder: Any, inputs: Any) -> Any:
        return builder.shl(inputs, long(cls.SHIFT))

    @staticmethod
    def bytes_of_row(builder: Any, inputs: Any) -> Any:
        return builder.shl(inputs, long(2))

    def sums(self, given: Given) -> Sums:
        builder, rows = self.builder, self.places(given)
        width = self.bytes_of(builder, given.inputs)
        outputs = [builder.add(given.weight, builder.mul(width, long(output))) for output in range(self.outputs)]

        def body(count: int, first: Any, totals: Sums) -> Sums:
            offset = builder.shl(first, long(self.SHIFT))
            self.ask(given, builder.udiv(first, long(self.STEP)))
            weights = [self._whole(self.widened(builder, builder.add(output, offset), count)) for output in outputs]
            found = []
            for row, line in zip(rows, totals, strict=True):
                place = builder.add(row, builder.shl(first, long(2)))
                values = self._whole(self.vector(place, ir.VectorType(FLOAT, count)))
                found.append([self._added(values, one, total) for one, total in zip(weights, line, strict=True)])
            return found

        whole = builder.and_(given.inputs, long(-LANES))
        totals = loop(builder, long(0), whole, LANES, self.zeros(self.KIND), partial(body, LANES))
        if LANES > LEAST_FLOATS:
            totals = loop(builder, whole, given.inputs, LEAST_FLOATS, totals, partial(body, LEAST_FLOATS))
        return [[self._total(total) for total in line] for line in totals]

    @classmethod
    def widened(cls, builder: Any, address: Any, count: int) -> Any:
        """``count`` weights as floats."""
        return loaded(builder, address, ir.VectorType(FLOAT, count))

    def _whole(self, values: Any) -> Any:
        """A vector of floats, with zeros behind fewer."""
        if values.type.count == LANES:
            return values
        zeros = ir.Constant(values.type, [0.0] * values.type.count)
        mask = ir.Constant(ir.VectorType(INT, LANES), list(range(LANES)))
        return self.builder.shuffle_vector(values, zeros, mask)

    def _added(self, values: Any, weights: Any, total: Any) -> Any:
        builder = self.builder
        if "fma" in INSTRUCTION_SETS:
            both = function(builder, f"llvm.fma.v{LANES}f32", self.KIND, [self.KIND] * 3)
            return builder.call(both, [values, weights, total])
        return builder.fadd(builder.fmul(values, weights), total)

    def _total(self, sums: Any) -> Any:
        builder, size = self.builder, LANES
        while size > 1:
            size //= 2
            halves = (ir.Constant(ir.VectorType(INT, size), list(range(first, first + size))) for first in (0, size))
            sums = builder.fadd(*(builder.shuffle_vector(sums, sums, half) for half in halves))
        return builder.extract_element(sums, ir.Constant(INT, 0))


class Brains(Floats):
    """Weights in bfloat16, the upper half of a float."""

    STEP_BYTES, SHIFT = 2 * LANES, 1

    @classmethod
    def widened(cls, builder: Any, address: Any, count: int) -> Any:
        wide = ir.VectorType(INT, count)
        bits = builder.zext(loaded(builder, address, ir.VectorType(SHORT, count)), wide)
        return builder.bitcast(builder.shl(bits, ir.Constant(wide, [16] * count)), ir.VectorType(FLOAT, count))
