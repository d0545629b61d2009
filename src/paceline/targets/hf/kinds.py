"""Which models have the one structure that `lean` computes itself, and where in them its modules are.

Llama's structure has been taken over by others, word for word but for the names of classes. It is recognised by the
classes themselves: every module that `lean` computes in the model's stead must be exactly of the class that
transformers defines for it, without hooks and without a forward of its own. The modules that `lean` calls (embedding,
linear layers, activation, head) may be anything: packed, quantised, adapted, hooked.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.modules import module as module_base
from transformers import PreTrainedModel

from paceline.targets.hf.joined import Joined, Share, join, shared

STATIC = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotations that are a function of the position alone."""


@dataclass(frozen=True)
class Kind:
    """What tells the relatives apart."""

    prefix: str
    """Of its classes' names."""
    window: Callable[[Any], int | None]
    """The window that a layer's attention module names to its attention function."""
    normed: bool = False
    """Queries and keys are normed head by head."""


def _of_layer(attention: Any) -> int | None:
    window: int | None = attention.sliding_window
    return window


def _of_model(attention: Any) -> int | None:
    window: int | None = getattr(attention.config, "sliding_window", None)
    return window


HOME = "transformers.models.{0}.modeling_{0}"
KINDS = {
    HOME.format("llama"): Kind("Llama", lambda attention: None),
    HOME.format("mistral"): Kind("Mistral", _of_model),
    HOME.format("ministral"): Kind("Ministral", _of_layer),
    HOME.format("qwen2"): Kind("Qwen2", _of_layer),
    HOME.format("qwen3"): Kind("Qwen3", _of_layer, normed=True),
}
"""By the file that defines them."""


@dataclass(frozen=True)
class Layer:
    """The modules of one layer, in the order in which they are computed."""

    before: Any
    reads: tuple[nn.Module, nn.Module, nn.Module]
    """Queries, keys and values."""
    reads_joined: Joined | None
    norms: tuple[Any, Any] | None
    """Of queries and of keys."""
    attention: Any
    window: Callable[[Any], int | None]
    out: nn.Module
    between: Any
    gate: nn.Module
    up: nn.Module
    gate_joined: Joined | None
    act: nn.Module
    down: nn.Module

    @property
    def bypassed(self) -> list[Share]:
        """Linear layers that are not called, for they are computed together."""
        return [
            share for joined in (self.reads_joined, self.gate_joined) if joined is not None for share in joined.shares
        ]

    @classmethod
    def of(cls, layer: Any, kind: Kind) -> Layer:
        attention, mlp = layer.self_attn, layer.mlp
        return cls(
            before=layer.input_layernorm,
            reads=(attention.q_proj, attention.k_proj, attention.v_proj),
            reads_joined=shared([attention.q_proj, attention.k_proj, attention.v_proj]),
            norms=(attention.q_norm, attention.k_norm) if kind.normed else None,
            attention=attention,
            window=kind.window,
            out=attention.o_proj,
            between=layer.post_attention_layernorm,
            gate=mlp.gate_proj,
            up=mlp.up_proj,
            gate_joined=shared([mlp.gate_proj, mlp.up_proj]),
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
"""What is inside the modules that are computed in the model's stead, by what their classes are called."""


class Build:
    """A model of one of the kinds, as it stood when it was looked at."""

    def __init__(self, model: Any, kind: Kind) -> None:
        self.embedding: nn.Module = model.model.embed_tokens
        self.layers = [Layer.of(layer, kind) for layer in model.model.layers]
        self.norm: Any = model.model.norm
        self.rotary: Any = model.model.rotary_emb
        self.head: nn.Module = model.lm_head
        self._decoder: Any = model.model
        bypassed = [share for layer in self.layers for share in layer.bypassed]
        computed = [*bypassed, *(module for _, module in _computed(model, kind))]
        self._computed = [(module, dict(module._modules)) for module in computed]

    @classmethod
    def of(cls, model: PreTrainedModel) -> Build | None:
        """None where anything in the model is not as it should be."""
        home = type(model).__module__
        kind = KINDS.get(home)
        if kind is None:
            return None
        try:
            as_defined = all(_is_defined_there(module, home, kind, part) for part, module in _computed(model, kind))
            build = cls(model, kind) if as_defined else None
        except AttributeError:  # a part is missing, or something else has its place
            return None
        return build if build is not None and build.stands() and build.rotary.rope_type in STATIC else None

    def stands(self) -> bool:
        """Whether nothing has been put into the model, or around what is computed of it, since it was looked at."""
        if len(self.layers) != self._decoder.config.num_hidden_layers or module_base._has_any_global_hook():
            return False
        for module, children in self._computed:
            state = module.__dict__
            if state["_modules"] != children or "forward" in state:
                return False
            if state["_forward_hooks"] or state["_forward_pre_hooks"]:
                return False
        return True


def join_layers(model: Any) -> bool:
    """Join what reads the same rows in a model of one of the kinds; whether anything was."""
    if Build.of(model) is None:
        return False
    joined = [join(layer.self_attn, ("q_proj", "k_proj", "v_proj")) for layer in model.model.layers]
    return any(joined + [join(layer.mlp, ("gate_proj", "up_proj")) for layer in model.model.layers])


def _computed(model: Any, kind: Kind) -> Iterator[tuple[str, nn.Module]]:
    """Every module that is computed in the model's stead, with what its class is called behind the prefix."""
    yield from [("ForCausalLM", model), ("Model", model.model), ("ModuleList", model.model.layers)]
    yield from [("RMSNorm", model.model.norm), ("RotaryEmbedding", model.model.rotary_emb)]
    for layer in model.model.layers:
        attention = layer.self_attn
        yield from [("DecoderLayer", layer), ("MLP", layer.mlp)]
        yield from [("RMSNorm", layer.input_layernorm), ("RMSNorm", layer.post_attention_layernorm)]
        if kind.normed:
            yield from [("NormedAttention", attention), ("RMSNorm", attention.q_norm), ("RMSNorm", attention.k_norm)]
        else:
            yield "Attention", attention


def _is_defined_there(module: nn.Module, home: str, kind: Kind, part: str) -> bool:
    """Whether a module is of the very class that its model's file defines, neither replaced nor given a new forward."""
    if part == "ModuleList":
        return type(module) is nn.ModuleList
    of_class = type(module)
    named = getattr(sys.modules[home], kind.prefix + part.removeprefix("Normed"), None)
    at_home = of_class is named and of_class.__module__ == of_class.forward.__module__ == home
    return at_home and set(module._modules) == CHILDREN[part]
