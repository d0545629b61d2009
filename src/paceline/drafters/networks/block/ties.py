"""What ties the tokens of a block together: parts of a head by which a token depends on the one before it.

A block predicts its places apart from one another. DSpark adds to the logits of a place a bias by the token before it,
a product of two thin matrices (*Markov head*). DFlash2 adds scores to the best candidates of a place, bilinear in the
token before and the candidate (*selector*).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from paceline.drafters.networks.block.shape import BlockShape


class MarkovHead(nn.Module):
    """A bias to the logits of a place by the token before it. ``gated`` lets the place's state weaken it; ``rnn`` has a
    state that passes from place to place."""

    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        rank, self._kind = shape.markov_rank, shape.markov
        self.markov_w1 = nn.Embedding(shape.vocab_size, rank)
        self.markov_w2 = nn.Embedding(shape.known, rank)  # a matrix whose rows are read one by one
        if shape.markov == "gated":
            self.gate_proj = nn.Linear(shape.width + rank, rank)
        if shape.markov == "rnn":
            self.joint_proj = nn.Linear(2 * rank + shape.width, 3 * rank)

    @property
    def has_state(self) -> bool:
        return self._kind == "rnn"

    def first_state(self, hidden: torch.Tensor) -> torch.Tensor:
        """The state before the first place, for blocks whose states are ``hidden`` ``[..., width]``."""
        return hidden.new_zeros(*hidden.shape[:-1], self.markov_w1.embedding_dim)

    def step(
        self, before: torch.Tensor, hidden: torch.Tensor, state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What `markov_w2` reads behind the tokens ``before``, at places of these states, and the next state."""
        embedded = self.markov_w1(before)
        if self._kind == "vanilla":
            return embedded, state
        if self._kind == "gated":
            gate = torch.sigmoid(self.gate_proj(torch.cat([hidden, embedded], dim=-1)))
            return gate * embedded, state
        joined = self.joint_proj(torch.cat([state, embedded, hidden], dim=-1))
        gate, candidate, output = joined.chunk(3, dim=-1)
        gate = torch.sigmoid(gate)
        return torch.tanh(output), gate * state + (1 - gate) * torch.tanh(candidate)

    def among(self, latent: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        """The bias ``[..., before, candidates]`` of candidates, by what is read behind several tokens before them."""
        return latent @ self.markov_w2(columns).transpose(-1, -2)  # type: ignore[no-any-return]

    def forward(self, before: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """The bias ``[..., places, known]`` of whole blocks, with the true tokens ``before`` each place."""
        if not self.has_state:
            return F.linear(self.step(before, hidden, hidden)[0], self.markov_w2.weight)
        state, read = self.first_state(hidden[..., 0, :]), list[torch.Tensor]()
        for place in range(before.shape[-1]):
            latent, state = self.step(before[..., place], hidden[..., place, :], state)
            read.append(latent)
        return F.linear(torch.stack(read, dim=-2), self.markov_w2.weight)


class CandidateSelector(nn.Module):
    """Scores of candidates behind the token before them, bilinear in both."""

    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        rank = shape.selector_rank
        self.predecessor_codebook = nn.Parameter(torch.empty(shape.vocab_size, rank))
        self.successor_codebook = nn.Parameter(torch.empty(shape.vocab_size, rank))
        self.hidden_projection = nn.Linear(shape.width, rank, bias=False)
        for codebook in (self.predecessor_codebook, self.successor_codebook):
            nn.init.normal_(codebook, std=0.02)

    def forward(self, before: torch.Tensor, hidden: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
        """Scores ``[..., before, candidates]`` of ``candidates`` behind each of the tokens ``before``, at places of
        these states ``[..., width]``."""
        context = self.predecessor_codebook[before] * self.hidden_projection(hidden)[..., None, :]
        return context @ self.successor_codebook[candidates].transpose(-1, -2)  # type: ignore[no-any-return]


class ConfidenceHead(nn.Module):
    """How likely a place's drafted token will be accepted: a logit of its state, and of the token before it."""

    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        self.proj = nn.Linear(shape.width + shape.markov_rank * shape.confidence_reads_markov, 1)

    def forward(self, hidden: torch.Tensor, embedded: torch.Tensor | None) -> torch.Tensor:
        read = hidden if embedded is None else torch.cat([hidden, embedded.to(hidden)], dim=-1)
        return self.proj(read)[..., 0]  # type: ignore[no-any-return]
