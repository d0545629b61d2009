"""Which models have the structure that `lean` computes, and where their modules are.

Other models copied llama's structure word for word except for the names of classes. The classes themselves identify
it: every module that `lean` computes itself must be exactly of the class that transformers defines for it, without
hooks and without another forward. The modules that `lean` calls (embedding, linear layers, activation, head) may be
anything: packed, quantised, adapted, hooked.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules import module as module_base

from paceline.targets.hf.joined import JointLinear, Make, join, joint_of
from paceline.targets.hf.rope import STATIC
from paceline.targets.hf.shares import Tracks
from paceline.targets.hf.snapshot import is_altered

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Between = Callable[[torch.Tensor], torch.Tensor]
"""What becomes of the states between two layers."""


def unchanged(states: torch.Tensor) -> torch.Tensor:
    """The `Between` of ordinary layers."""
    return states


@dataclass(frozen=True)
class Variant:
    """The differences between models of llama's structure."""

    prefix: str
    """Of its classes' names."""
    window: Callable[[Any], int | None]
    """The window that an attention module passes to its attention function."""
    normed: bool = False
    """Queries and keys are normed head by head."""


HOME = "transformers.models.{0}.modeling_{0}"
OF_LAYER = attrgetter("sliding_window")
VARIANTS = {
    "paceline.targets.pocket.llama": Variant("Bundled", lambda attention: None),
    HOME.format("llama"): Variant("Llama", lambda attention: None),
    HOME.format("mistral"): Variant("Mistral", lambda attention: getattr(attention.config, "sliding_window", None)),
    HOME.format("ministral"): Variant("Ministral", OF_LAYER),
    HOME.format("qwen2"): Variant("Qwen2", OF_LAYER),
    HOME.format("qwen3"): Variant("Qwen3", OF_LAYER, normed=True),
}
"""By the file that defines them."""


@dataclass(frozen=True)
class Layer:
    """The modules of one layer, in the order in which they are computed."""

    before: Any
    qkv: tuple[nn.Module, nn.Module, nn.Module]
    qkv_joint: JointLinear | None
    norms: tuple[Any, Any] | None
    """Of queries and of keys."""
    attention: Any
    window: Callable[[Any], int | None]
    out: nn.Module
    between: Any
    gate: nn.Module
    up: nn.Module
    gate_up_joint: JointLinear | None
    act: nn.Module
    down: nn.Module
    opens: Between = unchanged
    """Sends the states into the tracks of a segment that begins here."""
    closes: Between = unchanged
    """Brings them together at the end of a segment."""

    @classmethod
    def of(cls, layer: Any, variant: Variant) -> Layer:
        attention, mlp = layer.self_attn, layer.mlp
        qkv = attention.q_proj, attention.k_proj, attention.v_proj
        return cls(
            before=layer.input_layernorm,
            qkv=qkv,
            qkv_joint=joint_of(qkv),
            norms=(attention.q_norm, attention.k_norm) if variant.normed else None,
            attention=attention,
            window=variant.window,
            out=attention.o_proj,
            between=layer.post_attention_layernorm,
            gate=mlp.gate_proj,
            up=mlp.up_proj,
            gate_up_joint=joint_of((mlp.gate_proj, mlp.up_proj)),
            act=mlp.act_fn,
            down=mlp.down_proj,
        )


