"""Products of 8-bit integers, exact on every processor.

A kernel rounds rows, scaled to at most 127, to integers, multiplies them with a weight of 8-bit integers, and scales
the sums of each output channel. Sums of integers do not depend on their order, so a row's result cannot depend on how
many rows are beside it, if no sum overflows. Some do: processors without VNNI instructions add pairs of products in 16
bits and cut them off. There a row is split into two halves whose pairs fit. Each kernel is tried with the largest sums
there are, and the fastest of the exact ones is used.
"""

from __future__ import annotations

import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cache

import torch

from paceline.targets.hf.speed import ROWS, relative

ZERO = 128
"""What stands for zero where rows are unsigned."""
LARGEST = 127
"""The largest value of a row, and of a weight."""
EXACT_SUM = 2**24 // (LARGEST * LARGEST)
"""So many products of two such numbers add up exactly in float32, in any order."""
TRIED_ROWS = (1, 2, 3, 5, 8, 17, 40)
TIMED = (1024, 8192)
"""Inputs and outputs of the weight that kernels are timed with."""
ROUNDING = 2.0**-22
"""What floats may round of a sum, as a share of the largest one. A sum that was cut off misses far more."""
FAILS = (RuntimeError, AttributeError, NotImplementedError)
"""What torch raises where it has no such kernel for this processor."""


class Product(ABC):
    """A weight as one kernel wants it."""

    def __init__(self, weight: torch.Tensor, scales: torch.Tensor) -> None:
        """``weight`` is ``[outputs, inputs]``; there is a scale for each output."""
        self.scales = scales

    @abstractmethod
    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Scaled sums ``[n, outputs]`` of rows ``[n, inputs]``, which may be written to."""

    @abstractmethod
    def weight(self) -> torch.Tensor:
        """The integers ``[outputs, inputs]``."""


class OneDNN(Product):
    """oneDNN's linear layer over its own blocked layout. It knows AMX."""

    def __init__(self, weight: torch.Tensor, scales: torch.Tensor) -> None:
        super().__init__(weight, scales)
        self._packed: torch.Tensor = torch.ops.onednn.qlinear_prepack(weight, None)
        self._zeros = torch.zeros(len(weight), dtype=torch.int64)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        integers = rows.add_(ZERO + 0.5).to(torch.uint8)  # which cuts off
        found: torch.Tensor = torch.ops.onednn.qlinear_pointwise(
            integers, 1.0, ZERO, self._packed, self.scales, self._zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        return found

    def weight(self) -> torch.Tensor:
        dense: torch.Tensor = self._packed.to_dense()
        return dense.t().contiguous()


class Fbgemm(Product):
    """FBGEMM's linear layer: the least work around the product."""

    def __init__(self, weight: torch.Tensor, scales: torch.Tensor) -> None:
        super().__init__(weight, scales)
        if "fbgemm" not in torch.backends.quantized.supported_engines:
            raise NotImplementedError("FBGEMM is for x86")
        zeros = torch.zeros(len(weight), dtype=torch.int64)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            integers = torch._make_per_channel_quantized_tensor(weight, scales.double(), zeros, 0)
        self._packed = torch.ops.quantized.linear_prepack(integers, None)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return self._sums(rows, ZERO)

    def _sums(self, rows: torch.Tensor, zero: int) -> torch.Tensor:
        """It rounds rows itself."""
        found: torch.Tensor = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
            rows, 1.0, zero, self._packed
        )
        return found

    def weight(self) -> torch.Tensor:
        unpacked: torch.Tensor = torch.ops.quantized.linear_unpack(self._packed)[0]
        return unpacked.int_repr()


