"""The lean path's structure, computed in one compiled call: of models in 8-bit or 4-bit integers, and in floats."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cache
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.once import once
from paceline.targets.base import Request
from paceline.targets.chains import Chain, ChainDraft
from paceline.targets.hf.fused import layout as at
from paceline.targets.hf.fused.placed import PlacedWeights, Unplaceable, Workspace, rows_of, texts_of, weights_of
from paceline.targets.hf.fused.team import TEAM, Table
from paceline.targets.hf.fused.weights import product
from paceline.targets.hf.integers.operations import ExactOperations, normed
from paceline.targets.hf.lean import Lean, select
from paceline.targets.hf.operations import Operations
from paceline.targets.hf.own import OwnForward, joined
from paceline.targets.hf.path import ForwardJob, Found, Taps
from paceline.tree import Ints

if TYPE_CHECKING:
    from paceline.targets.hf.fused.guessing import PlacedStreams

States = NDArray[np.float32]
LIKE = torch.empty(0, dtype=torch.float32, device="cpu")
"""Rotary angles are in its type."""


class Fused(Lean):
    """Where a forward's states are wanted in the middle, it is computed in pieces."""

    compiled = True

    def __init__(self, own: OwnForward, operations: Operations | None = None) -> None:
        """`Unplaceable` where layers are computed in another way."""
        super().__init__(own, operations)
        self._value_steps = operations.value_steps if isinstance(operations, ExactOperations) else None
        self._weights, self._space = self._placed()
        self._adapter: tuple[Hashable, PlacedStreams | None] | None = None

    def _placed(self) -> tuple[PlacedWeights, Workspace]:
        weights = PlacedWeights(self.modules, self._value_steps)
        return weights, Workspace(weights)

    @classmethod
    def beside(cls, lean: Lean) -> Self | None:
        """Of the same model; None where its layers are computed in another way."""
        try:
            return cls(lean._own)
        except Unplaceable:
            return None

    def _look_again(self) -> None:
        super()._look_again()
        if self._modules is not None:
            try:
                self._weights, self._space = self._placed()
            except (Unplaceable, AttributeError, KeyError):
                self._modules = None

    def _run(self, job: ForwardJob) -> Found:
        weights, outputs, taps, requests = self._weights, job.outputs, Taps(), job.requests
        for request in requests:
            request.rows.note(request.tokens, request.held)
        states = weights.embedded(joined([request.tokens for request in requests]))
        count, end, last = len(states), max(request.end for request in requests), len(weights.layers)
        angles = self._rotary.upto(end, self.modules.rotary, LIKE)
        assert states.shape[1] == weights.width and angles.shape[-1] == weights.size, "they fit"
        rows, further = rows_of(requests)
        texts = texts_of(requests, weights)
        places = np.array([text.ctypes.data for text in texts], np.int64)
        whole = last in outputs.want.hidden  # then all rows are normed
        chosen = np.arange(count) if outputs.logit_rows is None else outputs.logit_rows.numpy()
        logits = _logits(0 if whole else len(chosen), weights)
        table = self._table(states, logits, chosen)
        table[at.ROWS], table[at.EXTRAS], table[at.TEXTS] = rows.ctypes.data, further.ctypes.data, places.ctypes.data
        table[at.ANGLES] = angles.data_ptr()
        exits = {layer for layer in (*outputs.want.hidden, outputs.want.early_exit) if layer is not None}
        stops = sorted({0, last, *exits})
        for first, following in pairwise(stops):
            if first in exits:
                self._tap(first, self._shown(states), outputs, taps)
            table[at.FIRST], table[at.LAST], table[at.HEAD] = first, following, following == last and not whole
            self._space.into(table, count, end)  # a listener may have computed another forward
            TEAM.run(table)
        if whole:
            shown = torch.from_numpy(states)
            taps.hidden[last] = self._normed(shown)
            if not outputs.logits:
                return Found(None, taps)
            logits = self._unembedded(select(outputs.logit_rows, shown[None])[0].contiguous().numpy())
        return Found(logits if outputs.logits else None, taps)

    def drafted(self, chains: Sequence[Chain]) -> list[ChainDraft] | None:
        unread = [Request(chain.rows, chain.tokens, np.arange(-1, len(chain.tokens) - 1)) for chain in chains]
        ahead = max((chain.streams.count for chain in chains if chain.streams and chain.guesses), default=0)
        if not _compiles("streams" if ahead else "chains") or not unread or not self.takes(ForwardJob(unread)):
            return None
        embedding = self._weights.embedding
        if embedding is None or len(embedding) < self._weights.vocabulary:
            return None
        end = max(request.end + chain.depth for request, chain in zip(unread, chains, strict=True))
        angles = self._rotary.upto(end + ahead, self.modules.rotary, LIKE)
        return self._guessed(chains, angles) if ahead else self._chained(chains, angles)

    def _chained(self, chains: Sequence[Chain], angles: torch.Tensor) -> list[ChainDraft]:
        from paceline.targets.hf.fused.drafting import ChainJob

        return ChainJob(chains, self._weights, self._space, angles).run()

    def _guessed(self, chains: Sequence[Chain], angles: torch.Tensor) -> list[ChainDraft] | None:
        """With streams of one adapter; None where it does not fit the model. The last adapter stays placed."""
        from paceline.targets.hf.fused.guessing import PlacedStreams, StreamJob

        adapter, *others = {
            chain.streams.adapter.key: chain.streams.adapter for chain in chains if chain.streams
        }.values()
        key = adapter.key, self._weights
        if self._adapter is None or self._adapter[0] != key:
            self._adapter = key, PlacedStreams.of(adapter, self._weights)
        streams = self._adapter[1]
        if streams is None or others:
            return None
        return StreamJob(chains, streams, self._weights, self._space, angles).run()

    @property
    def embedding_rows(self) -> NDArray[Any] | None:
        changed = self._modules is None or self._changes != self._own.changes
        return None if changed else self._weights.embedding

    def unembedded(self, states: torch.Tensor) -> torch.Tensor | None:
        """By the head's product alone. Integers are left to their layer, which knows how to round rows. Where the model
        was changed since the last forward, the next one places its weights anew: another thread may be in it."""
        modules = self._modules
        if modules is None or self._changes != self._own.changes:
            return None
        try:
            weights, first = weights_of(modules.head)
        except Unplaceable:  # hooked since
            return None
        plain = weights.kind.form == at.FLOATS and not first and modules.head._parameters.get("bias") is None
        fits = states.ndim == 2 and len(states) > 0 and states.shape[1] == weights.inputs
        return product(states, weights) if plain and fits else None

    def _shown(self, states: States) -> torch.Tensor:
        """A copy in the model's type, for states go on changing."""
        return torch.from_numpy(states)[None].to(self.modules.norm.weight.dtype, copy=True)

    def _normed(self, states: torch.Tensor) -> torch.Tensor:
        norm = self.modules.norm
        return normed(states, norm.weight, norm.variance_epsilon).to(norm.weight.dtype)

    def _unembedded(self, states: States) -> torch.Tensor:
        """Logits of states behind the last layer, which are written to."""
        last = len(self._weights.layers)
        logits = _logits(len(states), self._weights)
        rows = np.arange(len(states))
        table = self._table(states, logits, rows)
        table[at.FIRST], table[at.LAST], table[at.HEAD] = last, last, 1
        self._space.into(table, len(states), 1)
        TEAM.run(table)
        return logits

    def _table(self, states: States, logits: torch.Tensor, chosen: Ints) -> Table:
        """A job over these states, and which of them have logits."""
        table = self._weights.job.copy()
        table[at.THREADS], table[at.COUNT], table[at.CHOSEN] = torch.get_num_threads(), len(states), len(chosen)
        table[at.STATES], table[at.LOGITS] = states.ctypes.data, logits.data_ptr()
        table[at.CHOICE] = chosen.ctypes.data
        return table


DRAFTS = {"chains": "chained", "streams": "streamed"}
"""Modules that draft a token after another, and their functions."""


@cache
def _compiles(drafts: str) -> bool:
    """Whether such drafts can be compiled. Compilers raise errors of every kind; drafts then grow level by level."""
    try:
        with once():
            return bool(getattr(import_module(f"paceline.targets.hf.fused.{drafts}"), DRAFTS[drafts])())
    except Exception:
        return False


def _logits(rows: int, weights: PlacedWeights) -> torch.Tensor:
    """Memory for logits, whatever torch's defaults are."""
    return torch.empty((rows, weights.vocabulary), dtype=torch.float32, device="cpu")
