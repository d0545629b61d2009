"""Medusa's heads: each predicts the token at its own place behind a text, from the target's last state alone.

The state ``h`` is the one that the target's own output read for the text's last token. Head *i*, counted from 0,
predicts the token *i + 1* places behind that one ::

    logits = out_i(blocks_i(h))          a block is x + SiLU(A x + a)

``out_i`` is a matrix of the head, or the target's output, as the newer public training code has it. The blocks of a
head share their weights in public heads. To cost less, ``out_i`` may be two thin matrices (``rank``), and its
vocabulary a part of the target's (``kept``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from paceline.drafters.networks.residual import Block, output
from paceline.errors import InputError

Unembed = Callable[[torch.Tensor], torch.Tensor]
"""The target's output: states ``[n, width]`` -> logits ``[n, vocabulary]``."""


@dataclass(frozen=True, kw_only=True)
class MedusaShape:
    """The sizes of heads, for a target of ``width`` channels and ``vocab_size`` ids."""

    width: int
    vocab_size: int
    """0 if they use the target's output, and nothing is said of it."""
    heads: int = 4
    blocks: int = 1
    """Of each head."""
    tied: bool = True
    """Whether the blocks of a head are one block, applied several times."""
    own_output: bool = True
    """Whether each head has an output matrix, or all of them use the target's output."""
    rank: int = 0
    """The width between the two thin output matrices; 0 for one whole matrix."""
    kept: int = 0
    """How many of the target's tokens they know; 0 for all."""

    def __post_init__(self) -> None:
        for name in ("width", "vocab_size", "heads"):
            if (size := getattr(self, name)) < (1 if name != "vocab_size" or self.own_output else 0):
                raise InputError(f"{name} of Medusa's heads is at least 1, not {size}")
        for name in ("blocks", "rank", "kept"):
            if (size := getattr(self, name)) < 0:
                raise InputError(f"{name} of Medusa's heads is not negative, and this is {size}")
        if self.kept > self.vocab_size:
            raise InputError(f"heads cannot know {self.kept} of {self.vocab_size} tokens")
        if (self.rank or self.kept) and not self.own_output:
            raise InputError("heads that use the model's output have no rank and know all of its tokens")

    @property
    def known(self) -> int:
        """The number of tokens they predict."""
        return self.kept or self.vocab_size


class MedusaHeads(nn.ModuleList):
    """The weights, under the names of the public code, and what they compute. `token_ids` are the target's ids of the
    tokens they know, ascending; None for all."""

    token_ids: torch.Tensor | None

    def __init__(self, shape: MedusaShape) -> None:
        super().__init__(_head(shape) for _ in range(shape.heads))
        self.shape = shape
        self.register_buffer("token_ids", torch.arange(shape.kept) if shape.kept else None)

    def forward(self, hidden: torch.Tensor, unembed: Unembed | None = None, heads: int | None = None) -> torch.Tensor:
        """Logits ``[heads, ..., known]`` of the first ``heads``, from states ``[..., width]``."""
        states = torch.stack([head(hidden) for head in list(self)[:heads]])
        if self.shape.own_output:
            return states
        assert unembed is not None, "heads without an output use the target's"
        logits: torch.Tensor = unembed(states.flatten(0, -2))
        return logits.unflatten(0, states.shape[:-1])  # type: ignore[no-any-return]


def _head(shape: MedusaShape) -> nn.Sequential:
    blocks = [Block(shape.width) for _ in range(1 if shape.tied else shape.blocks)]
    for block in blocks:  # a head begins as its output alone
        nn.init.zeros_(block.linear.weight)
    layers = list[nn.Module](blocks * shape.blocks if shape.tied else blocks)
    if shape.own_output:
        layers.append(output(shape.width, shape.known, shape.rank))
    return nn.Sequential(*layers)
