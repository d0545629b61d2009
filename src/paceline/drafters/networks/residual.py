"""Parts of heads without attention: residual blocks, output matrices, and the same of more channels.

All of them are differentiable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    """A layer beside its input, which another matrix brings to the layer's width if it has more channels."""

    def __init__(self, width: int, inputs: int = 0) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs or width, width)
        self.res_connection = nn.Linear(inputs, width) if inputs else None

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        beside = states if self.res_connection is None else self.res_connection(states)
        return beside + F.silu(self.linear(states))


def output(width: int, known: int, rank: int, *, bias: bool = False) -> nn.Module:
    """A matrix from states to logits, or two thin ones with ``rank`` channels between them."""
    if not rank:
        return nn.Linear(width, known, bias=bias)
    return nn.Sequential(nn.Linear(width, rank, bias=False), nn.Linear(rank, known, bias=bias))


Places = Callable[[str], tuple[torch.Tensor, torch.Tensor]]
"""The name of a layer -> where its outputs and its inputs are in the wider one."""


def transplant(small: Mapping[str, torch.Tensor], wide: nn.Module, places: Places) -> None:
    """Give wide layers the function of small ones. Other outputs are noise, and what is real does not read them."""
    with torch.no_grad():
        for name, weight in wide.named_parameters():
            rows, columns = places(name.rpartition(".")[0])
            weight[rows] = 0.0
            if weight.ndim == 1:
                weight[rows] = small[name].to(weight)
            else:
                weight[rows[:, None], columns] = small[name].to(weight)