CHILDREN = {
    "ForCausalLM": {"model", "lm_head"},
    "Model": {"embed_tokens", "layers", "norm", "rotary_emb"},
    "DecoderLayer": {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"},
    "Attention": {"q_proj", "k_proj", "v_proj", "o_proj"},
    "NormedAttention": {"q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"},
    "MLP": {"gate_proj", "up_proj", "down_proj", "act_fn"},
    "RMSNorm": set(),
    "RotaryEmbedding": set(),
}
"""The children of the modules that `lean` computes, by the names of their classes without the prefix."""


class LlamaModules:
    """The modules of a model of one of the variants."""

    def __init__(self, model: Any, variant: Variant) -> None:
        self.embedding: nn.Module = model.model.embed_tokens
        self.layers = [Layer.of(layer, variant) for layer in model.model.layers]
        self.norm: Any = model.model.norm
        self.rotary: Any = model.model.rotary_emb
        self.head: nn.Module = model.lm_head
        self._config: Any = model.model.config

    def meeting(self, layer: int) -> int:
        """The last layer up to this one that a row enters as one state: any, but of a model in tracks."""
        return layer

    def read(self, states: torch.Tensor) -> torch.Tensor:
        """States ``[1, n, width]`` as the head reads them, from those behind the final norm."""
        return states

    def fit(self) -> bool:
        """Whether hooks on all modules, the number of layers and the rotary type allow the lean path."""
        if module_base._has_any_global_hook() or len(self.layers) != self._config.num_hidden_layers:
            return False
        return self.rotary.rope_type in STATIC


IN_TRACKS = "paceline.targets.hf.tracks"
"""The file that defines a model in tracks. Its import loads transformers' model code."""


class TracksModules(LlamaModules):
    """The modules of a model in tracks. Its linear layers take the states of all tracks that a process holds."""

    def __init__(self, model: Any) -> None:
        super().__init__(model, Variant("Tracks", lambda attention: None))
        self.tracks: Tracks = model.tracks
        own = model.model.layers
        self.layers = [
            replace(
                layer,
                opens=self.tracks.apart if of.first else unchanged,
                closes=self.tracks.averaged if of.meets else unchanged,
            )
            for layer, of in zip(self.layers, own, strict=True)
        ]
        self._firsts = [number for number, of in enumerate(own) if of.first]

    def meeting(self, layer: int) -> int:
        return max(first for first in self._firsts if first <= layer)

    def read(self, states: torch.Tensor) -> torch.Tensor:
        return torch.cat(self.tracks.own(states), dim=-1)


def modules_in_tracks(model: PreTrainedModel) -> TracksModules | None:
    """The modules of a model in tracks, none of them changed."""
    whole: Any = model
    if type(model).__module__ != IN_TRACKS:
        return None
    computed: frozenset[type] = sys.modules[IN_TRACKS].COMPUTED
    called = {id(whole.get_input_embeddings()), *(id(layer.mlp.act_fn) for layer in whole.model.layers)}
    modules = [module for module in whole.modules() if id(module) not in called]
    if any(type(module) not in computed or is_altered(module) for module in modules):
        return None
    found = TracksModules(whole)
    return found if found.fit() else None


def modules_of(model: PreTrainedModel) -> LlamaModules | None:
    """The modules of a model that is one of the variants, and none of them changed."""
    whole: Any = model
    home = type(model).__module__
    variant = VARIANTS.get(home)
    if variant is None:
        return None
    try:
        if not all(_is_original(module, home, variant, part) for part, module in _computed(whole, variant)):
            return None
        modules = LlamaModules(whole, variant)
    except AttributeError:  # a part is missing, or something else is in its place
        return None
    return modules if modules.fit() else None


def known_modules(model: PreTrainedModel) -> LlamaModules | None:
    """The modules of a model of one of the variants, or of one in tracks."""
    return modules_of(model) or modules_in_tracks(model)


def is_silu(act: Any) -> bool:
    """Whether an activation is the one that is computed without its module."""
    return isinstance(act, nn.SiLU) or type(act).__name__ == "SiLUActivation"


def join_layers(model: Any, make: Make) -> bool:
    """Join linear layers that read the same rows in a model of one of the variants; ``make`` says what computes them.
    Whether any were joined."""
    if modules_of(model) is None:
        return False
    joined = [join(layer.self_attn, ("q_proj", "k_proj", "v_proj"), make) for layer in model.model.layers]
    return any(joined + [join(layer.mlp, ("gate_proj", "up_proj"), make) for layer in model.model.layers])


def _computed(model: Any, variant: Variant) -> Iterator[tuple[str, Any]]:
    """Every module that `lean` computes itself, with the name of its class without the prefix."""
    yield "ForCausalLM", model
    yield "Model", model.model
    yield "ModuleList", model.model.layers
    yield "RMSNorm", model.model.norm
    yield "RotaryEmbedding", model.model.rotary_emb
    for layer in model.model.layers:
        yield "DecoderLayer", layer
        yield "MLP", layer.mlp
        yield "RMSNorm", layer.input_layernorm
        yield "RMSNorm", layer.post_attention_layernorm
        if variant.normed:
            yield "NormedAttention", layer.self_attn
            yield "RMSNorm", layer.self_attn.q_norm
            yield "RMSNorm", layer.self_attn.k_norm
        else:
            yield "Attention", layer.self_attn


def _is_original(module: Any, home: str, variant: Variant, part: str) -> bool:
    """Whether a module is of the very class that its model's file defines, with that class's forward and no hooks."""
    if not isinstance(module, nn.Module) or is_altered(module):
        return False
    if part == "ModuleList":
        return type(module) is nn.ModuleList
    of_class = type(module)
    named = getattr(sys.modules[home], variant.prefix + part.removeprefix("Normed"), None)
    at_home = of_class is named and of_class.__module__ == of_class.forward.__module__ == home
    return at_home and set(module._modules) == CHILDREN[part]
