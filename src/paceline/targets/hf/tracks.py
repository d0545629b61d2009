"""A llama whose layers run in parallel tracks, which meet twice in a forward, however many layers there are.

Its layers are divided into contiguous segments. In a segment each track has states of its own, as wide as the model,
and a share of the heads and of the units of the MLP: it goes through the layers with these alone. At the end of a
segment the tracks' states are averaged; at the end of the last one each track multiplies its share of the channels with
the head, and the logits are the sum. So tracks on several devices exchange states once for each boundary and logits
once, where shards of an ordinary model exchange states twice in every layer.

Weights have the names and shapes of a llama's; a track's share are the rows or columns that tensor parallelism would
give it. With one track this is a llama, bit for bit. A llama with several tracks is another function: such models are
trained as they are (``paceline train segments``).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import (
    LlamaModel,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
    eager_attention_forward,
)

from paceline.errors import InputError
from paceline.targets.hf.names import CACHE_NAMES, TRACKS
from paceline.targets.hf.shares import COLUMNS, ROWS, SharedLinear, Sum, Tracks, TracksHead

SEGMENTS = 2


class TracksConfig(LlamaConfig):
    """A llama's, with ``tracks`` and ``segments``."""

    model_type = TRACKS


class TracksAttention(nn.Module):
    """Attention of the heads of all held tracks in one call: each head belongs to one track."""

    def __init__(self, of: Any, tracks: Tracks) -> None:
        super().__init__()
        self.config, self.layer_idx, self.head_dim = of.config, of.layer_idx, of.head_dim
        self.num_key_value_groups, self.scaling, self.is_causal = of.num_key_value_groups, of.scaling, True
        self._tracks = tracks
        self.q_proj, self.k_proj, self.v_proj = (
            SharedLinear(each, tracks, ROWS) for each in (of.q_proj, of.k_proj, of.v_proj)
        )
        self.o_proj = SharedLinear(of.o_proj, tracks, COLUMNS)

    def forward(
        self,
        states: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        attention_mask: torch.Tensor | None,
        cache: Any,
        **how: Any,
    ) -> torch.Tensor:
        query, key, value = (self._heads(each, states) for each in (self.q_proj, self.k_proj, self.v_proj))
        query, key = apply_rotary_pos_emb(query, key, *position_embeddings)
        if cache is not None:
            key, value = cache.update(key, value, self.layer_idx)
        name = self.config._attn_implementation
        attend: Any = eager_attention_forward if name == "eager" else ALL_ATTENTION_FUNCTIONS[name]
        mixed, _ = attend(self, query, key, value, attention_mask, dropout=0.0, scaling=self.scaling, **how)
        joint: torch.Tensor = mixed.reshape(*mixed.shape[:2], -1)
        parts = joint.chunk(self._tracks.held, -1)
        out: torch.Tensor = self.o_proj(parts[0] if len(parts) == 1 else torch.cat(parts))
        return out

    def _heads(self, linear: SharedLinear, states: torch.Tensor) -> torch.Tensor:
        """``[texts, heads of all held tracks, n, size]``."""
        parts = linear.apart(states)
        joint = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
        return joint.view(*joint.shape[:2], -1, self.head_dim).transpose(1, 2)


class TracksMLP(nn.Module):
    """An MLP of which each track has a share of the units."""

    def __init__(self, of: Any, tracks: Tracks) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (SharedLinear(each, tracks, ROWS) for each in (of.gate_proj, of.up_proj))
        self.down_proj, self.act_fn = SharedLinear(of.down_proj, tracks, COLUMNS), of.act_fn

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down_proj(self.act_fn(self.gate_proj(states)) * self.up_proj(states))
        return out


