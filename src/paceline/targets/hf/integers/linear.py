"""Linear layers in 8-bit and 4-bit integers: a scale for every output channel, and for every row as it comes."""

from __future__ import annotations

import hashlib

import torch
from torch import nn

from paceline.targets.hf.integers.groups import in_groups
from paceline.targets.hf.integers.kernels import LARGEST_INT8, CompiledNibbles, Product, kernel_for
from paceline.targets.hf.packed import PackedLinear, identity

Integers = tuple[torch.Tensor, torch.Tensor]
"""A weight ``[outputs, inputs]``, and a scale for each output in float32."""
TINY = 1e-30
"""Stands for the scale of a channel of zeros."""


class IntegerLinear(PackedLinear):
    """A linear layer over a weight in integers. The integers of a row, and so its result, do not depend on the rows
    beside it."""

    product: Product

    def __init__(self, layer: nn.Linear, *, tied: bool = False) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.bias = layer.bias
        self.tied = tied

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        with torch._C.DisableTorchFunction():  # a tenth of the time of a row, where everything else is in `doubles`
            return self._computed(rows)

    def _computed(self, rows: torch.Tensor) -> torch.Tensor:
        shape, kind = rows.shape[:-1], rows.dtype
        rows = rows.reshape(-1, self.in_features)
        steps = rows.abs().amax(-1, keepdim=True).mul_(1 / LARGEST_INT8)  # of a row of zeros 0, and so is its result
        steps = steps.float().to(kind)  # so that a product of doubles is exact, and the same in every forward
        found = self.product((rows / steps).round_().float()).to(kind).mul_(steps)
        found = found if self.bias is None else found.add_(self.bias)
        return found.view(*shape, self.out_features)


class Int8Linear(IntegerLinear):
    """Over 8-bit integers and a scale for each output."""

    def __init__(
        self,
        layer: nn.Linear,
        integers: Integers | None = None,
        *,
        tied: bool = False,
        kernel: type[Product] | None = None,
    ) -> None:
        """``integers`` are used instead of rounding the layer's weight, and ``kernel`` instead of the fastest one."""
        super().__init__(layer, tied=tied)
        self.identity = hashlib.sha256(b"int8" + _origin(layer, integers)).digest()
        kernel = kernel or kernel_for(torch.get_num_threads())
        self.product = kernel(*integers or quantized(layer.weight.detach()))

    @property
    def nbytes(self) -> int:
        return self.in_features * self.out_features

    def unpacked_weight(self) -> torch.Tensor:
        """The weight that is computed with, as floats."""
        return self.product.weight().float().mul_(self.product.scales[:, None])


class Int4Linear(IntegerLinear):
    """Over 4-bit integers, whole numbers that each group of them is multiplied with, and a scale for each output."""

    def __init__(self, layer: nn.Linear, *, tied: bool = False) -> None:
        super().__init__(layer, tied=tied)
        self.identity = hashlib.sha256(b"int4" + identity(layer.weight)).digest()
        self.product = CompiledNibbles(*in_groups(layer.weight.detach()))

    @property
    def nbytes(self) -> int:
        return self.in_features * self.out_features * 9 // 16

    def unpacked_weight(self) -> torch.Tensor:
        """The weight that is computed with, as floats."""
        return self.product.weight().float().mul_(self.product.scales[:, None])


def _origin(layer: nn.Linear, integers: Integers | None) -> bytes:
    """A digest of the values that a layer in integers was made of."""
    return identity(layer.weight) if integers is None else b"".join(map(identity, integers))


def quantized(weight: torch.Tensor) -> Integers:
    """A weight ``[outputs, inputs]`` as integers and a scale for each output."""
    wide = weight.float()
    scales = wide.abs().amax(dim=1).clamp_min(TINY) / LARGEST_INT8
    return (wide / scales[:, None]).round_().to(torch.int8), scales
