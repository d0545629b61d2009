"""The block head: a few attention layers that predict several tokens behind a text in one pass.

A block is the text's last token, the *anchor*, and mask tokens behind it. Each layer attends from the block to the
text and to the block itself. Of the text it has no tokens but the target's states of several layers, joined, projected
and normed once; every layer makes keys and values of them::

    context = norm(fc(states))                          a row for each token of the text before the anchor
    x <- x + o(attention(q(norm x), [k context; k (norm x)], [v context; v (norm x)]))
    x <- x + mlp(norm x)

So the text's keys and values do not depend on the block, and are kept from block to block. DFlash2 wraps attention and
MLP in short causal convolutions over the block, whose kernels are a fixed part and a part projected from the rows.

Names of weights are those of the public files. All of it is differentiable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import nn

from paceline.drafters.networks.block.shape import BlockShape
from paceline.drafters.networks.block.ties import CandidateSelector, ConfidenceHead, MarkovHead
from paceline.drafters.networks.layers import Attend, DecoderLayer, RMSNorm, attended, compilable
from paceline.drafters.networks.residual import output
from paceline.drafters.networks.rotary import Rotary, Rotation

KeysValues: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""``[..., rows, heads, size]`` each."""


class BlockConvolution(nn.Module):
    """Two causal convolutions over the rows of a block, before and after what they wrap. Their kernels are a fixed part
    for each channel, and a part projected from the rows for each group of channels."""

    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        self._taps, self._group = shape.taps, shape.group
        groups = shape.width // shape.group
        self.base_kernel = nn.Parameter(torch.zeros(2, shape.taps, shape.width))
        self.kernel_projection = nn.Linear(shape.width, 2 * shape.taps * groups, bias=False)
        with torch.no_grad():
            self.base_kernel[:, 0] = 1.0
            self.kernel_projection.weight.zero_()

    def kernels(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Kernels ``[..., rows, taps, groups, group]`` before and after, for blocks of rows ``[..., rows, width]``."""
        moving = self.kernel_projection(rows).unflatten(-1, (2, self._taps, -1, 1))
        fixed = self.base_kernel.unflatten(-1, (-1, self._group)).to(rows.dtype)
        before, after = (fixed + moving).unbind(-4)
        return before, after

    def forward(self, rows: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
        grouped = rows.unflatten(-1, (-1, self._group))
        found = grouped * kernel[..., 0, :, :]
        for tap in range(1, self._taps):
            earlier = F.pad(grouped[..., :-tap, :, :], (0, 0, 0, 0, tap, 0))
            found = found + earlier * kernel[..., tap, :, :]
        return found.flatten(-2)  # type: ignore[no-any-return]


class BlockLayer(DecoderLayer):
    """One layer over blocks of rows ``[..., rows, width]``."""

    def __init__(self, shape: BlockShape, number: int) -> None:
        super().__init__(shape.layer, number)
        self.compilable = not shape.taps
        self.attention_conv = BlockConvolution(shape) if shape.taps else None
        self.mlp_conv = BlockConvolution(shape) if shape.taps else None

    def forward(self, states: torch.Tensor, rotation: Rotation, attend: Attend) -> torch.Tensor:
        attention = partial(self.self_attn, rotation=rotation, attend=attend)
        states = states + _convolved(self.attention_conv, attention, self.input_layernorm(states))
        return states + _convolved(self.mlp_conv, self.mlp, self.post_attention_layernorm(states))


def _convolved(
    convolution: BlockConvolution | None, wrapped: Callable[[torch.Tensor], torch.Tensor], rows: torch.Tensor
) -> torch.Tensor:
    if convolution is None:
        return wrapped(rows)
    before, after = convolution.kernels(rows)
    return convolution(wrapped(convolution(rows, before)), after)  # type: ignore[no-any-return]


class BlockHead(nn.Module):
    """The weights, under the names of the public files, and what they compute. What the head does not own (input
    embeddings, output) is the target's. `token_ids` are the target's ids of the tokens that it predicts, in the order
    of its columns; None for all."""

    token_ids: torch.Tensor | None

    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        self.shape = shape
        width = shape.width
        self.fc = nn.Linear(len(shape.states) * width, width, bias=False)
        self.hidden_norm = RMSNorm(width, shape.layer.eps)
        self.layers = nn.ModuleList(BlockLayer(shape, number) for number in range(shape.layers))
        self.rotary = Rotary.of(shape.rope, shape.layer.head_size)
        self.norm = RMSNorm(width, shape.layer.eps)
        self.embed_tokens = nn.Embedding(shape.vocab_size, width) if shape.own_embedding else None
        self.lm_head = output(shape.width, shape.known, shape.rank) if shape.own_output else None
        self.mask_embedding = nn.Parameter(torch.zeros(width)) if shape.own_mask else None
        self.candidate_selector = CandidateSelector(shape) if shape.selector_rank else None
        self.markov_head = MarkovHead(shape) if shape.markov_rank else None
        self.confidence_head = ConfidenceHead(shape) if shape.confidence else None
        self.register_buffer("token_ids", torch.arange(shape.kept) if shape.kept else None)

    # the text

    def context(self, states: torch.Tensor) -> torch.Tensor:
        """The rows of the text ``[..., tokens, width]``, of the target's joined states."""
        return self.hidden_norm(self.fc(states))  # type: ignore[no-any-return]

    def keys_values(self, context: torch.Tensor, positions: torch.Tensor) -> list[KeysValues]:
        """Keys and values of each layer for rows of the text at these positions."""
        rotation = self.rotary.at(positions, context.dtype)
        return [layer.self_attn.keys(context, rotation) for layer in self.decoder_layers]

    # the block

    def tokens(self, anchors: torch.Tensor) -> torch.Tensor:
        """The tokens ``[..., block]`` of the blocks with these anchors."""
        masks = anchors.new_full((*anchors.shape, self.shape.block - 1), self.shape.mask_token)
        return torch.cat([anchors[..., None], masks], dim=-1)

    def embedded(self, tokens: torch.Tensor, embed: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """The rows of blocks of tokens; ``embed`` are the target's input embeddings."""
        rows = embed(tokens) if self.embed_tokens is None else self.embed_tokens(tokens)
        if self.shape.embedding_scale != 1.0:
            rows = rows * self.shape.embedding_scale
        if self.mask_embedding is not None:
            rows = torch.where((tokens == self.shape.mask_token)[..., None], self.mask_embedding.to(rows.dtype), rows)
        return rows

    def block(self, rows: torch.Tensor, anchors: torch.Tensor, attend: Attend) -> torch.Tensor:
        """The states ``[..., block, width]`` that predict, of embedded blocks whose anchors are at these positions."""
        ahead = torch.arange(self.shape.block, device=anchors.device)
        rotation = self.rotary.at(anchors[..., None] + ahead, rows.dtype)
        for layer in self.decoder_layers:
            rows = layer(rows, rotation, attend)
        return self.norm(rows)  # type: ignore[no-any-return]

    def predicting(self, block: torch.Tensor) -> torch.Tensor:
        """The rows ``[..., places, width]`` of blocks that predict their places."""
        return block if self.shape.from_anchor else block[..., 1:, :]

    def logits(self, states: torch.Tensor, unembed: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """Logits over the tokens it predicts, before what ties them to one another; ``unembed`` is the target's
        output."""
        logits = unembed(states) if self.lm_head is None else self.lm_head(states)
        if self.shape.output_scale != 1.0:
            logits = logits * self.shape.output_scale
        return torch.tanh(logits / self.shape.softcap) * self.shape.softcap if self.shape.softcap else logits

    def gains(
        self, hidden: torch.Tensor, before: torch.Tensor, ids: torch.Tensor, columns: torch.Tensor
    ) -> torch.Tensor | None:
        """What is added to the logits of candidates ``ids`` (the ``columns`` of its output) behind each of the tokens
        ``before``, ``[..., places, before, candidates]``, at places of these states; None where nothing is, or where it
        depends on more than the token before."""
        if self.candidate_selector is not None:
            return self.candidate_selector(before, hidden, ids)  # type: ignore[no-any-return]
        if self.markov_head is None or self.markov_head.has_state:
            return None
        at = hidden[..., None, :].expand(*before.shape, -1)
        return self.markov_head.among(self.markov_head.step(before, at, at)[0], columns)

    def trust(self, hidden: torch.Tensor, before: torch.Tensor) -> torch.Tensor | None:
        """The logarithm of the chance that the best candidate behind each of the tokens ``before`` will be accepted;
        None where the head predicts none."""
        if self.confidence_head is None:
            return None
        at, embedded = hidden[..., None, :].expand(*before.shape, -1), None
        if self.shape.confidence_reads_markov and self.markov_head is not None:
            embedded = self.markov_head.markov_w1(before)
        return F.logsigmoid(self.confidence_head(at, embedded).float())

    def sees_text(self, number: int, keys: torch.Tensor, anchors: torch.Tensor) -> torch.Tensor:
        """Which rows of the text, at the positions ``keys``, each row of the blocks with these anchors sees in a layer:
        ``[..., block, keys]``. The text ends before the anchor."""
        shape, window = self.shape, self.shape.windows[number]
        ahead = torch.arange(shape.block, device=anchors.device)
        seen = (keys < anchors[..., None])[..., None, :].expand(*anchors.shape, shape.block, len(keys))
        if window is None:
            return seen
        if shape.window_of_anchor:
            return seen & (keys >= anchors[..., None] - window)[..., None, :]
        return seen & (anchors[..., None, None] + ahead[:, None] - keys < window)

    def sees_block(self, number: int, device: torch.device) -> torch.Tensor:
        """Which rows of its block each row sees in a layer, ``[block, block]``."""
        shape, window = self.shape, self.shape.windows[number]
        seen = torch.ones(shape.block, shape.block, dtype=torch.bool, device=device)
        if window is not None and not shape.window_of_anchor:
            seen = seen.triu(1 - window).tril(window - 1)
        return seen.tril() if shape.causal[number] else seen

    @property
    def compilable(self) -> Sequence[DecoderLayer]:
        """Its layers, if all are of the kind that `compiled` computes, and a row sees the same rows in all of them."""
        alike = len(set(self.shape.causal)) == 1 and not any(self.shape.windows)
        return compilable(self.decoder_layers, self.rotary) if alike else ()

    # training

    def forward(
        self, states: torch.Tensor, tokens: torch.Tensor, anchors: torch.Tensor, embed: Callable[..., torch.Tensor]
    ) -> torch.Tensor:
        """States ``[texts, anchors, places, width]`` that predict behind anchors at several places of each text.

        ``states`` are the target's joined states ``[texts, tokens, ...]`` of ``tokens`` ``[texts, tokens]``;
        ``anchors`` the places ``[texts, anchors]``. The blocks of a text are rows of one attention, side by side.
        """
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        text, apart = self.keys_values(self.context(states), positions), torch.eye(anchors.shape[1])

        def attend(layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
            own = torch.kron(apart.to(keys.device), self.sees_block(layer, keys.device).float()) > 0
            seen = self.sees_text(layer, positions, anchors).flatten(1, 2)
            seen = torch.cat([seen, own.expand(len(seen), -1, -1)], dim=-1)
            known, values = (
                torch.cat([of_text, each.flatten(1, 2)], dim=1).transpose(1, 2)
                for of_text, each in zip(text[layer], (keys, values), strict=True)
            )
            found = attended(queries.flatten(1, 2).transpose(1, 2), known, values, seen)
            return found.transpose(1, 2).reshape(queries.shape)

        rows = self.embedded(self.tokens(tokens.gather(1, anchors)), embed)
        return self.predicting(self.block(rows, anchors, attend))

    @property
    def parameters_in_all(self) -> int:
        return sum(weight.numel() for weight in self.parameters())

    @property
    def decoder_layers(self) -> list[BlockLayer]:
        return list(self.layers)  # type: ignore[arg-type]
