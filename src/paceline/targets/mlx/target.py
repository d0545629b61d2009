"""A model of mlx-lm as a target.

A forward is built lazily and computed by one `mx.eval`: logits, wanted states and the text's buffers together. Then
logits are numpy rows in float32.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.models.cache import KVCache, RotatingKVCache, make_prompt_cache

from paceline.errors import InputError
from paceline.law.scores import Array, Row
from paceline.targets.base import NOTHING, Done, Pending, Reach, Request, Rows, Target, Want
from paceline.targets.forked import note_use
from paceline.targets.hf.generation import ModelSettings
from paceline.targets.identity import fingerprint_of, identity_of, sample_step
from paceline.targets.memory import host_memory
from paceline.targets.mlx.anatomy import LazyOutputs, ModelParts, wanted_states
from paceline.targets.mlx.chained import ChainedRows
from paceline.targets.mlx.forward import LayerCache, Packing, rotate_by_row
from paceline.targets.mlx.names import BUNDLED
from paceline.targets.mlx.rows import MLXRows
from paceline.targets.pocket.names import bundled_name
from paceline.targets.scores import Scores, like

TIED_HEAD = "lm_head.weight"


class MLXTarget(Target):
    """Scores drafts on a model that mlx-lm loaded. Use `paceline.load("mlx:FOLDER")`, which also probes how.

    The model belongs to the target: its rotary modules are replaced.
    """

    def __init__(self, model: nn.Module, config: dict[str, Any], *, name: str, settings: ModelSettings) -> None:
        note_use(pool=True)
        self.name, self.bundled = name, bundled_name(config.get(BUNDLED))
        self.model = model
        text = config.get("text_config") or {}
        self.generation = settings
        """The settings that the model brings along."""
        self.eos = settings.eos
        self.note: str | None = None
        """A note for the user about how it was loaded."""
        self._weights = dict(tree_flatten(model.parameters()))
        tied = config.get("tie_word_embeddings", text.get("tie_word_embeddings"))
        self._tied = self._weights.get("model.embed_tokens.weight") if tied else None
        self.anatomy = ModelParts(model)
        rotate_by_row(model)
        self.context_length = _first(config, text, "max_position_embeddings", "n_positions", "max_seq_len")
        self.vocab_size = int(_first(config, text, "vocab_size") or 0)
        assert self.vocab_size, "a configuration names the number of ids"
        self.windows = _windows(make_prompt_cache(model))
        """The window of each cache, or None of each that sees all; None where caches keep something else than rows."""
        self.chained = self.windows is None
        """Whether texts are in mlx-lm's own caches."""
        self.limits = Reach(trees=not self.chained, alone=self.chained)
        self._row_bytes: int | None = None
        self._lock = threading.RLock()

    @property
    def dtype(self) -> str:
        """The type that rows are computed in; weights may be in fewer bits."""
        kinds = [weight.dtype for weight in self._weights.values() if mx.issubdtype(weight.dtype, mx.floating)]
        return str(kinds[0]).removeprefix("mlx.core.")

    @property
    def threads(self) -> int:
        return (os.cpu_count() or 1) if mx.default_device() == mx.Device(mx.cpu) else 1

    @property
    def parameters(self) -> int:
        """Values in all weights; those in few bits are counted as they are packed."""
        return sum(weight.size for weight in self._weights.values())

    @property
    def layers(self) -> int:
        if self.anatomy.stack is None:
            raise self._has_none("layers")
        return len(self.anatomy.layers)

    def embed(self, tokens: Array) -> Array:
        if self.anatomy.embedding is None:
            raise self._has_none("input embeddings")
        with self._lock:
            return like(tokens, _numpy(self.anatomy.embedding(mx.array(np.asarray(tokens, np.int32)))))

    def unembed(self, states: Array) -> Array:
        if self.anatomy.stack is None:
            raise self._has_none("output head")
        with self._lock:
            given = mx.array(np.asarray(states, np.float32)).astype(getattr(mx, self.dtype))
            return like(states, _numpy(self.anatomy.head(given)))

    def open(self, capacity: int = 0) -> Rows:
        if self.chained:
            return ChainedRows(lambda: make_prompt_cache(self.model))
        assert self.windows is not None, "rows are ours"
        return MLXRows(len(self.windows), capacity)

    def release(self) -> None:
        mx.clear_cache()

    def reach(self, position: int) -> Reach:
        return self.limits

    def row_bytes(self) -> int | None:
        """Bytes of a row, as found by writing one."""
        if self._row_bytes is None and not self.chained:
            rows = self.open(1)
            assert isinstance(rows, MLXRows), "rows are ours"
            self.score([Request.of_prompt(rows, np.zeros(1, np.int64))])
            self._row_bytes = rows.row_bytes
        return self._row_bytes

    def submit(self, requests: Sequence[Request]) -> Pending:
        note_use()
        for request in requests:
            self._check(request.want)
        with self._lock:
            if self.chained:
                return Done([self._score_chain(request) for request in requests])
            scores: dict[int, Scores] = {}
            for group in self._groups(requests):
                scores.update(zip(group, self._score([requests[i] for i in group]), strict=True))
            return Done([scores[i] for i in range(len(requests))])

    def _groups(self, requests: Sequence[Request]) -> list[list[int]]:
        """Numbers of the requests that go into one forward together, which has one early exit at most."""
        if self.limits.alone:
            return [[i] for i in range(len(requests))]
        exits = dict.fromkeys(request.want.early_exit for request in requests)
        return [[i for i, request in enumerate(requests) if request.want.early_exit == one] for one in exits]

    def _check(self, want: Want) -> None:
        asked = wanted_states(want)
        if asked and max(asked) > self.layers:
            raise InputError(f"{self.name} has {self.layers} layers; there is no state {max(asked)}")

    def _score(self, requests: Sequence[Request]) -> list[Scores]:
        """Score requests in one forward over our rows."""
        every = list[MLXRows]()
        for request in requests:
            assert isinstance(request.rows, MLXRows), "a target scores rows that it opened"
            every.append(request.rows)
        try:
            return self._score_rows(requests, every)
        except BaseException:
            mx.eval([rows.buffers for rows in every])  # another thread cannot compute what this one leaves uncomputed
            raise

    def _score_rows(self, requests: Sequence[Request], every: Sequence[MLXRows]) -> list[Scores]:
        assert self.windows is not None, "rows are ours"
        for request, rows in zip(requests, every, strict=True):
            rows.settle()
            rows.note(request.tokens, request.held)
        packing = Packing(requests)
        caches = [LayerCache(packing, number, window) for number, window in enumerate(self.windows)]
        starts = np.cumsum([0, *(len(request.tokens) for request in requests)])
        scored = [np.arange(len(each.tokens))[each.scored] + at for each, at in zip(requests, starts, strict=False)]
        want = NOTHING
        for request in requests:
            want = want | request.want
        outputs = self.anatomy.run(
            np.concatenate([each.tokens for each in requests]), caches, want, np.concatenate(scored)
        )
        return self._read(outputs, requests, [buffer for rows in every for buffer in rows.buffers])

    def _score_chain(self, request: Request) -> Scores:
        """Score the chain of one text in mlx-lm's caches."""
        rows = request.rows
        assert isinstance(rows, ChainedRows) and request.is_chain, "drafts are clipped to chains"
        unread = rows.go_to(rows.committed + request.held)
        rows.note(request.tokens, request.held)
        with rows.writing():
            if len(unread):
                self.anatomy.run(unread, rows.caches, NOTHING, np.zeros(0, np.int64))
                rows.cached += len(unread)
            rows.mark()
            rows.cached += len(request.tokens)
            outputs = self.anatomy.run(
                request.tokens, rows.caches, request.want, np.arange(len(request.tokens))[request.scored]
            )
            return self._read(outputs, [request], rows.buffers)[0]

    def _read(self, outputs: LazyOutputs, requests: Sequence[Request], buffers: list[mx.array]) -> list[Scores]:
        """Compute a forward, and split what it found among its requests."""
        results = [*outputs.hidden.values(), *([] if outputs.logits is None else [outputs.logits]), *buffers]
        early = None
        if outputs.early is not None:
            mx.async_eval(outputs.early)
            mx.async_eval(results)
            early = np.asarray(outputs.early)
            start = 0
            for request in requests:
                end = start + len(request.tokens)
                if request.on_early is not None:
                    request.on_early(early[start:end])
                start = end
        mx.eval(results)
        logits = None if outputs.logits is None else np.asarray(outputs.logits)
        hidden = {layer: np.asarray(found) for layer, found in outputs.hidden.items()}
        return list(_shares(requests, logits, hidden, early))

    def free_memory(self) -> int | None:
        return host_memory() if mx.default_device() == mx.Device(mx.cpu) else None

    def fingerprint(self) -> str:
        """A digest of the names and shapes of all weights and of an even sample of the values of each."""
        named = self._weights
        if TIED_HEAD not in named and self._tied is not None:
            named = named | {TIED_HEAD: self._tied}  # as transformers names it
        samples = {name: weight.reshape(-1)[:: sample_step(weight.size)] for name, weight in named.items()}
        with self._lock:
            return fingerprint_of(
                (name, identity_of(named[name].shape, _numpy(sample))) for name, sample in samples.items()
            )


def _shares(requests: Sequence[Request], logits: Row | None, hidden: dict[int, Row], early: Row | None) -> list[Scores]:
    scores, start, first = [], 0, 0
    for request in requests:
        end = start + len(request.tokens)
        count = len(range(*request.scored.indices(len(request.tokens))))
        rows = logits[first : first + count] if logits is not None and count else None
        states = {layer: hidden[layer][start:end] for layer in request.want.hidden}
        own = early[start:end] if early is not None and request.want.early_exit is not None else None
        scores.append(Scores.of(request, rows, states, own))
        start, first = end, first + count
    return scores


def _numpy(rows: mx.array) -> Row:
    return np.asarray(rows.astype(mx.float32))


def _windows(caches: Sequence[Any]) -> list[int | None] | None:
    windows = list[int | None]()
    for cache in caches:
        if type(cache) is KVCache:
            windows.append(None)
        elif type(cache) is RotatingKVCache and not cache.keep:
            windows.append(int(cache.max_size))
        else:
            return None
    return windows


def _first(config: dict[str, Any], text: dict[str, Any], *names: str) -> int | None:
    found = (part.get(name) for part in (text, config) for name in names)
    return next((int(value) for value in found if isinstance(value, int)), None)
