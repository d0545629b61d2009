"""Our cache and our attention as transformers calls them, in the forwards of a model's own path.

This file loads transformers' model code, which takes a second; a bundled model does without (`pocket.llama`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from transformers import AttentionInterface, Cache, PreTrainedConfig, PreTrainedModel

from paceline.targets.hf.attention import AttentionOptions, KVCache, Segment
from paceline.targets.hf.own import Unsupported
from paceline.targets.hf.recurrent import functions
from paceline.targets.hf.recurrent.forward import RecurrentForward

ATTENTION_NAME = "paceline"
"""Of our attention function in transformers."""
INDEXER = -1
"""Of the first layer's keys by which it chooses, in place of the layer's number."""
HARMLESS = frozenset({"position_ids", "cache_position", "position_embeddings", "logits_to_keep"})
"""Tensors that some models pass on to attention functions for their own bookkeeping."""


class ForwardCache(Cache):
    """The cache object that transformers gets for one forward."""

    def __init__(
        self,
        rows: KVCache | None,
        before: int = 0,
        claimed: int = 0,
        alone: Segment | None = None,
        recurrent: RecurrentForward | None = None,
    ) -> None:
        """The cache holds ``before`` rows and says that it holds ``claimed`` more. A segment ``alone`` gets all its
        keys back. Without ``rows`` nothing is stored. States are those of ``recurrent``; layers see none, so that they
        compute all rows by one function, which is ours."""
        super().__init__(layers=[])
        self.recurrent = recurrent
        self._rows, self._before, self._claimed, self.alone = rows, before, claimed, alone
        self.offsets: tuple[Any, Any] | None = None
        """What is added to the numbers of queries and of keys to get their positions, where a model counts them."""
        self.windows: list[int | None] = []
        """The window that each layer named so far."""
        self._written: tuple[int, torch.Tensor, torch.Tensor] | None = None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store a layer's fresh rows; returns the rows that the layer's attention reads."""
        self._written = layer_idx, key_states, value_states
        if self._rows is not None:
            self._rows.write(layer_idx, key_states, value_states)
        if self.alone is None:
            return key_states, value_states
        return self.alone.rows.layers[layer_idx].span(0, self.alone.request.end)

    def attend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, options: AttentionOptions
    ) -> torch.Tensor:
        """Attention ``[1, heads, sum n, width]`` of the layer that has just written its rows; `Unsupported` where the
        layer wants more than we know."""
        tensors = {name for name, value in options.others.items() if isinstance(value, torch.Tensor)}
        if unknown := sorted(tensors - HARMLESS):
            raise Unsupported(f"attention is given {', '.join(unknown)}")
        if self._written is None:
            raise Unsupported("a layer attends to keys that another layer wrote")
        layer, *stored = self._written
        if not all(_same(*pair) for pair in zip(stored, (keys, values), strict=True)):
            raise Unsupported("attention is given other keys and values than the cache")
        self._written = None
        self.windows.append(options.window)
        assert self._rows is not None, "our attention reads our rows"
        return self._rows.attend(layer, query, options)

    def check(self) -> None:
        """`Unsupported` where a layer kept a state in a way that is not known here."""
        if self.recurrent is not None and self.recurrent.is_due:
            raise Unsupported("a layer keeps a state in a way that is not known here")

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> None:
        return None

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> None:
        return None

    def update_conv_state(
        self, conv_states: torch.Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any
    ) -> torch.Tensor:
        if self.recurrent is not None:
            if self.recurrent.is_due:
                raise Unsupported("a layer keeps a state in a way that is not known here")
            self.recurrent.enter(layer_idx, state_idx)
        return conv_states

    def update_recurrent_state(
        self, recurrent_states: torch.Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any
    ) -> torch.Tensor:
        return recurrent_states

    def update_indexer(self, indexer_key_states: torch.Tensor, layer_idx: int) -> torch.Tensor:
        """Store the keys ``[1, rows, width]`` by which a layer chooses; returns those of all rows."""
        if self._rows is None:
            return indexer_key_states
        if self.alone is None:
            raise Unsupported("a layer chooses the keys that it attends to")
        layer, fresh = INDEXER - layer_idx, indexer_key_states[:, None]
        self.alone.rows.write(layer, fresh, fresh[..., :0])
        return self.alone.rows.layers[layer].span(0, self.alone.request.end)[0][:, 0]

    def get_linear_cache(self, layer_idx: int) -> None:
        return None

    def set_linear_cache(self, layer_idx: int, linear_cache: torch.Tensor) -> None:
        pass

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        return False

    def is_recording_past(self, layer_idx: int) -> bool:
        return False

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._before + self._claimed

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, Any]:
        return self._before + query_length, 0 if self.offsets is None else self.offsets[1]

    def get_query_offset(self, layer_idx: int = 0) -> Any:
        return self.get_seq_length(layer_idx) if self.offsets is None else self.offsets[0]


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and one.data_ptr() == other.data_ptr()


_current: ContextVar[ForwardCache | None] = ContextVar("paceline_forward", default=None)


@contextmanager
def computing(forward: ForwardCache) -> Iterator[None]:
    """Our attention function reads this forward. Not an argument: some layers drop arguments they do not know."""
    token, states = _current.set(forward), functions.current.set(forward.recurrent)
    try:
        yield
    finally:
        _current.reset(token)
        functions.current.reset(states)


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """The function that transformers calls in every layer: ``[1, heads, sum n, width] -> [1, sum n, heads, width]``."""
    forward = _current.get()
    if forward is None:
        raise RuntimeError("attention 'paceline' serves forwards that the engine started; choose 'sdpa' for others")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    options = AttentionOptions(scale, sliding_window, softcap, s_aux, others)
    return forward.attend(query, key, value, options).transpose(1, 2).contiguous(), None


AttentionInterface.register(ATTENTION_NAME, attend)


@contextmanager
def attention_is(name: str, model: PreTrainedModel) -> Iterator[None]:
    """Switch a model's attention implementation for a forward, and back: its owner finds it unchanged."""
    before = [(config, config._attn_implementation) for config in _configs(model.config)]
    if any(current != name for _, current in before):
        model.config._attn_implementation = name
    try:
        yield
    finally:
        for config, current in before:
            if config._attn_implementation != current:
                config._attn_implementation = current


@contextmanager
def experts_are(name: str, model: PreTrainedModel) -> Iterator[None]:
    """Switch how a model's experts are computed for a forward, where it can be switched, and back."""
    before = [(config, config._experts_implementation) for config in _configs(model.config) if chooses_experts(config)]
    for config, _ in before:
        config._experts_implementation = name
    try:
        yield
    finally:
        for config, current in before:
            config._experts_implementation = current


def chooses_experts(config: PreTrainedConfig) -> bool:
    """Whether it says that rows are sorted by experts, which multiply in groups."""
    return getattr(config, "_experts_implementation", None) == "grouped_mm"


def _configs(config: PreTrainedConfig) -> list[PreTrainedConfig]:
    """A configuration and those inside it, outer ones first: setting an outer one sets its inner ones too."""
    inner = [getattr(config, name, None) for name in config.sub_configs]
    return [config, *(c for part in inner if part is not None for c in _configs(part))]
