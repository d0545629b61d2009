"""Products of 8-bit integers, exact on every processor.

A kernel multiplies rows of unsigned 8-bit integers, 128 of which stands for zero, with a signed 8-bit weight, and
scales the sums of each output channel. Sums of integers do not depend on their order, so a row's result cannot depend
on how many rows are beside it, if no sum overflows. Some do: without VNNI instructions oneDNN adds pairs of products in
16 bits and cuts them off. So each kernel is tried with the largest sums there are, and only exact ones are used.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import cache

import torch

ZERO = 128
"""What stands for zero in a row."""
LARGEST = 127
"""The largest weight, and the largest distance of a row's value from `ZERO`."""
EXACT_SUM = 2**24 // (LARGEST * LARGEST)
"""So many products of two such numbers add up exactly in float32, in any order."""
TRIED_ROWS = (1, 2, 3, 5, 8, 17, 40)
TIMED_ROWS = (1, 16)
TIMED = (1024, 4096)
"""Inputs and outputs of the weight that kernels are timed with."""
TURNS = 5
FAILS = (RuntimeError, AttributeError, NotImplementedError)
"""What torch raises where it has no such kernel for this processor."""


class Product(ABC):
    """A weight as one kernel wants it."""

    def __init__(self, weight: torch.Tensor, scales: torch.Tensor) -> None:
        """``weight`` is ``[outputs, inputs]``; there is a scale for each output."""
        self.scales = scales

    @abstractmethod
    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Scaled sums ``[n, outputs]`` of rows ``[n, inputs]``."""

    @abstractmethod
    def weight(self) -> torch.Tensor:
        """The integers ``[outputs, inputs]``."""


class OneDNN(Product):
    """oneDNN's linear layer over its own blocked layout: the fastest where there are VNNI or AMX instructions."""

    def __init__(self, weight: torch.Tensor, scales: torch.Tensor) -> None:
        super().__init__(weight, scales)
        self._packed: torch.Tensor = torch.ops.onednn.qlinear_prepack(weight, None)
        self._zeros = torch.zeros(len(weight), dtype=torch.int64)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = torch.ops.onednn.qlinear_pointwise(
            rows, 1.0, ZERO, self._packed, self.scales, self._zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        return found

    def weight(self) -> torch.Tensor:
        dense: torch.Tensor = self._packed.to_dense()
        return dense.t().contiguous()


class Plain(Product):
    """Torch's product of 8-bit matrices, over the weight as it is."""

    def __init__(self, weight: torch.Tensor, scales: torch.Tensor) -> None:
        super().__init__(weight, scales)
        self._weight = weight

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        signed = rows.bitwise_xor(ZERO).view(torch.int8)
        return torch._int_mm(signed, self._weight.t()).float().mul_(self.scales)

    def weight(self) -> torch.Tensor:
        return self._weight


class InFloats(Product):
    """The same integers as floats, in pieces whose sums a float holds exactly: for processors without a fast kernel
    for integers. Four times the memory, and the speed of float32."""

    def __init__(self, weight: torch.Tensor, scales: torch.Tensor) -> None:
        super().__init__(weight, scales)
        self._pieces = [piece.float().contiguous() for piece in weight.split(EXACT_SUM, dim=1)]

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        values = (rows.float() - ZERO).split(EXACT_SUM, dim=1)
        sums = [(part @ piece.t()).int() for part, piece in zip(values, self._pieces, strict=True)]
        total = sums[0]
        for other in sums[1:]:
            total += other
        return total.float().mul_(self.scales)

    def weight(self) -> torch.Tensor:
        return torch.cat(self._pieces, dim=1).to(torch.int8)


KERNELS: tuple[type[Product], ...] = (OneDNN, Plain, InFloats)


@cache
def fastest(threads: int) -> type[Product]:
    """The fastest of the exact kernels on this processor with so many threads."""
    return chosen(kernel for kernel in KERNELS if kernel is InFloats or is_exact(kernel))


def chosen(kernels: Iterable[type[Product]], clock: Callable[[], float] = time.perf_counter) -> type[Product]:
    """The kernel with the least time over a single row and over a draft, each as a share of the quickest."""
    kernels = list(kernels)
    if len(kernels) == 1:
        return kernels[0]
    inputs, outputs = TIMED
    weight = torch.ones(outputs, inputs, dtype=torch.int8)
    products = [kernel(weight, torch.ones(outputs)) for kernel in kernels]
    totals = [0.0] * len(products)
    for count in TIMED_ROWS:
        rows = torch.full((count, inputs), ZERO, dtype=torch.uint8)
        seconds = [[_timed(product, rows, clock) for product in products] for _ in range(TURNS)]
        least = [min(turn[i] for turn in seconds) for i in range(len(products))]
        totals = [total + took / min(least) for total, took in zip(totals, least, strict=True)]
    return kernels[totals.index(min(totals))]


def _timed(product: Product, rows: torch.Tensor, clock: Callable[[], float]) -> float:
    start = clock()
    product(rows)
    return clock() - start


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
    found = product((rows + ZERO).to(torch.uint8))
    wanted = (rows.double() @ weight.double().t()).float() * scales
    return found.shape == wanted.shape and torch.equal(found, wanted) and torch.equal(product.weight(), weight)
