"""Weights in the layout that the CPU's matrix kernels want, arranged once at load instead of in every forward.

Decoding reads every weight for a handful of rows, so it runs at the speed at which weights arrive. Torch's ordinary
linear layer keeps them row by row and, called with few rows, reaches a fraction of that speed; oneDNN's own blocked
layout comes close to all of it, for one row as for a whole draft. Plain decoding gains as much as drafting does.

The arrangement is exact: a packed layer's ``weight`` unpacks to the same values, copies of it are ordinary layers, and
a state dict shows ordinary weights. Only models that the engine loaded itself are packed, never one handed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

TYPES = (torch.float32, torch.bfloat16)
SMALLEST = 1 << 14
"""Weights with fewer values than this stay as they are: arranging them gains less than the call costs."""
CLOSE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
"""Of the output's spread: how far packed and ordinary kernels may lie apart."""


class PackedLinear(nn.Module):
    """A linear layer over a packed weight."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.bias = layer.bias
        self._packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach())

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._packed, self.bias, "none", [], "")
        return result

    @property
    def weight(self) -> torch.Tensor:
        """The ordinary weight, unpacked for whoever asks."""
        dense: torch.Tensor = self._packed.to_dense()
        return dense

    def unpacked(self) -> nn.Linear:
        """An ordinary layer of the same values."""
        with torch.device("meta"):
            layer = nn.Linear(self.in_features, self.out_features, bias=self.bias is not None)
        layer.weight = nn.Parameter(self.weight, requires_grad=False)
        if self.bias is not None:
            layer.bias = nn.Parameter(self.bias.detach().clone(), requires_grad=False)
        return layer

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Linear:
        return self.unpacked()

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}weight"] = self.weight


def pack(model: nn.Module) -> bool:
    """Pack every linear layer that gains from it, in place and one at a time; whether anything was packed.

    A machine whose kernels cannot, or give something else, leaves the model as it is.
    """
    packed = False
    for parent, name, layer in list(_layers(model)):
        replacement = _tried(layer)
        if replacement is None:
            return packed
        setattr(parent, name, replacement)
        packed = True
    return packed


def parameter_count(model: nn.Module) -> int:
    """How many values a model holds, packed ones included."""
    own = sum(p.numel() for p in model.parameters())
    return own + sum(m.in_features * m.out_features for m in model.modules() if isinstance(m, PackedLinear))


def _layers(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Linear]]:
    """The layers worth packing: ordinary ones, not a subclass that does something of its own."""
    for parent in model.modules():
        for name, layer in parent.named_children():
            if type(layer) is nn.Linear and _gains(layer.weight):
                yield parent, name, layer


def _gains(weight: torch.Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype in TYPES and weight.numel() >= SMALLEST


@torch.no_grad()
def _tried(layer: nn.Linear) -> PackedLinear | None:
    """The packed layer, if this machine can pack and finds what the ordinary one finds."""
    if not torch.backends.mkldnn.is_available() or layer._forward_hooks or layer._forward_pre_hooks:
        return None
    try:
        packed = PackedLinear(layer)
        rows = torch.linspace(-1, 1, 2 * layer.in_features, dtype=layer.weight.dtype).view(1, 2, -1)
        ours, wanted = packed(rows).float(), layer(rows).float()
    except (RuntimeError, AttributeError, NotImplementedError):
        return None
    apart = (ours - wanted).square().mean().sqrt() / wanted.square().mean().sqrt().clamp_min(1e-20)
    return packed if float(apart) < CLOSE[layer.weight.dtype] else None