class TracksLayer(nn.Module):
    """A layer of a segment. Its first one sends the states into the tracks, its last one brings them together."""

    def __init__(self, of: Any, tracks: Tracks, *, first: bool, meets: bool) -> None:
        super().__init__()
        self.tracks, self.first, self.meets = tracks, first, meets
        self.self_attn, self.mlp = TracksAttention(of.self_attn, tracks), TracksMLP(of.mlp, tracks)
        self.input_layernorm: LlamaRMSNorm = of.input_layernorm
        self.post_attention_layernorm: LlamaRMSNorm = of.post_attention_layernorm

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_embeddings: Any = None,
        **how: Any,
    ) -> torch.Tensor:
        cache = next((how.pop(name) for name in CACHE_NAMES if name in how), None)
        states: torch.Tensor = self.tracks.apart(hidden_states) if self.first else hidden_states
        states = states + self.self_attn(
            self.input_layernorm(states), position_embeddings, attention_mask, cache, **how
        )
        states = states + self.mlp(self.post_attention_layernorm(states))
        return self.tracks.averaged(states) if self.meets else states


class TracksForCausalLM(LlamaForCausalLM):
    """The whole model, all of its tracks in one process until `hold`."""

    config_class = TracksConfig
    _tied_weights_keys = LlamaForCausalLM._tied_weights_keys
    _tp_plan: Any = None
    _pp_plan: Any = None

    def __init__(self, config: Any) -> None:
        check_shape(config)
        super().__init__(config)
        self.tracks = Tracks(config.tracks)
        ends = ends_of(config.num_hidden_layers, config.segments)
        layers = self.model.layers
        for number, layer in enumerate(layers):
            first, last = number == 0 or number in ends, number == len(layers) - 1
            layers[number] = TracksLayer(layer, self.tracks, first=first, meets=number + 1 in ends and not last)
        self.lm_head = TracksHead(self.lm_head, self.tracks)
        self.post_init()  # type: ignore[no-untyped-call]

    def hold(self, track: int, everywhere: Sum) -> None:
        """Keep one track only; the other processes have the others."""
        count = self.tracks.count
        if count == 1:
            raise InputError("a model of one track is not divided")
        if self.config.tie_word_embeddings:
            self.lm_head.weight = nn.Parameter(self.lm_head.weight.detach().clone(), requires_grad=False)
        for module in list(self.modules()):
            if isinstance(module, SharedLinear):
                module.hold(track, count)
        self.tracks.hold(track, everywhere)


COMPUTED = frozenset(
    {
        *(TracksForCausalLM, TracksLayer, TracksAttention, TracksMLP, TracksHead, SharedLinear),
        *(LlamaModel, LlamaRMSNorm, LlamaRotaryEmbedding, nn.ModuleList),
    }
)
"""The classes of the modules that the lean path computes itself."""


def check_shape(config: Any) -> None:
    """Refuse a configuration whose layers cannot be divided so."""
    count, segments = getattr(config, "tracks", None), getattr(config, "segments", None)
    if not (isinstance(count, int) and isinstance(segments, int) and count > 0 and segments > 0):
        raise InputError(f"a model with tracks has numbers of tracks and of segments, not {count!r} and {segments!r}")
    if segments > config.num_hidden_layers:
        raise InputError(f"{config.num_hidden_layers} layers are not {segments} segments")
    shared = ("num_attention_heads", "num_key_value_heads", "intermediate_size", "hidden_size")
    for name in shared:
        if (size := getattr(config, name)) % count:
            raise InputError(f"{name} is {size}, which {count} tracks cannot share equally")


def ends_of(layers: int, segments: int) -> set[int]:
    """The numbers of the layers that begin a segment other than the first; earlier segments have the layers more."""
    sizes = [layers // segments + (number < layers % segments) for number in range(segments)]
    return {sum(sizes[:number]) for number in range(1, segments)}


def register() -> None:
    """Let transformers know the model."""
    AutoConfig.register(TRACKS, TracksConfig, exist_ok=True)
    AutoModelForCausalLM.register(TracksConfig, TracksForCausalLM, exist_ok=True)
