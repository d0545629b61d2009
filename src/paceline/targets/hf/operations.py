"""The operations of the lean path that one kind of model or device computes in another way than the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from paceline.targets.hf.attention import KVCache, PackedKVCache, Segment

if TYPE_CHECKING:
    from paceline.targets.hf.variants import Layer

CosSin = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines ``[n, 1, width]`` of each row's rotary angles; sines of the first half of a head are negated."""


class Heads(NamedTuple):
    """Queries, keys and values of a layer, one behind the other, ``[1, n, heads, width]``."""

    all: torch.Tensor
    queries: int
    keys: int


class Operations:
    """As the model's own modules compute them."""

    def cache(self, segments: Sequence[Segment]) -> KVCache:
        """Keys and values of a forward's sequences."""
        return PackedKVCache(segments)

    def rounded(self, heads: torch.Tensor) -> torch.Tensor:
        """Rotated queries and keys ``[..., n, width]`` as attention reads them."""
        return heads

    def norm(self, states: torch.Tensor, norm: Any) -> torch.Tensor:
        """The root-mean-square norm of a llama's module: in float32, cast back before the weights are applied."""
        weight = weight_of(norm)
        shape, eps = states.shape[-1:], norm.variance_epsilon
        if states.dtype == weight.dtype == torch.float32:
            return torch.rms_norm(states, shape, weight, eps)
        plain = torch.rms_norm(states.float(), shape, None, eps)
        result: torch.Tensor = weight * plain.to(states.dtype)
        return result

    def added(self, states: torch.Tensor, more: torch.Tensor, norm: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """The states with more added to them, and their norm."""
        states = states + more
        return states, self.norm(states, norm)

    def placed(self, heads: Heads, layer: Layer, place: int, cos_sin: CosSin, rows: KVCache) -> torch.Tensor:
        """Queries ``[1, heads, n, width]`` of one layer, normed and rotated; writes keys and values to ``place``."""
        unrotated, value = heads.all[:, :, : heads.queries + heads.keys], heads.all[:, :, heads.queries + heads.keys :]
        if layer.norms is not None:
            query, key = unrotated.split((heads.queries, heads.keys), dim=2)
            unrotated = torch.cat((self.norm(query, layer.norms[0]), self.norm(key, layer.norms[1])), dim=2)
        rotated = self.rounded(_rotated(unrotated, cos_sin).transpose(1, 2))
        rows.write(place, rotated[:, heads.queries :], value.transpose(1, 2))
        return rotated[:, : heads.queries]

    def rotated(self, heads: torch.Tensor, cos_sin: CosSin) -> torch.Tensor:
        """Heads ``[1, n, heads, width]`` at their places."""
        return _rotated(heads, cos_sin)

    def gated(self, gate: torch.Tensor, up: torch.Tensor, act: Any) -> torch.Tensor:
        """The input of the MLP's down projection."""
        result: torch.Tensor = act(gate) * up
        return result


def weight_of(norm: Any) -> torch.Tensor:
    """Of a norm's module, by the shortest way."""
    weight: torch.Tensor | None = norm._parameters.get("weight")
    return norm.weight if weight is None else weight


def _rotated(heads: torch.Tensor, cos_sin: CosSin) -> torch.Tensor:
    """Heads ``[1, n, heads, width]``, each half of a head rotated with the other one."""
    cosines, sines = cos_sin
    return (heads * cosines).add_(heads.roll(heads.shape[-1] // 2, -1) * sines)
