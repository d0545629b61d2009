"""Packed weights: linear layers in the blocked layout of the CPU's matrix kernels, arranged once at load.

Decoding reads every weight for a few rows, so memory bandwidth limits it. Torch's linear layer stores weights row by
row and reaches a fraction of that bandwidth with few rows. oneDNN's blocked layout comes close to all of it, for one
row as for a whole draft, so plain decoding gains as much as drafting does.

Packing is exact: ``weight`` unpacks to the same values, copies and pickles are ordinary layers, and a state dict holds
ordinary weights. Packing cannot be undone in place, so only models that the engine loaded itself are packed; to change,
move or cast a model, load it with transformers and hand it over. ``weight`` is a copy of the weight that is computed
with, so it is read-only; tensors of a state dict are copies that may be written to. Packed weights are no parameters:
``parameters()`` and transformers' ``num_parameters()`` leave them out, `parameter_count` counts them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NoReturn

import torch
from torch import nn
from torch.utils._pytree import tree_map

from paceline.errors import InputError
from paceline.targets.hf.snapshot import is_altered
from paceline.targets.identity import identity_of, sample_step

SMALLEST = {torch.float32: 1 << 16, torch.bfloat16: 1 << 14}
"""Weights with fewer values than this are not packed: the call costs more than packing gains."""
CLOSE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
"""The largest accepted difference of packed and ordinary kernels, as a share of the output's standard deviation."""


class PackedLinear(nn.Module):
    """A linear layer over a packed weight."""

    def __init__(self, layer: nn.Linear, *, tied: bool = False) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.bias = layer.bias
        self.tied = tied
        """Whether another module, an embedding, holds the same weight unpacked."""
        self.identity = identity(layer.weight)
        self._packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach())

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._packed, self.bias, "none", [], "")
        return result

    def unpacked_weight(self) -> torch.Tensor:
        """The ordinary weight, as a copy."""
        dense: torch.Tensor = self._packed.to_dense()
        return dense

    @property
    def nbytes(self) -> int:
        """Bytes that a forward reads."""
        return self.in_features * self.out_features * self._packed.element_size()

    @property
    def weight(self) -> torch.Tensor:
        """The ordinary weight, read-only."""
        return self.unpacked_weight().as_subclass(ReadOnlyWeight)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "weight":
            raise InputError(FINAL)
        super().__setattr__(name, value)

    def unpacked(self) -> nn.Linear:
        """An ordinary layer of the same values."""
        bias = None if self.bias is None else self.bias.detach().clone()
        return ordinary(self.unpacked_weight(), bias)

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Linear:
        return self.unpacked()

    def __reduce__(self) -> tuple[Any, ...]:
        return ordinary, (self.unpacked_weight(), self.bias)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}weight"] = self.unpacked_weight()

    def _apply(self, *_: Any, **__: Any) -> NoReturn:
        raise InputError(FINAL)

    def _load_from_state_dict(self, *_: Any, **__: Any) -> NoReturn:
        raise InputError(FINAL)


class ReadOnlyWeight(torch.Tensor):
    """A weight that refuses writes, as do views of it: they would change a copy. What is computed from it is an
    ordinary tensor. (A numpy view of it cannot refuse writes.)"""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        written = [*args[:1], kwargs["out"]] if "out" in kwargs else args[:1] if _writes(func.__name__) else ()
        if any(isinstance(tensor, ReadOnlyWeight) for tensor in written):
            raise InputError(FINAL)
        with torch._C.DisableTorchFunctionSubclass():
            memory = {tensor.untyped_storage().data_ptr() for tensor in args if isinstance(tensor, ReadOnlyWeight)}

            def shown(result: Any) -> Any:
                strided = isinstance(result, torch.Tensor) and result.layout is torch.strided
                return result.as_subclass(cls) if strided and result.untyped_storage().data_ptr() in memory else result

            return tree_map(shown, func(*args, **kwargs))

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.Tensor:
        return self.clone()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.clone().__reduce_ex__(protocol)


def _writes(name: str) -> bool:
    """Whether a function of this name writes to its first argument: torch's own names end in one underline."""
    inside = name.startswith("__i") and name not in ("__index__", "__int__", "__invert__", "__iter__")
    return inside or name in ("__setitem__", "__set__") or (name.endswith("_") and not name.endswith("__"))


