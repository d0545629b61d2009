"""The prefix layer of Hydra++: one layer of a Llama over the target's states of a text, and a norm.

Each row reads the state of one token and the states before it. Keys and values depend on a row's own state alone, so
those of a text are kept, and a draft computes the layer for the last row only.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from paceline.drafters.networks.layers import Attend, DecoderLayer, LayerShape, RMSNorm, WindowRows
from paceline.drafters.networks.rotary import Rotary
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

    def layer(self, width: int) -> LayerShape:
        """Of a layer for a target of this width."""
        return LayerShape(
            width=width,
            units=self.units,
            heads=self.heads,
            kv_heads=self.key_heads,
            head_size=self.head_width,
            eps=self.eps,
        )


class PrefixModel(nn.Module):
    """The layer and the norm behind it, under the names of a Llama."""

    def __init__(self, width: int, shape: PrefixShape) -> None:
        super().__init__()
        self.shape = shape
        self.layers = nn.ModuleList([DecoderLayer(shape.layer(width), 0)])
        self.norm = RMSNorm(width, shape.eps)
        self._rotary = Rotary.of({"rope_theta": shape.theta}, shape.head_width)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """The outputs ``[..., rows, width]`` for the states of whole texts: every row reads those before it."""
        count = states.shape[-2]
        visible = torch.ones(count, count, dtype=torch.bool, device=states.device).tril()
        return self.outputs(states, torch.arange(count, device=states.device), WindowRows().step(visible))

    def outputs(self, states: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        """The outputs for states at these positions, whose queries find what ``attend`` says."""
        rotation = self._rotary.at(positions, states.dtype)
        return self.norm(self._layer(states, rotation, attend))  # type: ignore[no-any-return]

    def keys_values(self, states: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values ``[..., rows, heads, size]`` of states at these positions."""
        read, rotation = self._layer.input_layernorm(states), self._rotary.at(positions, states.dtype)
        return self._layer.self_attn.keys(read, rotation)

    @property
    def _layer(self) -> DecoderLayer:
        return self.layers[0]  # type: ignore[return-value]
