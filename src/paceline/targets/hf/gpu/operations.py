"""The lean forward's operations as kernels, where a layer is what they are written for; else as torch has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from paceline.targets.hf.attention import KVCache
from paceline.targets.hf.gpu import running
from paceline.targets.hf.gpu.block import KernelBlock
from paceline.targets.hf.operations import CosSin, Heads, Operations, weight_of
from paceline.targets.hf.variants import is_silu

if TYPE_CHECKING:
    from paceline.targets.hf.variants import Layer


class LayerKernels(Operations):
    """Of recorded forwards, whose keys and values are in a `KernelBlock`."""

    def norm(self, states: torch.Tensor, norm: Any) -> torch.Tensor:
        weight = weight_of(norm)
        if weight.dtype != states.dtype or states.shape[:-2].numel() != 1:
            return super().norm(states, norm)
        return running.add_norm(states, None, weight, norm.variance_epsilon)[1]

    def added(self, states: torch.Tensor, more: torch.Tensor, norm: Any) -> tuple[torch.Tensor, torch.Tensor]:
        weight = weight_of(norm)
        if not weight.dtype == states.dtype == more.dtype:
            return super().added(states, more, norm)
        return running.add_norm(states, more, weight, norm.variance_epsilon)

    def gated(self, gate: torch.Tensor, up: torch.Tensor, act: Any) -> torch.Tensor:
        return running.gate(gate, up) if is_silu(act) and gate.dtype == up.dtype else super().gated(gate, up, act)

    def placed(self, heads: Heads, layer: Layer, place: int, cos_sin: CosSin, rows: KVCache) -> torch.Tensor:
        assert isinstance(rows, KernelBlock), "kernels write to slots"
        norms, kinds = None, {heads.all.dtype, *(part.dtype for part in cos_sin)}
        if layer.norms is not None:
            query, key = (running.HeadNorm(weight_of(norm), norm.variance_epsilon) for norm in layer.norms)
            norms, kinds = (query, key), kinds | {query.weight.dtype, key.weight.dtype}
        slots = rows.slots(place)
        if len(kinds | {slots[0].dtype}) > 1:
            return super().placed(heads, layer, place, cos_sin, rows)
        return running.rotate_and_write(heads, cos_sin, norms, slots, rows.inputs).transpose(1, 2)
