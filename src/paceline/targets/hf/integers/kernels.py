"""Products of 8-bit integers, exact on every processor.

A kernel multiplies rows of whole numbers up to 127 with a weight of 8-bit integers (-128 in those that were rounded
elsewhere), and scales the sums of each output channel. Sums of integers do not depend on their order, so a row's result
cannot depend on how many rows are beside it, if no sum overflows. Some do: processors without VNNI instructions add
pairs of products in 16 bits and cut them off. There a row is split into two halves whose pairs fit. Each kernel is
tried with the largest sums there are, and the fastest of those is used that find every bit as it should be: the choice
changes the time and nothing else.
"""

from __future__ import annotations

import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING

import torch

from paceline.targets.hf.integers.groups import LOWEST, PAIRS, SPAN, largest_multiplier
from paceline.targets.hf.speed import FAVOUR, TIMED_ROWS, relative

if TYPE_CHECKING:
    from paceline.targets.hf.fused.weights import Weights

ZERO = 128
"""The value of zero in unsigned rows."""
LARGEST_INT8 = 127
"""The largest value of a row."""
FARTHEST = 128
"""The largest magnitude of a weight, of -128."""
EXACT_SUM = 2**24 // (LARGEST_INT8 * FARTHEST)
"""The number of products of two such numbers that add up exactly in float32, in any order."""
EXACT_HALF = 2**24 // (64 * FARTHEST)
"""The same for products of a weight and half of a row's number."""
TRIED_ROWS = (1, 2, 3, 5, 8, 17, 40)
OTHERS, HEAD = 2, 64
"""Norms, roundings and exponentials of the lean path for each of its products, and the size of a head."""
SHOWN = 150
"""Characters of another library's error."""
TIMED = (1024, 8192)
"""Inputs and outputs of the weight that kernels are timed with."""
FAILS = (RuntimeError, AttributeError, NotImplementedError)
"""The errors of torch if it has no such kernel for this processor."""


class Product(ABC):
    """A weight as one kernel wants it."""

    def __init__(self, weight: torch.Tensor, scales: torch.Tensor) -> None:
        """``weight`` is ``[outputs, inputs]``; there is a scale for each output."""
        self.scales = scales

    @abstractmethod
    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Scaled sums ``[n, outputs]`` of rows ``[n, inputs]`` of whole numbers, which may be written to."""

    @abstractmethod
    def weight(self) -> torch.Tensor:
        """The integers ``[outputs, inputs]``."""


class OneDNN(Product):
    """oneDNN's linear layer over its own blocked layout."""

    def __init__(self, weight: torch.Tensor, scales: torch.Tensor) -> None:
        super().__init__(weight, scales)
        self._packed: torch.Tensor = torch.ops.onednn.qlinear_prepack(weight, None)
        self._zeros = torch.zeros(len(weight), dtype=torch.int64)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        integers = rows.add_(ZERO).to(torch.uint8)
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
        return self.sums(rows, ZERO)

    def sums(self, rows: torch.Tensor, zero: int) -> torch.Tensor:
        found: torch.Tensor = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
            rows, 1.0, zero, self._packed
        )
        return found

    def weight(self) -> torch.Tensor:
        unpacked: torch.Tensor = torch.ops.quantized.linear_unpack(self._packed)[0]
        return unpacked.int_repr()


