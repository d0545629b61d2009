"""A head over its target, as a model with rows: texts are read in one forward, and drafts level by level.

A head in the form ``peagle`` gives all levels of a draft in one forward: behind the text it reads rows of a mask token,
which do not know what the levels above them are (`marginals`). These rows are dropped at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from paceline.drafters.networks.eagle.fitting import FittedEagle
from paceline.drafters.networks.fitting import place_of
from paceline.drafters.networks.growth import Growth
from paceline.drafters.networks.layers import TextRows
from paceline.drafters.networks.marginals import Marginals, best_tokens, on_host
from paceline.drafters.networks.network import RowModel, RowNetwork
from paceline.drafters.networks.reading import DRAFT_FORWARDS, TokenColumns
from paceline.drafters.networks.state_rows import StateRows
from paceline.law import Distribution
from paceline.law.on_device import sent
from paceline.targets.base import Done, Pending, Request, Target
from paceline.targets.scores import Scores
from paceline.tree import Ints

if TYPE_CHECKING:
    from paceline.drafters.networks.compiled import CompiledLayers

BEFORE_STATES = 1
"""The first row of a text has no state before it, so no other row sees it: those who train heads leave it out."""


class EagleModel(RowModel):
    """A head, with embeddings and output of its target where it has none."""

    def __init__(self, fitted: FittedEagle, target: Target) -> None:
        self.fitted, self.head, self._target = fitted, fitted.head, target
        shape = self.head.shape
        self.vocab_size = shape.vocab_size if shape.own_embedding else target.vocab_size
        self.context_length = target.context_length
        self._device = place_of(target)
        self._windows = {layer: rows for layer, rows in enumerate(shape.windows) if rows}
        self.columns = self._columns()
        self._compiled = self._compiled_layers() if target.compiled else None

    def _compiled_layers(self) -> CompiledLayers | None:
        from paceline.drafters.networks.compiled import CompiledLayers

        layers, rotary = self.head.decoder_layers, self.head.rotary
        windows = self._windows  # every level reads all matrices, so they are worth making smaller
        return CompiledLayers.of(layers, rotary, given=True, skipped=BEFORE_STATES, windows=windows, integers=True)

    def _columns(self) -> TokenColumns:
        """Which of the target's tokens its logits are of."""
        shape, size, ids = self.head.shape, self._target.vocab_size, self.head.token_ids
        if not shape.own_output or (ids is None and shape.known == size):
            return TokenColumns(size)
        known = np.arange(shape.known) if ids is None else ids.numpy(force=True)
        order = np.argsort(known)
        return TokenColumns(size, known[order], None if (np.diff(known) > 0).all() else order)

    def look(self) -> int:
        return self._target.look()

    def prefill_size(self, length: int) -> int:
        return self._target.prefill_size(length)

    def open(self, capacity: int = 0) -> StateRows:
        rows = self._opened(capacity)
        rows.changes = self.look()
        return rows

    def _opened(self, capacity: int) -> StateRows:
        return StateRows(capacity, self.head.like.new_empty(1, self.head.shape.width))

    def taken(self, states: torch.Tensor) -> torch.Tensor:
        """What its rows keep of the states that the target has shown."""
        with torch.inference_mode():
            return self.head.taken(states.to(self.head.like.dtype))

    def submit(self, requests: Sequence[Request]) -> Pending:
        """All rows of all texts in the same products; attention text by text."""
        with torch.inference_mode():
            return Done(self._scored(requests))

    def _scored(self, requests: Sequence[Request]) -> list[Scores]:
        before = torch.cat([_rows(request).before(request) for request in requests])
        tokens = self._sent(np.concatenate([request.tokens for request in requests]))
        given, read = self._computed(requests, self.head.embedded(tokens, self._target.embed), before)
        sizes = [len(request.tokens) for request in requests]
        for request, states in zip(requests, given.split(sizes), strict=True):
            _rows(request).give(request, states)
        asked = [states[request.scored] for request, states in zip(requests, read.split(sizes), strict=True)]
        counts = [len(states) for states in asked]
        if not sum(counts):
            return [Scores.of(request, None) for request in requests]
        logits = self.head.logits(torch.cat(asked), self._target.unembed).split(counts)
        return [
            Scores.of(request, rows if count else None)
            for request, rows, count in zip(requests, logits, counts, strict=True)
        ]

    def _computed(
        self, requests: Sequence[Request], embedded: torch.Tensor, before: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`EagleHead.forward` of the requests' rows."""
        if self._compiled is not None and self._compiled.takes(requests):
            return self.head.leaving(self._compiled(requests, *self.head.entering(embedded, before)))
        positions = self._sent(np.concatenate([request.positions for request in requests]))
        attend = TextRows(requests, self._device, skipped=BEFORE_STATES, windows=self._windows)
        found: tuple[torch.Tensor, torch.Tensor] = self.head(embedded, before, positions, attend)
        return found

    def _sent(self, numbers: Ints) -> torch.Tensor:
        return sent(torch.from_numpy(numbers), self._device)


def _rows(request: Request) -> StateRows:
    assert isinstance(request.rows, StateRows), "a head opens its own rows"
    return request.rows


class MaskedRows(StateRows):
    """Rows of a text, and behind them rows that are read beside one state that was learnt."""

    def __init__(self, capacity: int, masked: torch.Tensor) -> None:
        super().__init__(capacity, masked)
        self._masked = masked

    def before(self, request: Request) -> torch.Tensor:
        ahead = max(0, request.end - self.shown - 1)
        if not ahead:
            return super().before(request)
        text = super().before(_shortened(request, ahead))
        return torch.cat([text, self._masked.expand(ahead, -1)])


def _shortened(request: Request, ahead: int) -> Request:
    return Request(request.rows, request.tokens[:-ahead], request.parents[:-ahead], request.want)


class MaskedModel(EagleModel):
    """A head that reads masks ahead of a text."""

    def __init__(self, fitted: FittedEagle, target: Target) -> None:
        super().__init__(fitted, target)
        with torch.inference_mode(False), torch.no_grad():
            self._masked = self.head.masked()

    def _opened(self, capacity: int) -> StateRows:
        return MaskedRows(capacity, self._masked)


class MaskedNetwork(RowNetwork):
    """Drafts by such a head: `begin` computes the candidates of all levels, `level` hands them out."""

    model: MaskedModel

    def __init__(self, model: MaskedModel, mask_token: int) -> None:
        super().__init__(model)
        self._mask_token = mask_token

    @property
    def ties(self) -> bool:
        return False

    def begin(self, growths: Sequence[Growth]) -> None:
        """One forward reads the ends of the texts, and a mask for every level behind the first."""
        super().begin(growths)
        for growth in growths:
            growth.state.look_ahead([self._mask_token] * (growth.depth - 1), range(-1, growth.depth - 2))
        found = self._submit([growth.state.request([growth]) for growth in growths]).result()
        levels = [_all_levels(growth, scores) for growth, scores in zip(growths, found, strict=True)]
        for growth, marginals in zip(growths, self._marginals(levels), strict=True):
            growth.kept = marginals

    @torch.inference_mode()
    def _marginals(self, levels: Sequence[torch.Tensor]) -> list[Marginals]:
        """The candidates of each text, copied to the host at once."""
        ids, best, _ = best_tokens(torch.cat(list(levels)).float(), ids=self.model.head.token_ids)
        ends = np.cumsum([len(rows) for rows in levels])[:-1]
        parts = [np.split(each, ends) for each in on_host([ids, best])]
        return [Marginals(*own) for own in zip(*parts, strict=True)]

    def level(self, growths: Sequence[Growth]) -> Sequence[Sequence[Distribution]]:
        return [growth.kept.laws(growth) for growth in growths]


def _all_levels(growth: Growth, scores: Scores) -> torch.Tensor:
    """The logits of all levels of a draft; the rows of its masks are dropped."""
    text = len(scores.tokens) - growth.depth + 1
    growth.state.tally.add(DRAFT_FORWARDS)
    growth.state.read(text)
    rows: torch.Tensor = scores.logits[text - 1 :]
    return rows


def made_for(fitted: FittedEagle, target: Target) -> tuple[EagleModel, RowNetwork]:
    """A head over its target, and the network that drafts with it."""
    if fitted.mask_token is None:
        model = EagleModel(fitted, target)
        return model, RowNetwork(model)
    masked = MaskedModel(fitted, target)
    return masked, MaskedNetwork(masked, fitted.mask_token)
