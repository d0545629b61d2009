"""Linear layers that read the same rows, computed as one: queries with keys and values, gate with up projection.

A kernel's call costs as much as a small layer's product, so a few wide layers are faster than many narrow ones. Each
layer stays in the model as a module, a slice of the joint weight; only `lean` computes them together. Like packing,
joining is exact, cannot be undone, and is for models that have no other user.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from paceline.targets.hf.packed import PackedLinear, identity, is_ordinary, ordinary
from paceline.targets.hf.snapshot import is_altered


class JointLinear:
    """Several linear layers as one. Not a module, so the model does not list it."""

    def __init__(self, layer: nn.Linear | PackedLinear) -> None:
        self.layer = layer
        self.slices: list[LinearSlice] = []

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(rows)
        return result

    @property
    def nbytes(self) -> int:
        """Bytes of all layers."""
        if isinstance(self.layer, PackedLinear):
            return self.layer.nbytes
        return self.layer.weight.nbytes

    @property
    def weight(self) -> torch.Tensor:
        """Of all layers, one below the other; read-only."""
        return self.layer.weight


class LinearSlice(PackedLinear):
    """One of the joined layers as a module. Called by itself it computes all of them and drops the others' output: the
    input may be written to between two calls without a trace, so no output is kept, and `lean` does not call it."""

    def __init__(self, layer: nn.Linear, joint: JointLinear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.bias = layer.bias
        self.tied = False
        self.identity = identity(layer.weight)
        self.joint = joint
        start = sum(other.out_features for other in joint.slices)
        self.rows = slice(start, start + layer.out_features)
        joint.slices.append(self)

    @property
    def nbytes(self) -> int:
        return self.joint.nbytes * self.out_features // sum(part.out_features for part in self.joint.slices)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.joint(rows)[..., self.rows]

    def unpacked_weight(self) -> torch.Tensor:
        return self.joint.weight[self.rows].detach().clone()


Make = Callable[[nn.Linear], nn.Linear | PackedLinear | None]
"""Makes of a layer what computes it; None where it cannot."""


def join(parent: nn.Module, names: Sequence[str], make: Make) -> bool:
    """Join these children of a module if they are ordinary layers without biases; whether they were joined. What
    computes them is what ``make`` makes of all."""
    layers = [getattr(parent, name) for name in names]
    if not all(is_ordinary(layer) and layer.bias is None for layer in layers):
        return False
    if len({(layer.in_features, layer.weight.dtype) for layer in layers}) > 1:
        return False
    together = make(ordinary(torch.cat([layer.weight.detach() for layer in layers]), None))
    if together is None:
        return False
    joint = JointLinear(together)
    for name, layer in zip(names, layers, strict=True):
        setattr(parent, name, LinearSlice(layer, joint))
    return True


def joint_of(layers: Sequence[nn.Module]) -> JointLinear | None:
    """The joint layer of exactly these layers, in this order, if none is hooked or has another forward."""
    slices = [layer for layer in layers if isinstance(layer, LinearSlice)]
    together = len(slices) == len(layers) and all(part.joint.slices == slices for part in slices)
    return slices[0].joint if together and not any(is_altered(part) for part in slices) else None
