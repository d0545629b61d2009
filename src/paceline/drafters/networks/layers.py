"""Parts of attention layers that heads are made of. All of them are differentiable."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class RMSNorm(nn.Module):
    """Channels divided by the root of their mean square, in float32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        wide = states.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(states.dtype)


class SwiGLU(nn.Module):
    """The MLP of a layer."""

    def __init__(self, width: int, units: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, units, bias=False)
        self.up_proj = nn.Linear(width, units, bias=False)
        self.down_proj = nn.Linear(units, width, bias=False)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(states)) * self.up_proj(states))  # type: ignore[no-any-return]


def turns(positions: torch.Tensor, width: int, theta: float) -> torch.Tensor:
    """Angles ``[..., width / 2]`` of rotary embeddings at these positions."""
    shares = torch.arange(0, width, 2, dtype=torch.float, device=positions.device) / width
    return positions[..., None].float() / theta**shares


def rotated(states: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """``[..., rows, heads, width]`` rotated by the angles ``[..., rows, width / 2]`` of their rows."""
    angles = torch.cat([angles, angles], dim=-1)[..., None, :]
    first, second = states.chunk(2, dim=-1)
    turned = torch.cat([-second, first], dim=-1)
    return states * angles.cos().to(states.dtype) + turned * angles.sin().to(states.dtype)


def attended(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, visible: torch.Tensor | None
) -> torch.Tensor:
    """``[..., rows, heads, width]`` each; ``visible`` says which row sees which key, ``[..., rows, keys]``; None for
    all. Several heads may share a key."""
    asked, known, found = (each.transpose(-3, -2) for each in (queries, keys, values))
    mask = None if visible is None else visible[..., None, :, :]
    read = F.scaled_dot_product_attention(asked, known, found, mask, enable_gqa=queries.shape[-2] != keys.shape[-2])
    return read.transpose(-3, -2)
