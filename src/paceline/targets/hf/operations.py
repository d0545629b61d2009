"""The operations of the lean path that one kind of model computes in another way than the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from paceline.targets.hf.attention import KVCache, PackedKVCache, Segment


class Operations:
    """As the model's own modules compute them."""

    def cache(self, segments: Sequence[Segment]) -> KVCache:
        """Keys and values of a forward's sequences."""
        return PackedKVCache(segments)

    def norm(self, states: torch.Tensor, norm: Any) -> torch.Tensor:
        """The root-mean-square norm of a llama's module: in float32, cast back before the weights are applied."""
        weight = norm._parameters.get("weight")
        weight = norm.weight if weight is None else weight
        shape, eps = states.shape[-1:], norm.variance_epsilon
        if states.dtype == weight.dtype == torch.float32:
            return torch.rms_norm(states, shape, weight, eps)
        plain = torch.rms_norm(states.float(), shape, None, eps)
        result: torch.Tensor = weight * plain.to(states.dtype)
        return result

    def gated(self, gate: torch.Tensor, up: torch.Tensor, act: Any) -> torch.Tensor:
        """What the MLP reads down."""
        result: torch.Tensor = act(gate) * up
        return result
