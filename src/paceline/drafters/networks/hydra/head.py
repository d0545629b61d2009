"""Hydra's heads: each predicts the token behind a path, from the target's last state and the path's tokens.

The state ``h`` is the one that the target's own output read for the text's last token. With ``e`` the target's input
embeddings of that token and of the drafted tokens behind it, head *i*, counted from 0, computes ::

    logits = out_i(blocks_i([h, e_0, ..., e_i]))         blocks are x + SiLU(A x + a)

The first block has more inputs than outputs, so a second matrix stands beside it instead of ``x``. The further blocks
of a head share their weights in public heads. Heads that are not *grounded* read ``h`` alone. Hydra++ replaces ``h``
by the last output of a layer of attention over the states of the whole text (`prefix`).

To cost less, ``out_i`` may be two thin matrices (``rank``), and its vocabulary a part of the target's (``kept``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import nn

from paceline.drafters.networks.hydra.prefix import PrefixModel, PrefixShape
from paceline.drafters.networks.residual import Block, output
from paceline.errors import InputError

if TYPE_CHECKING:
    from paceline.drafters.networks.compiled_search import LevelSteps


@dataclass(frozen=True, kw_only=True)
class HydraShape:
    """The sizes of heads, for a target of ``width`` channels and ``vocab_size`` ids."""

    width: int
    vocab_size: int
    heads: int = 4
    blocks: int = 1
    """Of each head."""
    tied: bool = True
    """Whether the blocks of a head behind the first are one block, applied several times; if heads are not grounded,
    all of its blocks."""
    grounded: bool = True
    """Whether a head reads the tokens before its own."""
    prefix: PrefixShape | None = None
    """The layer over the text, in Hydra++."""
    offset: int = 0
    """How many layers before the target's last one the states are from; 0 for those behind the final norm."""
    rank: int = 0
    """The width between the two thin output matrices; 0 for one whole matrix."""
    kept: int = 0
    """How many of the target's tokens they know; 0 for all."""
    dropout: float = 0.0
    """In training, with a prefix layer."""

    def __post_init__(self) -> None:
        for name in ("width", "vocab_size", "heads", "blocks"):
            if (size := getattr(self, name)) < 1:
                raise InputError(f"{name} of Hydra's heads is at least 1, not {size}")
        for name in ("offset", "rank", "kept"):
            if (size := getattr(self, name)) < 0:
                raise InputError(f"{name} of Hydra's heads is not negative, and this is {size}")
        if self.kept > self.vocab_size:
            raise InputError(f"heads cannot know {self.kept} of {self.vocab_size} tokens")

    @property
    def known(self) -> int:
        """The number of tokens they predict."""
        return self.kept or self.vocab_size

    def inputs(self, head: int) -> int:
        """The channels that a head reads."""
        return self.width * (head + 2 if self.grounded else 1)


class HydraHeads(nn.Module):
    """The weights, under the names of the public code, and what they compute. `token_ids` are the target's ids of the
    tokens they know, ascending; None for all.

    The state of a path, `first` and `next`, are the embeddings of its tokens. Its length tells which head follows.
    """

    token_ids: torch.Tensor | None

    def __init__(self, shape: HydraShape) -> None:
        super().__init__()
        self.shape = shape
        self.prefix_embeding_layer = None if shape.prefix is None else PrefixModel(shape.width, shape.prefix)
        self.hydra_mlp = nn.ModuleList(_blocks(shape, head) for head in range(shape.heads))
        self.hydra_lm_head = nn.ModuleList(_output(shape) for _ in range(shape.heads))
        self.register_buffer("token_ids", torch.arange(shape.kept) if shape.kept else None)

    def forward(self, hidden: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """Logits ``[heads, ..., known]`` of states ``[..., width]``, behind which stand tokens with the embeddings
        ``[..., tokens, width]``: the token that the target chose by that state, and those after it. There are as many
        heads as tokens. Of Hydra++ the states are those of `prefixed`."""
        paths = [embedded[..., : head + 1, :].flatten(-2) for head in range(embedded.shape[-2])]
        return torch.stack([self.logits(hidden, path) for path in paths])

    def prefixed(self, states: torch.Tensor) -> torch.Tensor:
        """What heads read for each of the target's states ``[..., tokens, width]``, which are of whole texts."""
        return states if self.prefix_embeding_layer is None else self.prefix_embeding_layer(states)

    # a path

    def first(self, embedded: torch.Tensor) -> torch.Tensor:
        """The path of the text's last token alone."""
        return embedded

    def next(self, state: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """The path with one more token."""
        return torch.cat([state, embedded], dim=-1)

    def logits(self, hidden: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """Logits over the tokens they know, of states ``[..., width]`` and paths behind them."""
        head = state.shape[-1] // self.shape.width - 1
        both = torch.cat([hidden, state], dim=-1) if self.shape.grounded else hidden
        return self.hydra_lm_head[head](self.hydra_mlp[head](both))  # type: ignore[no-any-return]

    def steps(self, made: LevelSteps, level: int) -> None:
        """The same, written down for a level of a compiled search. A path and the one before it take turns."""
        width, shape = self.shape.width, self.shape
        channels = width * (shape.heads + 1)
        path, before = (made.room(f"path {number % 2}", channels) for number in (level, level + 1))
        if level:
            end = width * (level + 1)
            made.copied(before[:, :end], path[:, :end], of=made.above)
        else:
            end = width
            made.copied(made.hidden, path[:, :end])
        made.copied(made.embedded, path[:, end : end + width])
        read = path[:, : shape.inputs(level)]
        parts = cast("nn.Sequential", self.hydra_mlp[level])
        blocks = [part for part in parts if isinstance(part, Block)]
        for number, block in enumerate(blocks):
            read = made.block(block, read, made.room(f"block {number % 2}", width))
        made.scored(read, self.hydra_lm_head[level])


def _blocks(shape: HydraShape, head: int) -> nn.Sequential:
    fresh = 1 if shape.tied else shape.blocks
    if shape.grounded:
        blocks = [Block(shape.width, shape.inputs(head))]
        further = [Block(shape.width) for _ in range(min(fresh, shape.blocks - 1))]
    else:
        blocks, further = [], [Block(shape.width) for _ in range(fresh)]
    for block in [*blocks, *further]:  # a head begins as its output, behind the residual matrix
        nn.init.zeros_(block.linear.weight)
    while len(blocks) < shape.blocks:
        blocks += further[: shape.blocks - len(blocks)]
    if shape.prefix is None:
        return nn.Sequential(*blocks)
    return nn.Sequential(*(part for block in blocks for part in (nn.Dropout(shape.dropout), block)))


def _output(shape: HydraShape) -> nn.Module:
    last = output(shape.width, shape.known, shape.rank, bias=True)
    return last if shape.prefix is None else nn.Sequential(nn.Dropout(shape.dropout), last)
