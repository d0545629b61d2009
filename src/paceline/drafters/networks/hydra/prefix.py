"""The prefix layer of Hydra++: one layer of a Llama over the target's states of a text, and a norm.

Each row reads the state of one token and the states before it. Keys and values depend on a row's own state alone, so
those of a text are kept, and a draft computes the layer for the last row only.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from paceline.drafters.networks.layers import RMSNorm, SwiGLU, attended, rotated, turns
from paceline.errors import InputError


@dataclass(frozen=True, kw_only=True)
class PrefixShape:
    """The sizes of the layer beside the target's width."""

    heads: int
    key_heads: int
    head_width: int
    units: int
    """Of the MLP."""
    eps: float = 1e-6
    theta: float = 10_000.0

    def __post_init__(self) -> None:
        for name in ("heads", "key_heads", "head_width", "units"):
            if (size := getattr(self, name)) < 1:
                raise InputError(f"{name} of Hydra's prefix layer is at least 1, not {size}")
        if self.heads % self.key_heads:
            raise InputError(f"{self.heads} heads of a prefix layer cannot share {self.key_heads} keys")
        if self.head_width % 2:
            raise InputError(f"heads of a prefix layer are {self.head_width} wide, and rotations need an even width")


class PrefixAttention(nn.Module):
    """Projections of the layer's attention, ``[..., rows, heads, head_width]``."""

    def __init__(self, width: int, shape: PrefixShape) -> None:
        super().__init__()
        own, shared = shape.heads * shape.head_width, shape.key_heads * shape.head_width
        self.q_proj = nn.Linear(width, own, bias=False)
        self.k_proj = nn.Linear(width, shared, bias=False)
        self.v_proj = nn.Linear(width, shared, bias=False)
        self.o_proj = nn.Linear(own, width, bias=False)


class PrefixLayer(nn.Module):
    """The layer's weights."""

    def __init__(self, width: int, shape: PrefixShape) -> None:
        super().__init__()
        self.self_attn = PrefixAttention(width, shape)
        self.mlp = SwiGLU(width, shape.units)
        self.input_layernorm = RMSNorm(width, shape.eps)
        self.post_attention_layernorm = RMSNorm(width, shape.eps)


class PrefixModel(nn.Module):
    """The layer and the norm behind it, under the names of a Llama."""

    def __init__(self, width: int, shape: PrefixShape) -> None:
        super().__init__()
        self.shape = shape
        self.layers = nn.ModuleList([PrefixLayer(width, shape)])
        self.norm = RMSNorm(width, shape.eps)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """The outputs ``[..., rows, width]`` for the states of whole texts: every row reads those before it."""
        count = states.shape[-2]
        positions = torch.arange(count, device=states.device)
        visible = torch.ones(count, count, dtype=torch.bool, device=states.device).tril()
        found = attended(self.queries(states, positions), *self.keys_values(states, positions), visible)
        return self.outputs(states, found)

    def queries(self, states: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Queries of rows at these positions."""
        return self._rotated(self._layer.self_attn.q_proj(self._layer.input_layernorm(states)), positions)

    def keys_values(self, states: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of rows at these positions."""
        normed, projections = self._layer.input_layernorm(states), self._layer.self_attn
        values = projections.v_proj(normed).unflatten(-1, (-1, self.shape.head_width))
        return self._rotated(projections.k_proj(normed), positions), values

    def outputs(self, states: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
        """The outputs for states whose queries found this, ``[..., rows, heads, head_width]``."""
        states = states + self._layer.self_attn.o_proj(found.flatten(-2))
        states = states + self._layer.mlp(self._layer.post_attention_layernorm(states))
        return self.norm(states)  # type: ignore[no-any-return]

    def _rotated(self, rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        width = self.shape.head_width
        return rotated(rows.unflatten(-1, (-1, width)), turns(positions, width, self.shape.theta))

    @property
    def _layer(self) -> PrefixLayer:
        (layer,) = self.layers
        return layer  # type: ignore[return-value]
