"""The heads of EAGLE: a layer or a few that read a text token by token, each beside a state of the token before.

A row is read from the embedding ``e`` of its token and a state ``h``: the target's state of the token before, or for a
token of a draft what the head gave itself. It gives a state to the rows below it, and one that the output reads ::

    eagle   x = layers(fc [e, h])                          gives x, and the target's output head reads x
    eagle3  h = fc [target's states of several layers]     once, when the target has shown them
            x = layers(norm e, norm h)                     gives x, and its output reads norm x
    peagle  as eagle3; rows ahead are read from a mask token and a state that was learnt, all in one pass
    mtp     x = norm layers(fc [norm e, norm h])           gives x, and the target's output head reads x

In ``eagle3`` the first layer's attention reads both, and its residual is ``h``. Flags of published heads: the residual
is the normalised ``h`` (``norm_before_residual``), the target's states are normalised before ``fc``, together
(``norm_before_fc``) or each alone (``fc_norm``), and what is given is the normalised ``x`` (``norm_output``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import nn

from paceline.drafters.networks.layers import Attend, DecoderLayer, LayerShape, RMSNorm
from paceline.drafters.networks.residual import output
from paceline.drafters.networks.rotary import Rotary
from paceline.errors import InputError

Form = Literal["eagle", "eagle3", "peagle", "mtp"]
EAGLE1: Form = "eagle"
EAGLE3: Form = "eagle3"
PEAGLE: Form = "peagle"
MTP: Form = "mtp"

Unembed = Callable[[torch.Tensor], torch.Tensor]
"""The target's output head: logits ``[n, vocabulary]`` of states ``[n, width]``."""


@dataclass(frozen=True, kw_only=True)
class EagleShape:
    """The sizes of a head, for a target of ``vocab_size`` ids and states of ``state_width`` channels."""

    form: Form
    layer: LayerShape
    """Of a layer behind the first, whose attention reads twice its width in ``eagle3``."""
    layers: int = 1
    vocab_size: int
    state_width: int
    aux: int = 1
    """How many of the target's layers show it their states."""
    kept: int = 0
    """How many of the target's tokens it knows; 0 for all."""
    rank: int = 0
    """The width between two thin output matrices; 0 for one whole matrix."""
    windows: tuple[int, ...] = ()
    """How many rows each layer sees, its own included; 0 for all. Empty: every layer sees all."""
    own_embedding: bool = False
    own_output: bool = False
    fc_bias: bool = False
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False

    def __post_init__(self) -> None:
        if self.layers < 1 or self.aux < 1 or min(self.kept, self.rank) < 0:
            raise InputError(f"an EAGLE head of {self.layers} layers that reads {self.aux} states is none")
        if self.kept > self.vocab_size:
            raise InputError(f"a head cannot know {self.kept} of {self.vocab_size} tokens")
        if self.norm_before_fc and self.fc_norm:
            raise InputError("norm_before_fc and fc_norm of an EAGLE head exclude each other")
        if (self.kept or self.rank) and not self.own_output:
            raise InputError("a head that knows some of the target's tokens needs an output matrix, and has no lm_head")
        if not self.own_embedding and self.state_width != self.width:
            raise InputError(
                f"a head of width {self.width} cannot read the target's embeddings, which are {self.state_width} wide, "
                "and has none itself"
            )
        if not self.own_output and self.state_width != self.width:
            raise InputError(
                f"a head of width {self.width} cannot use the target's output, which reads states of "
                f"{self.state_width}, and has none itself"
            )

    @property
    def width(self) -> int:
        return self.layer.width

    @property
    def fuses(self) -> bool:
        """Whether the target's states become one of its own as soon as they are known."""
        return self.form in (EAGLE3, PEAGLE)

    @property
    def known(self) -> int:
        """The number of tokens that it predicts."""
        return self.kept or self.vocab_size


