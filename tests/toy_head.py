"""A tiny head in the shape of EAGLE, with random weights: how a network joins `paceline.drafters.networks`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from paceline.drafters.networks.growth import DraftShape
from paceline.drafters.networks.network import RowModel, RowNetwork
from paceline.drafters.networks.state_rows import StateRows
from paceline.drafters.networks.states import StateDrafter
from paceline.targets.base import Done, Pending, Request, Target, Want
from paceline.targets.scores import Scores
from paceline.vocabulary import Vocabulary

WIDTH, HEADS = 32, 2


class ToyHead(RowModel):
    """One layer of attention over (the state of the token before, the token's embedding); the target's own output."""

    def __init__(self, target: Target) -> None:
        self.vocab_size, self._target, self.forwards = target.vocab_size, target, 0
        self._state = target.embed(torch.zeros(1, dtype=torch.int64))  # as wide as the target's states
        width, random = self._state.shape[-1], torch.Generator().manual_seed(0)
        sizes = {"read": (2 * width, WIDTH), "attend": (WIDTH, 3 * WIDTH), "give": (WIDTH, width)}
        self._weights = {name: torch.randn(size, generator=random) / size[0] ** 0.5 for name, size in sizes.items()}

    def open(self, capacity: int = 0) -> StateRows:
        return StateRows(capacity, self._state)

    def submit(self, requests: Sequence[Request]) -> Pending:
        """All rows of all texts in the same products; attention text by text."""
        self.forwards += 1
        before = torch.cat([request.rows.before(request) for request in requests])
        tokens = torch.cat([torch.from_numpy(request.tokens) for request in requests])
        read = torch.cat([before, self._target.embed(tokens)], dim=-1) @ self._weights["read"]
        sizes = [len(request.tokens) for request in requests]
        parts = (read @ self._weights["attend"]).view(-1, 3, HEADS, WIDTH // HEADS).split(sizes)
        seen = [self._attended(request, *part.unbind(1)) for request, part in zip(requests, parts, strict=True)]
        states = (read + torch.cat(seen)) @ self._weights["give"]
        for request, given in zip(requests, states.split(sizes), strict=True):
            request.rows.give(request, given)
        logits = self._target.unembed(states).split(sizes)
        return Done([Scores.of(request, rows) for request, rows in zip(requests, logits, strict=True)])

    def _attended(self, request: Request, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """``[rows, heads, width]`` each; every row sees the text and the nodes above it."""
        rows, count = request.rows, len(request.tokens)
        rows.note(request.tokens, request.held)
        layer = rows.write(0, key.transpose(0, 1)[None], value.transpose(0, 1)[None])
        keys, values = layer.span(0, rows.committed + request.held + count)
        text = torch.ones(count, rows.committed, dtype=torch.bool)
        mask = torch.cat([text, torch.from_numpy(request.visible)], dim=1)
        found = torch.nn.functional.scaled_dot_product_attention(query.transpose(0, 1)[None], keys, values, mask)
        return found[0].transpose(0, 1).reshape(count, WIDTH)


class Toy(StateDrafter):
    """Drafts by that head."""

    name = "toy"

    def __init__(self, *, beams: int = 2, top: int = 2) -> None:
        super().__init__(DraftShape(beams=beams, top=top))

    def fit(self, target: Target, vocabulary: Vocabulary | None = None) -> None:
        self.layers, self.needs = (target.layers,), Want(hidden=frozenset({target.layers}))
        self.head = ToyHead(target)
        self._network = RowNetwork(self.head)

    @property
    def network(self) -> RowNetwork:
        return self._network