FINAL = (
    "the weights of a model that Paceline loaded are packed for this CPU and cannot be moved, cast or replaced; "
    "load it with transformers, change it, and hand it over"
)


def ordinary(weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Linear:
    """A linear layer with these values."""
    with torch.device("meta"):
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    layer.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias, requires_grad=False)
    return layer


def pack(model: nn.Module) -> bool:
    """Pack every linear layer that gains from it, in place and one at a time; whether any was packed. Nothing is packed
    where the kernels cannot or compute something else, or where not all of the model is in memory."""
    if not torch.backends.mkldnn.is_available() or any(weight.is_meta for weight in model.parameters()):
        return False
    uses = Counter(weight.data_ptr() for _, weight in model.named_parameters(remove_duplicate=False))
    places = [(parent, name) for parent in model.modules() for name, layer in parent.named_children() if gains(layer)]
    for done, (parent, name) in enumerate(places):
        layer: Any = getattr(parent, name)
        packed = _tried(layer, tied=uses[layer.weight.data_ptr()] > 1)
        if packed is None:
            return done > 0
        setattr(parent, name, packed)
    return bool(places)


def parameter_count(model: nn.Module) -> int:
    """Values in a model's weights, packed ones included, tied ones once."""
    own = sum(weight.numel() for weight in model.parameters())
    packed = (layer for layer in model.modules() if isinstance(layer, PackedLinear) and not layer.tied)
    return own + sum(layer.in_features * layer.out_features for layer in packed)


def identities(model: nn.Module) -> Iterator[tuple[str, bytes]]:
    """Name and `identity` of every weight that a state dict would hold; none is unpacked for it."""
    for prefix, module in model.named_modules(remove_duplicate=False):
        lead = f"{prefix}." if prefix else ""
        kept = {n: b for n, b in module._buffers.items() if n not in module._non_persistent_buffers_set}
        for name, weight in (*module._parameters.items(), *kept.items()):
            if weight is not None:
                yield lead + name, identity(weight)
        if isinstance(module, PackedLinear):
            yield f"{lead}weight", module.identity


def identity(weight: torch.Tensor) -> bytes:
    """A digest of a weight's shape and of an even sample of its values; a wider type does not change it."""
    flat = weight.detach().reshape(-1)
    return identity_of(tuple(weight.shape), flat[:: sample_step(flat.numel())].float().cpu().numpy())


def is_ordinary(layer: Any) -> bool:
    """Whether this is a plain linear layer, not hooked, on the CPU in a type that can be packed."""
    if type(layer) is not nn.Linear or is_altered(layer):
        return False
    return layer.weight.device.type == "cpu" and layer.weight.dtype in SMALLEST


def packed_here(layer: nn.Linear) -> PackedLinear | None:
    """An ordinary layer packed; None where this machine cannot."""
    return _tried(layer, tied=False) if torch.backends.mkldnn.is_available() else None


def packed_if_large(layer: nn.Linear) -> nn.Linear | PackedLinear | None:
    """An ordinary layer, packed where that gains; None where this machine cannot."""
    return packed_here(layer) if gains(layer) else layer


def gains(layer: Any) -> bool:
    """Whether a layer is worth packing."""
    return is_ordinary(layer) and layer.weight.numel() >= SMALLEST[layer.weight.dtype]


@torch.no_grad()
def _tried(layer: nn.Linear, *, tied: bool) -> PackedLinear | None:
    """The packed layer, if this machine can pack it and its output is that of the ordinary one."""
    try:
        packed = PackedLinear(layer, tied=tied)
        rows = torch.linspace(-1, 1, 2 * layer.in_features, dtype=layer.weight.dtype).view(1, 2, -1)
        ours, wanted = packed(rows).float(), layer(rows).float()
    except (RuntimeError, AttributeError, NotImplementedError):
        return None
    apart = (ours - wanted).square().mean().sqrt() / wanted.square().mean().sqrt().clamp_min(1e-20)
    return packed if float(apart) < CLOSE[layer.weight.dtype] else None