class FirstLayer(DecoderLayer):
    """The first layer of EAGLE-3: attention reads the embedding and the state, side by side."""

    def __init__(self, shape: LayerShape, *, norm_before_residual: bool) -> None:
        super().__init__(shape, 0)
        self.hidden_norm = RMSNorm(shape.width, shape.eps)
        self._normed = norm_before_residual

    @property
    def norms_before(self) -> tuple[RMSNorm, ...]:
        return self.input_layernorm, self.hidden_norm

    def entering(self, embedded: torch.Tensor, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The residual, and what attention reads."""
        normed = self.hidden_norm(states)
        both = torch.cat([self.input_layernorm(embedded), normed], dim=-1)
        return normed if self._normed else states, both


class EagleHead(nn.Module):
    """The weights, under the names of speculators, and what they compute.

    `token_ids` are the target's ids of its output's columns; None for all. ``rotary`` turns by positions.
    """

    token_ids: torch.Tensor | None

    def __init__(self, shape: EagleShape, rotary: Rotary) -> None:
        super().__init__()
        self.shape, self.rotary = shape, rotary
        width, eps = shape.width, shape.layer.eps
        if shape.own_embedding:
            self.embed_tokens = nn.Embedding(shape.vocab_size, width)
        given = shape.aux * shape.state_width
        self.fc = nn.Linear(given if shape.fuses else 2 * width, width, bias=shape.fc_bias)
        if shape.norm_before_fc:
            self.input_norm = RMSNorm(given, eps)
        if shape.fc_norm:
            self.fc_norm = nn.ModuleList(RMSNorm(shape.state_width, eps) for _ in range(shape.aux))
        self.layers = nn.ModuleList(_layer(shape, number) for number in range(shape.layers))
        if shape.form == MTP:
            self.token_norm, self.hidden_norm = RMSNorm(width, eps), RMSNorm(width, eps)
        if shape.form != EAGLE1:
            self.norm = RMSNorm(width, eps)
        if shape.form == PEAGLE:
            self.mask_hidden = nn.Parameter(torch.zeros(1, 1, given))
        if shape.own_output:
            self.lm_head = output(shape.width, shape.known, shape.rank)
        self.register_buffer("token_ids", torch.arange(shape.kept) if shape.kept else None)

    @property
    def like(self) -> torch.Tensor:
        """Of a state's type, on its device."""
        first = self.layers[0]
        assert isinstance(first, DecoderLayer), "it has a layer"
        return first.post_attention_layernorm.weight

    def taken(self, states: torch.Tensor) -> torch.Tensor:
        """The states that rows are read beside, of what the target's layers show: ``[..., aux x state width]``."""
        if not self.shape.fuses:
            return states
        if self.shape.norm_before_fc:
            states = self.input_norm(states)
        if self.shape.fc_norm:
            parts = zip(self.fc_norm, states.chunk(self.shape.aux, dim=-1), strict=True)
            states = torch.cat([norm(part) for norm, part in parts], dim=-1)
        return self.fc(states)  # type: ignore[no-any-return]

    def masked(self) -> torch.Tensor:
        """The state ``[1, width]`` that rows ahead of the text are read beside."""
        return self.taken(self.mask_hidden[0])

    def embedded(self, tokens: torch.Tensor, embed: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """Embeddings of token ids: its own, or those of the target (`Target.embed`)."""
        if self.shape.own_embedding:
            return self.embed_tokens(tokens)  # type: ignore[no-any-return]
        return embed(tokens).to(self.like.dtype)

    def forward(
        self, embedded: torch.Tensor, states: torch.Tensor, positions: torch.Tensor, attend: Attend
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What rows give to those below them, and what `logits` reads: ``[..., rows, width]`` each. ``embedded`` are
        their tokens, ``states`` those before them."""
        rotation = self.rotary.at(positions, embedded.dtype)
        first, *others = self.decoder_layers
        found = first.behind(*self.entering(embedded, states), rotation, attend)
        for layer in others:
            found = layer(found, rotation, attend)
        return self.leaving(found)

    @property
    def decoder_layers(self) -> list[DecoderLayer]:
        return list(self.layers)  # type: ignore[arg-type]

    def entering(self, embedded: torch.Tensor, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The residual of the first layer, and what its attention reads."""
        first = self.decoder_layers[0]
        if isinstance(first, FirstLayer):
            return first.entering(embedded, states)
        if self.shape.form == MTP:
            embedded, states = self.token_norm(embedded), self.hidden_norm(states)
        both = self.fc(torch.cat([embedded, states], dim=-1))
        return both, first.input_layernorm(both) if first.self_attn.shape.input_norm else both

    def leaving(self, found: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What the states behind the last layer give to the rows below, and what `logits` reads."""
        read = found if self.shape.form == EAGLE1 else self.norm(found)
        return (read if self.shape.norm_output or self.shape.form == MTP else found), read

    def logits(self, read: torch.Tensor, unembed: Unembed) -> torch.Tensor:
        """Logits over the tokens that it knows; ``unembed`` is the target's output head, for heads without one."""
        return self.lm_head(read) if self.shape.own_output else unembed(read)


def _layer(shape: EagleShape, number: int) -> DecoderLayer:
    if number == 0 and shape.fuses:
        return FirstLayer(first_shape(shape), norm_before_residual=shape.norm_before_residual)
    return DecoderLayer(first_shape(shape) if number == 0 else shape.layer, number)


def first_shape(shape: EagleShape) -> LayerShape:
    """The shape of the first layer. That of the first EAGLE does not normalise what it reads."""
    if shape.fuses:
        return replace(shape.layer, reads=2 * shape.width)
    return replace(shape.layer, input_norm=shape.form != EAGLE1)
