"""The recurrent head: predicts the tokens behind a text from the target's last hidden state.

All places of a round share the state ``h``, which the target's own head read for the text's last token. A recurrent
state ``s`` is passed from token to token of the draft. With ``e`` the target's input embedding of a token ::

    s  <-  SiLU(U s + W e + b)          recurrent; the first state is SiLU(W e + b)
    s  <-  s + e                        cumulative; the first state is e
    logits = out(blocks(project([h, s])))     a block is x + SiLU(A x + a)

This is the public code of ReDrafter. The paper's text begins with ``s = e`` (``first="embedding"``), TensorRT-LLM with
``s = W e`` (``first="linear"``). To cost less, the head may be narrower (``exit``), its matrix of two thin ones
(``rank``), and its vocabulary a part of the target's (``kept``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import torch
import torch.nn.functional as F
from torch import nn

from paceline.drafters.networks.residual import Block, output, transplant
from paceline.errors import InputError

if TYPE_CHECKING:
    from paceline.drafters.networks.compiled_search import LevelSteps

First = Literal["update", "embedding", "linear"]
CUMULATIVE_FIRST = "embedding"


@dataclass(frozen=True, kw_only=True)
class HeadShape:
    """The sizes of a head, for a target of ``width`` channels and ``vocab_size`` ids."""

    width: int
    vocab_size: int
    exit: int
    """The width of the blocks. Twice the target's width needs no projection before them."""
    blocks: int = 2
    recurrent: bool = True
    first: First = "update"
    rank: int = 0
    """The width between the two thin output matrices; 0 for one whole matrix."""
    kept: int = 0
    """How many of the target's tokens it knows; 0 for all."""

    def __post_init__(self) -> None:
        for name in ("width", "vocab_size", "exit"):
            if (size := getattr(self, name)) < 1:
                raise InputError(f"{name} of a recurrent head is at least 1, not {size}")
        for name in ("blocks", "rank", "kept"):
            if (size := getattr(self, name)) < 0:
                raise InputError(f"{name} of a recurrent head is not negative, and this is {size}")
        if self.kept > self.vocab_size:
            raise InputError(f"a head cannot know {self.kept} of {self.vocab_size} tokens")
        if self.first not in get_args(First):
            raise InputError(f"the first state of a head is {', '.join(get_args(First))}, not {self.first!r}")

    @property
    def projected(self) -> bool:
        return self.exit != 2 * self.width

    @property
    def known(self) -> int:
        """The number of tokens it predicts."""
        return self.kept or self.vocab_size


class RecurrentHead(nn.Module):
    """The weights, under the names of the public code, and what they compute. `token_ids` are the target's ids of the
    tokens it knows, ascending; None for all."""

    token_ids: torch.Tensor | None

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.shape = shape
        width = shape.width
        if shape.recurrent:
            self.rnn_u = nn.Linear(width, width)
            self.rnn_w = nn.Linear(width, width, bias=False)
        if shape.projected:
            self.input_proj = nn.Linear(2 * width, shape.exit)
        blocks = (Block(shape.exit) for _ in range(shape.blocks))
        self.lm_head = nn.Sequential(*blocks, output(shape.exit, shape.known, shape.rank))
        ids = torch.arange(shape.kept) if shape.kept else None
        self.register_buffer("token_ids", ids)

    def first(self, embedded: torch.Tensor) -> torch.Tensor:
        """The recurrent state behind the text's last token."""
        if not self.shape.recurrent or self.shape.first == CUMULATIVE_FIRST:
            return embedded
        if self.shape.first == "linear":
            return self.rnn_w(embedded)  # type: ignore[no-any-return]
        return F.silu(self.rnn_w(embedded) + self.rnn_u.bias)

    def next(self, state: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """The recurrent state behind one more token."""
        if not self.shape.recurrent:
            return state + embedded
        return F.silu(self.rnn_w(embedded) + self.rnn_u(state))

    def logits(self, hidden: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """Logits over the tokens it knows, of states ``[..., width]``."""
        both = torch.cat([hidden, state], dim=-1)
        if self.shape.projected:
            both = self.input_proj(both)
        return self.lm_head(both)  # type: ignore[no-any-return]

    def steps(self, made: LevelSteps, level: int) -> None:
        """The same, written down for a level of a compiled search."""
        width = self.shape.width
        both = made.room("both", 2 * width)
        state = both[:, width:]
        if level < 2:  # the first beams are the texts' own
            made.copied(made.hidden, both[:, :width], of=made.owner if level else None)
        if level:
            before = made.copied(state, made.room("before", width), of=made.above)
            self._next_steps(made, before, state)
        else:
            self._first_steps(made, state)
        read = both
        if self.shape.projected:
            read = made.multiplied(both, self.input_proj, made.room("projected", self.shape.exit))
        *blocks, last = self.lm_head
        for number, block in enumerate(blocks):
            read = made.block(block, read, made.room(f"block {number % 2}", self.shape.exit))
        made.scored(read, last)

    def _first_steps(self, made: LevelSteps, state: torch.Tensor) -> None:
        if not self.shape.recurrent or self.shape.first == CUMULATIVE_FIRST:
            made.copied(made.embedded, state)
        elif self.shape.first == "linear":
            made.multiplied(made.embedded, self.rnn_w, state)
        else:
            made.multiplied(made.embedded, self.rnn_w, state, bias=self.rnn_u.bias, active=True)

    def _next_steps(self, made: LevelSteps, before: torch.Tensor, state: torch.Tensor) -> None:
        if not self.shape.recurrent:
            made.copied(before, state, added=made.embedded)
            return
        added = made.multiplied(made.embedded, self.rnn_w, made.room("added", self.shape.width))
        made.multiplied(before, self.rnn_u, state, added=added, active=True)

    @property
    def parameters_in_all(self) -> int:
        return sum(weight.numel() for weight in self.parameters())


def widened(head: RecurrentHead, ratio: int) -> RecurrentHead:
    """The same function for a target with ballast, whose channels are the small target's and then inert ones, at the
    cost of a head of that width. New rows are noise, and what is real does not read them."""
    small = head.shape
    wide = HeadShape(
        width=small.width * ratio,
        vocab_size=small.vocab_size,
        exit=small.exit * ratio,
        blocks=small.blocks,
        recurrent=small.recurrent,
        first=small.first,
        rank=small.rank * ratio,
        kept=small.kept,
    )
    made = RecurrentHead(wide)
    real = torch.arange(small.width)
    both = torch.cat([real, wide.width + real])
    inner = torch.arange(small.exit) if small.projected else both
    thin = torch.arange(small.rank)
    last = f"lm_head.{small.blocks}"
    known = torch.arange(small.known)
    places = {"rnn_u": (real, real), "rnn_w": (real, real), "input_proj": (inner, both)}
    places |= {f"lm_head.{block}.linear": (inner, inner) for block in range(small.blocks)}
    places |= {last: (known, inner), f"{last}.0": (thin, inner), f"{last}.1": (known, thin)}
    transplant(head.state_dict(), made, places.__getitem__)
    made.token_ids = head.token_ids
    return made
