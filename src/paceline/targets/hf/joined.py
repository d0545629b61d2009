"""Linear layers that read the same rows, computed as one: queries with keys and values, a gate with what it gates.

A kernel's call costs as much as a small layer's product, so a few wide layers are faster than many narrow ones. The
layers stay in the model as modules of their own, each with its share of the joint weight; only `lean` computes them
together. Like packing, joining is exact, final, and for models that nobody else holds.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from paceline.targets.hf.packed import PackedLinear, gains, identity, is_ordinary, ordinary, packed_here


class Joined:
    """The layers as one. No module: to the model it is not there."""

    def __init__(self, layer: nn.Linear | PackedLinear) -> None:
        self._layer = layer
        self.shares: list[Share] = []

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self._layer(rows)
        return result

    @property
    def weight(self) -> torch.Tensor:
        """Of all, one below the other; to be read."""
        return self._layer.weight


class Share(PackedLinear):
    """One of joined layers, for whoever calls it by itself: all are computed then and the others' share is dropped, for
    rows may be written to between two calls in ways that leave no trace, and `lean` does not come this way."""

    def __init__(self, layer: nn.Linear, joined: Joined) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.bias = layer.bias
        self.tied = False
        self.identity = identity(layer.weight)
        self.joined = joined
        start = sum(share.out_features for share in joined.shares)
        self._rows = slice(start, start + layer.out_features)
        joined.shares.append(self)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.joined(rows)[..., self._rows]

    def unpacked_weight(self) -> torch.Tensor:
        return self.joined.weight[self._rows].detach().clone()


def join(parent: nn.Module, names: Sequence[str]) -> bool:
    """Join these children of a module if they are ordinary layers without biases; whether they were."""
    layers = [getattr(parent, name) for name in names]
    if not all(is_ordinary(layer) and layer.bias is None for layer in layers):
        return False
    if len({(layer.in_features, layer.weight.dtype) for layer in layers}) > 1:
        return False
    stacked = ordinary(torch.cat([layer.weight.detach() for layer in layers]), None)
    together = packed_here(stacked) if any(gains(layer) for layer in layers) else stacked
    if together is None:
        return False
    joined = Joined(together)
    for name, layer in zip(names, layers, strict=True):
        setattr(parent, name, Share(layer, joined))
    return True


def shared(layers: Sequence[nn.Module]) -> Joined | None:
    """What computes these layers together, in this order, if there is nothing to any of them but its share."""
    shares = [layer for layer in layers if isinstance(layer, Share)]
    together = len(shares) == len(layers) and all(share.joined.shares == shares for share in shares)
    return shares[0].joined if together and not any(_is_touched(share) for share in shares) else None


def _is_touched(share: Share) -> bool:
    return bool("forward" in vars(share) or share._forward_hooks or share._forward_pre_hooks)
