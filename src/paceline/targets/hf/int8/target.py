"""A target whose weights are 8-bit integers and whose rows are the same, bit by bit, whatever they are scored with."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import nn

from paceline.errors import InputError
from paceline.targets.hf.int8.linear import Int8Linear
from paceline.targets.hf.int8.operations import ExactOperations, is_uniform
from paceline.targets.hf.joined import join
from paceline.targets.hf.lean import Lean
from paceline.targets.hf.own import Mode, OwnForward
from paceline.targets.hf.target import HFTarget
from paceline.targets.hf.variants import VARIANTS, Inspection
from paceline.targets.pocket.llama import BundledForCausalLM, as_transformers

FAMILIES = ", ".join(sorted(home.rpartition("_")[2] for home in VARIANTS if home.startswith("transformers")))
EXACT_LENGTH = 2**20
"""Texts up to this length leave values in attention enough bits."""


class Int8Target(HFTarget):
    """Computed by the lean path with exact operations, and by nothing else."""

    exact = True

    def __init__(self, model: Any, *, name: str, like: HFTarget | None = None) -> None:
        super().__init__(model, name=name, fixed_shapes=False)
        if like is not None:
            self.context_length, self.trusted, self.limits = like.context_length, like.trusted, like.limits
        _quantize(model)
        self._own = OwnForward(model, None, Mode.PACKED)
        inspection = Inspection(model)
        assert inspection.modules is not None, "only models of a known structure are quantised"
        self.paths = [Lean(self._own, inspection, ExactOperations(inspection.modules, self.context_length))]

    @property
    def own(self) -> OwnForward:
        """Transformers' forward over the same integers, which knows nothing of exact sums; for comparisons."""
        bundled: Any = self._own.model
        if isinstance(bundled, BundledForCausalLM):
            return OwnForward(as_transformers(bundled), None, Mode.PACKED)
        return self._own

    @property
    def dtype_name(self) -> str:
        return "int8"


def quantized(target: HFTarget) -> Int8Target:
    """The same model in 8-bit integers; the target it was loaded as cannot be used any more."""
    refuse(target)
    return Int8Target(target.model, name=target.name, like=target)


def check_place(
    name: str, dtype: torch.dtype | None, device: torch.device, device_map: str | dict[str, Any] | None = None
) -> None:
    """Refuse a type or a place that integers do not have, before anything is read."""
    if device.type != "cpu" or device_map is not None:
        raise InputError(f"quantize=int8 is for CPUs; leave it out, or the device that {name} is to be on")
    if dtype not in (None, torch.float32):
        raise InputError("quantize=int8 computes in float32 between its integers; leave dtype out")
    if not is_uniform():
        raise InputError("quantize=int8 needs kernels that treat all rows alike, and torch's here do not")


def refuse(target: HFTarget) -> None:
    """Say why a target cannot be quantised, if it cannot."""
    name = target.name
    if target.switch is not None or not any(isinstance(path, Lean) for path in target.paths):
        raise InputError(f"{name} cannot be quantised: quantize=int8 knows models built like {FAMILIES}")
    modules: Any = Inspection(target.model).modules
    if modules is None or not all(_is_silu(layer.act) for layer in modules.layers):
        raise InputError(f"{name} cannot be quantised: its layers use another activation than SiLU")
    if (target.context_length or 0) > EXACT_LENGTH:
        raise InputError(f"{name} cannot be quantised: texts of {target.context_length} tokens are too long for it")


def _is_silu(act: Any) -> bool:
    return isinstance(act, nn.SiLU) or type(act).__name__ == "SiLUActivation"


@torch.no_grad()
def _quantize(model: Any) -> None:
    """Replace every linear layer, one at a time, and widen what is left."""
    uses = Counter(weight.data_ptr() for _, weight in model.named_parameters(remove_duplicate=False))
    for layer in model.model.layers:
        join(layer.self_attn, ("q_proj", "k_proj", "v_proj"), Int8Linear)
        join(layer.mlp, ("gate_proj", "up_proj"), Int8Linear)
    for parent in list(model.modules()):
        for name, linear in list(parent.named_children()):
            if type(linear) is nn.Linear:
                setattr(parent, name, Int8Linear(linear, tied=uses[linear.weight.data_ptr()] > 1))
    for weight in model.parameters():
        weight.data = weight.data.float()