class FbgemmHalves(Product):
    """For processors that add pairs of products in 16 bits: those of numbers up to 64 fit. Weights are read once for
    both halves of a row, in pieces whose sums a float holds exactly."""

    def __init__(self, weight: torch.Tensor, scales: torch.Tensor) -> None:
        super().__init__(weight, scales)
        self._pieces = [Fbgemm(part.contiguous(), torch.ones(len(part))) for part in weight.split(EXACT_HALF, dim=1)]

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        below = (rows * 0.5).floor_()
        halves = torch.cat((below, rows.sub_(below))).split(EXACT_HALF, dim=1)
        sums = [piece.sums(part, ZERO // 2).int() for part, piece in zip(halves, self._pieces, strict=True)]
        total = added(sums)
        return (total[: len(rows)] + total[len(rows) :]).float().mul_(self.scales)

    def weight(self) -> torch.Tensor:
        return torch.cat([piece.weight() for piece in self._pieces], dim=1)


class PlainProduct(Product):
    """Torch's product of 8-bit matrices, over the weight as it is."""

    def __init__(self, weight: torch.Tensor, scales: torch.Tensor) -> None:
        super().__init__(weight, scales)
        self._weight = weight

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        sums: torch.Tensor = torch._int_mm(rows.to(torch.int8), self._weight.t())
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
        parts = rows.split(EXACT_SUM, dim=1)
        sums = [(part @ piece.t()).int() for part, piece in zip(parts, self._pieces, strict=True)]
        return added(sums).float().mul_(self.scales)

    def weight(self) -> torch.Tensor:
        return torch.cat(self._pieces, dim=1).to(torch.int8)


def added(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """The sum of tensors, in the first of them."""
    total = parts[0]
    for other in parts[1:]:
        total += other
    return total


class Compiled(Product):
    """Our own, which a whole forward is compiled with (`fused`)."""

    weights: Weights

    def __init__(self, weight: torch.Tensor, scales: torch.Tensor) -> None:
        from paceline.targets.hf.fused import weights

        super().__init__(weight, scales)
        self._inputs = weight.shape[1]
        self.weights, self._fused = weights.of_bytes(weight, scales), weights

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return self._fused.product(rows, self.weights)

    def weight(self) -> torch.Tensor:
        return self._fused.bytes_of(self.weights)[:, : self._inputs]


class CompiledNibbles(Compiled):
    """Over integers of 4 bits in groups. A group's integers times its multiplier are whole numbers too."""

    def __init__(self, values: torch.Tensor, multipliers: torch.Tensor, scales: torch.Tensor) -> None:
        from paceline.targets.hf.fused import weights

        self.scales, self._inputs = scales, values.shape[1]
        self.weights, self._fused = weights.of_nibbles(values, multipliers, scales), weights

    def weight(self) -> torch.Tensor:
        groups, multipliers = self._fused.groups_of(self._inputs), self.weights.multipliers
        assert multipliers is not None, "nibbles have multipliers"
        values: torch.Tensor = self._fused.nibbles_of(self.weights)[:, : self._inputs].int()
        return values * multipliers[:, groups]


KERNELS: tuple[type[Product], ...] = (Fbgemm, OneDNN, FbgemmHalves, PlainProduct)


@cache
def fastest(threads: int, *, compiled: bool = False) -> type[Product]:
    """The fastest of the exact kernels on this processor with ``threads`` threads."""
    own = [Compiled] if compiled else []
    if compiled and not _multiplies_in_one():
        return Compiled
    return chosen([*own, *filter(is_exact, KERNELS)] or [InFloats])


def kernel_for(threads: int) -> type[Product]:
    """The kernel of a layer."""
    return fastest(threads, compiled=obstacle() is None)


def _multiplies_in_one() -> bool:
    """Whether the processor multiplies 8-bit integers and adds them up in one instruction. Others' kernels then are
    fast too, and without it they are not."""
    from paceline.targets.hf.fused.instructions import FOURS

    return FOURS is not None


@cache
def without_numba() -> str | None:
    """Why numba cannot be used, in a few words, if so."""
    try:
        import numba  # noqa: F401
    except ImportError:
        return "numba is not installed"
    except Exception as error:
        return f"numba cannot be used ({short(error)})"
    return None


@cache
def obstacle() -> str | None:
    """Why products of integers are not compiled here, in a few words, if so."""
    if (why := without_numba()) is not None:
        return why
    import numba

    try:
        exact = is_exact(Compiled)
    except Exception as error:
        return f"numba {numba.__version__} does not compile it ({short(error)})"
    return None if exact else f"numba {numba.__version__} compiles wrong sums"


@cache
def obstacle_to_nibbles() -> str | None:
    """The same of products of 4-bit integers."""
    if (why := obstacle()) is not None:
        return why
    import numba

    try:
        right = all(_finds_nibbles(inputs) for inputs in (32, 576, 1100))
    except Exception as error:
        return f"numba {numba.__version__} does not compile it ({short(error)})"
    return None if right else f"numba {numba.__version__} compiles wrong sums"


def _finds_nibbles(inputs: int) -> bool:
    """Whether sums of 4-bit integers in groups are right, the largest ones too."""
    outputs, count = 7, 5
    values = torch.arange(outputs * inputs).mul(7).remainder(16).sub(8).view(outputs, inputs).to(torch.int8)
    multipliers = torch.arange(outputs * -(-inputs // SPAN) * PAIRS).mul(31).remainder(401).sub(200).view(outputs, -1)
    values[0], multipliers[:2] = LOWEST, largest_multiplier(inputs)
    product = CompiledNibbles(values, multipliers, torch.ones(outputs, dtype=torch.float32))
    rows = torch.arange(count * inputs).mul(17).remainder(2 * LARGEST_INT8 + 1).sub(LARGEST_INT8).view(count, inputs)
    rows[0] = LARGEST_INT8
    wanted = (rows @ product.weight().long().t()).float()
    return all(torch.equal(product(rows[:n].float()), wanted[:n]) for n in range(1, count + 1))


def short(error: Exception) -> str:
    """Another library's error on a line."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:SHOWN]


def chosen(kernels: Sequence[type[Product]], clock: Callable[[], float] = time.perf_counter) -> type[Product]:
    """The kernel with the least time over a single row and over drafts, each as a share of the quickest. Those that are
    not compiled together with the rest of a forward are timed with torch's operations for that rest."""
    if len(kernels) == 1:
        return kernels[0]
    inputs, outputs = TIMED
    weight = torch.ones(outputs, inputs, dtype=torch.int8)
    products = [kernel(weight, torch.ones(outputs)) for kernel in kernels]
    layers = [product if isinstance(product, Compiled) else _among_others(product) for product in products]
    took = relative(layers, [torch.ones(max(TIMED_ROWS), inputs)] * len(products), clock)
    took = [FAVOUR * one if isinstance(each, Compiled) else one for one, each in zip(took, products, strict=True)]
    return kernels[took.index(min(took))]


def _among_others(product: Product) -> Callable[[torch.Tensor], object]:
    """A product with as many of torch's operations as come with it in a forward of the lean path."""
    from paceline.targets.hf.integers.operations import coarse, exponential, normed

    weight = torch.ones(TIMED[0])

    def computed(rows: torch.Tensor) -> None:
        heads = rows.view(len(rows), -1, HEAD)
        product(rows.clone())
        for _ in range(OTHERS):
            coarse(heads)
            exponential(normed(rows, weight, 1.0)).add_(rows).mul_(rows).sum(-1)

    return computed


@torch.no_grad()
def is_exact(kernel: type[Product]) -> bool:
    """Whether a kernel finds the sums of integers as they are, also the largest ones and for any number of rows, and
    scales them by one product of floats."""
    inputs, outputs = EXACT_HALF + 3 * 64, 96
    sign = torch.ones(outputs, inputs, dtype=torch.int8)
    sign[1::2, 1::2] = -1
    mixed = (
        torch.arange(outputs * inputs).mul(31).remainder(2 * LARGEST_INT8 + 1).sub(LARGEST_INT8).view(outputs, inputs)
    )
    mixed[2::3] = -FARTHEST
    farthest = torch.where(sign > 0, LARGEST_INT8, -FARTHEST)
    for weight in (LARGEST_INT8 * sign, farthest.to(torch.int8), mixed.to(torch.int8)):
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
    rows = torch.arange(count * inputs).mul(17).remainder(2 * LARGEST_INT8 + 1).sub(LARGEST_INT8).view(count, inputs)
    rows[0], rows[-1] = LARGEST_INT8, LARGEST_INT8 * (1 - 2 * (torch.arange(inputs) % 2))
    wanted = (rows @ weight.long().t()).float() * scales
    return torch.equal(product(rows.float()), wanted) and torch.equal(product.weight(), weight)
