"""One forward in progress: the object transformers is handed as its cache, and the attention function's guide.

Two ways in. *Packed*: the model uses transformers' attention interface, keys and values go straight to each
sequence's own rows, and the attention function does the rest. *Masked*: the model has an attention of its own; one
sequence at a time, it gets all of its keys back from the cache and an additive float mask (per layer type where types
mix; a boolean one would silently be added as 0 and 1 by eager attention). *Chained*: the model builds its mask and
its position bias itself and is only trusted with plain continuations.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import torch
from transformers import AttentionInterface, Cache, PreTrainedConfig, PreTrainedModel

from paceline.targets.base import Request
from paceline.targets.hf.attention import NAME, Asked, MaskScratch, Part, attend, by_part, write

AttentionInterface.register(NAME, attend)


class Mode(StrEnum):
    """How drafts reach a model, best first."""

    PACKED = "packed"
    MASKED = "masked"
    CHAINED = "chained"


class Unsupported(Exception):
    """The model asks something of attention or cache that the mode cannot honour; the next mode may."""


class Forward(Cache):
    """The rows of one forward, seen by transformers as a cache whose layers appear as they are written."""

    def __init__(self, requests: Sequence[Request], mode: Mode, scratch: MaskScratch, claimed: int = 0) -> None:
        super().__init__(layers=[])
        self.mode = mode
        self._claimed = claimed
        self.parts = Part.of_all(requests, scratch)
        assert len(self.parts) == 1 or mode is Mode.PACKED, "only packed rows of several sequences stay apart"
        self.windows: list[int | None] = []
        self._written: tuple[int, torch.Tensor, torch.Tensor] | None = None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Called by every layer with its fresh rows; returns what the layer's attention should see of the cache."""
        self._written = layer_idx, key_states, value_states
        write(self.parts, layer_idx, key_states, value_states)
        if self.mode is Mode.PACKED:
            return key_states, value_states
        part = self.parts[0]
        return part.rows.layers[layer_idx].span(0, part.request.end)

    def attend(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, asked: Asked) -> torch.Tensor:
        """Attention of every part's rows over what was written for it."""
        layer = self.enter_layer(keys, values, asked.window, asked.others)
        return by_part(self.parts, layer, query, asked)

    def enter_layer(self, keys: torch.Tensor, values: torch.Tensor, window: int | None, others: dict[str, Any]) -> int:
        """The layer whose attention is being computed; refuses what the attention function does not know."""
        tensors = {name for name, value in others.items() if isinstance(value, torch.Tensor)}
        if strange := sorted(tensors - HARMLESS):
            raise Unsupported(f"attention is given {', '.join(strange)}")
        if self._written is None:
            raise Unsupported("a layer attends to keys that another layer wrote")
        layer, *stored = self._written
        if not all(_same(*pair) for pair in zip(stored, (keys, values), strict=True)):
            raise Unsupported("attention is given other keys and values than the cache")
        self._written = None
        self.windows.append(window)
        return layer

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.parts[0].request.end - self.parts[0].n + self._claimed

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.parts[0].request.end - self.parts[0].n + query_length, 0

    @property
    def is_compileable(self) -> bool:
        return False

    @property
    def is_sliding(self) -> list[bool]:
        return [False]

    @property
    def is_linear(self) -> list[bool]:
        return [False]

    @property
    def is_dummy(self) -> list[bool]:
        return [False]


class Elsewhere(Cache):
    """An empty cache that says that so many rows are in it: what a model computes from that number shows."""

    def __init__(self, rows: int) -> None:
        super().__init__(layers=[])
        self._rows = rows

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._rows

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return query_length, 0


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and one.data_ptr() == other.data_ptr()


HARMLESS = frozenset({"position_ids", "cache_position", "position_embeddings", "logits_to_keep"})
"""Tensors that some models pass on to attention functions for their own bookkeeping."""


class Attention:
    """A model's attention implementation, switched to ours for a forward and back again after it: a model that was
    handed to us keeps working as its owner set it up."""

    def __init__(self, model: PreTrainedModel, name: str) -> None:
        self._config = model.config
        self._name = name

    def __enter__(self) -> None:
        self._before = [(config, config._attn_implementation) for config in _configs(self._config)]
        if any(name != self._name for _, name in self._before):
            self._config._attn_implementation = self._name

    def __exit__(self, *_: object) -> None:
        for config, name in self._before:
            if config._attn_implementation != name:
                config._attn_implementation = name


def _configs(config: PreTrainedConfig) -> list[PreTrainedConfig]:
    """A configuration and those inside it, outer ones first: setting an outer one sets its inner ones too."""
    inner = [getattr(config, name, None) for name in config.sub_configs]
    return [config, *(c for part in inner if part is not None for c in _configs(part))]


def masks(forward: Forward, like: torch.Tensor, layer_types: Sequence[str], window: int | None) -> Any:
    """The additive float mask(s) ``[1, 1, n, keys]`` of a masked forward: one, or a dict where full and sliding layers
    mix. All keys come back from the cache, so a window has to be masked out of them."""
    part = forward.parts[0]
    by_kind = {
        kind: part.full_mask(window if kind == "sliding_attention" else None, like)[None, None]
        for kind in sorted(set(layer_types))
    }
    return by_kind if len(by_kind) > 1 else next(iter(by_kind.values()))
