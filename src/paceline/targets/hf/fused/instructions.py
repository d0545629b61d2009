"""Instructions that multiply vectors of integers and add up neighbours, by what the processor has."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from paceline.targets.hf.fused.vector import BYTE, INT, SHORT, features, function

INSTRUCTION_SETS = features()


class Pairs:
    """Emits the multiplication of vectors of 16-bit integers; pairs of products are added to sums of 32 bits."""

    def __init__(self, sets: frozenset[str], *, wide: bool) -> None:
        self.values = 32 if wide and "avx512bw" in sets else 16
        """Of a vector."""
        self._is_one = self.values == 32 and "avx512vnni" in sets
        """Whether one instruction multiplies and adds."""
        self._adds_pairs = "avx2" in sets
        self.shorts, self.bytes = ir.VectorType(SHORT, self.values), ir.VectorType(BYTE, self.values)
        self.sums = ir.VectorType(INT, self.values // 2)

    def added(self, builder: Any, total: Any, one: Any, other: Any) -> Any:
        """``total`` and the products of two vectors."""
        if self._is_one:
            multiply = function(builder, "llvm.x86.avx512.vpdpwssd.512", self.sums, [self.sums] * 3)
            return builder.call(multiply, [total, *(builder.bitcast(each, self.sums) for each in (one, other))])
        if self._adds_pairs:
            name = "llvm.x86.avx512.pmaddw.d.512" if self.values == 32 else "llvm.x86.avx2.pmadd.wd"
            multiply = function(builder, name, self.sums, [self.shorts] * 2)
            return builder.add(total, builder.call(multiply, [one, other]))
        for first in (0, 1):
            part = ir.Constant(self.sums, list(range(first, self.values, 2)))
            pieces = (builder.shuffle_vector(each, each, part) for each in (one, other))
            one_wide, other_wide = (builder.sext(piece, self.sums) for piece in pieces)
            total = builder.add(total, builder.mul(one_wide, other_wide))
        return total

    def total(self, builder: Any, sums: Any) -> Any:
        name = f"llvm.vector.reduce.add.v{self.values // 2}i32"
        return builder.call(function(builder, name, INT, [self.sums]), [sums])


PAIRS, NARROW = Pairs(INSTRUCTION_SETS, wide=True), Pairs(INSTRUCTION_SETS, wide=False)


class Fours:
    """Emits the multiplication of a vector of bytes from 0 to 255 with one of bytes from -128 to 127 in one
    instruction; four products each are added to sums of 32 bits."""

    def __init__(self, values: int) -> None:
        self.values = values
        """Of a vector."""
        self.bytes, self.sums = ir.VectorType(BYTE, values), ir.VectorType(INT, values // 4)
        self._name = f"llvm.x86.avx512.vpdpbusd.{8 * values}"

    @classmethod
    def of(cls, sets: frozenset[str]) -> Fours | None:
        """None where the processor has no such instruction."""
        if {"avx512vnni", "avx512bw"} <= sets:
            return cls(64)
        return cls(32) if "avxvnni" in sets else None

    def added(self, builder: Any, total: Any, raised: Any, other: Any) -> Any:
        """``total`` and the products of two vectors."""
        multiply = function(builder, self._name, self.sums, [self.sums] * 3)
        return builder.call(multiply, [total, *(builder.bitcast(each, self.sums) for each in (raised, other))])

    def total(self, builder: Any, sums: Any) -> Any:
        name = f"llvm.vector.reduce.add.v{self.values // 4}i32"
        return builder.call(function(builder, name, INT, [self.sums]), [sums])


FOURS = Fours.of(INSTRUCTION_SETS)