class FbgemmHalves(Fbgemm):
    """For processors that add pairs of products in 16 bits: those of numbers up to 64 fit. Weights are read once for
    both halves of a row."""

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        rows.round_()
        below = (rows * 0.5).floor_()
        found = self._sums(torch.cat((below, rows.sub_(below))), ZERO // 2)
        return found[: len(rows)] + found[len(rows) :]


class Plain(Product):
    """Torch's product of 8-bit matrices, over the weight as it is."""

    def __init__(self, weight: torch.Tensor, scales: torch.Tensor) -> None:
        super().__init__(weight, scales)
        self._weight = weight

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        sums: torch.Tensor = torch._int_mm(rows.round_().to(torch.int8), self._weight.t())
        return sums.to(torch.float32).mul_(self.scales)

    def weight(self) -> torch.Tensor:
        return self._weight


class InFloats(Product):
    """The same integers as floats, in pieces whose sums a float holds exactly: for processors without a fast kernel
    for integers. Four times the memory, and not faster than float32."""

    def __init__(self, weight: torch.Tensor, scales: torch.Tensor) -> None:
        super().__init__(weight, scales)
        self._pieces = [piece.float().contiguous() for piece in weight.split(EXACT_SUM, dim=1)]

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        values = rows.round_().split(EXACT_SUM, dim=1)
        sums = [(part @ piece.t()).int() for part, piece in zip(values, self._pieces, strict=True)]
        total: torch.Tensor = sums[0]
        for other in sums[1:]:
            total += other
        return total.float().mul_(self.scales)

    def weight(self) -> torch.Tensor:
        return torch.cat(self._pieces, dim=1).to(torch.int8)


KERNELS: tuple[type[Product], ...] = (Fbgemm, OneDNN, FbgemmHalves, Plain)


@cache
def fastest(threads: int) -> type[Product]:
    """The fastest of the exact kernels on this processor with so many threads."""
    return chosen([kernel for kernel in KERNELS if is_exact(kernel)] or [InFloats])


def chosen(kernels: Sequence[type[Product]], clock: Callable[[], float] = time.perf_counter) -> type[Product]:
    """The kernel with the least time over a single row and over drafts, each as a share of the quickest."""
    if len(kernels) == 1:
        return kernels[0]
    inputs, outputs = TIMED
    weight = torch.ones(outputs, inputs, dtype=torch.int8)
    products = [kernel(weight, torch.ones(outputs)) for kernel in kernels]
    took = relative(products, [torch.ones(max(ROWS), inputs)] * len(products), clock)
    return kernels[took.index(min(took))]


@torch.no_grad()
def is_exact(kernel: type[Product]) -> bool:
    """Whether a kernel finds the sums of integers as they are, also the largest ones and for any number of rows."""
    inputs, outputs = 3 * 512 + 64, 96
    sign = torch.ones(outputs, inputs, dtype=torch.int8)
    sign[1::2, 1::2] = -1
    mixed = torch.arange(outputs * inputs).mul(31).remainder(2 * LARGEST + 1).sub(LARGEST).view(outputs, inputs)
    for weight in (LARGEST * sign, mixed.to(torch.int8)):
        scales = torch.linspace(0.5, 2.0, outputs)
        try:
            product = kernel(weight, scales)
            if not all(_finds(product, weight, scales, count) for count in TRIED_ROWS):
                return False
        except FAILS:
            return False
    return True


def _finds(product: Product, weight: torch.Tensor, scales: torch.Tensor, count: int) -> bool:
    """Whether the sums of some rows are right: the first of them of the largest values."""
    inputs = weight.shape[1]
    rows = torch.arange(count * inputs).mul(17).remainder(2 * LARGEST + 1).sub(LARGEST).view(count, inputs)
    rows[0], rows[-1] = LARGEST, LARGEST * (1 - 2 * (torch.arange(inputs) % 2))
    near = rows + torch.linspace(-0.49, 0.49, inputs)
    sums = rows.double() @ weight.double().t() * scales.double()
    apart = torch.cat([product(row.clone()) for row in near.split(1)])
    found = product(near)
    missed = (found.double() - sums).abs().amax(0)
    is_close = bool((missed <= ROUNDING * inputs * LARGEST * LARGEST * scales).all())
    return is_close and torch.equal(found, apart) and torch.equal(product.weight(), weight)
