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
from operator import itemgetter
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
    def shares(self) -> list[Share]:
        """Linear layers that are computed together as long as nobody touches one of them."""
        return [module for module in (*self.reads, self.gate, self.up) if isinstance(module, Share)]

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
    """The modules of a model of one of the kinds."""

    def __init__(self, model: Any, kind: Kind) -> None:
        self.embedding: nn.Module = model.model.embed_tokens
        self.layers = [Layer.of(layer, kind) for layer in model.model.layers]
        self.norm: Any = model.model.norm
        self.rotary: Any = model.model.rotary_emb
        self.head: nn.Module = model.lm_head
        self._config: Any = model.model.config

    def fits(self) -> bool:
        """Whether what a module says of itself, or torch of all of them, leaves nothing open."""
        if module_base._has_any_global_hook() or len(self.layers) != self._config.num_hidden_layers:
            return False
        return self.rotary.rope_type in STATIC


INSIDE = itemgetter("_modules", "_forward_hooks", "_forward_pre_hooks")


class Look:
    """What there was to be seen of a model: its `Build`, if it is of one of the kinds and bare, and all that was looked
    at to find out. A refusal is remembered as well: looking takes longer than the forward of a small model."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._seen = Seen()
        self._build = self._look(model)

    def _look(self, model: Any) -> Build | None:
        self._seen.add(model)
        home = type(model).__module__
        kind = KINDS.get(home)
        if kind is None:
            return None
        try:
            for part, module in _computed(model, kind):
                if not isinstance(module, nn.Module):
                    return None
                if not self._seen.add(module) or not _is_defined_there(module, home, kind, part):
                    return None
            build = Build(model, kind)
        except AttributeError:  # a part is missing, or something else has its place
            return None
        for layer in build.layers:
            for share in layer.shares:
                self._seen.add(share)
        return build

    @property
    def build(self) -> Build | None:
        """None where anything in the model is not as it should be."""
        return self._build if self._build is not None and self._build.fits() else None

    def stands(self) -> bool:
        """Whether nothing of what was looked at has changed."""
        return self._seen.stands()

    def refuse(self) -> None:
        """Whatever was seen, the model is not to be computed until it changes."""
        self._build = None


class Seen:
    """Modules, what was in them, and what was put around them. Looked at again before every forward: so all of one kind
    at a time, in loops that Python does not run itself (0.03 ms for the 250 modules of 24 layers)."""

    def __init__(self) -> None:
        self._modules: list[nn.Module] = []
        self._states: list[dict[str, Any]] = []
        self._insides: list[tuple[dict[str, Any], ...]] = []
        self._forwards: list[Any] = []
        self._classes: list[type[nn.Module]] = []

    def add(self, module: nn.Module) -> bool:
        """Remember a module; whether it is bare: nobody listens, and its forward is that of its class."""
        state = vars(module)
        inside = tuple(map(dict, INSIDE(state)))
        self._modules.append(module)
        self._states.append(state)
        self._insides.append(inside)
        self._forwards.append(state.get("forward"))
        self._classes.append(type(module))
        return not (inside[1] or inside[2]) and self._forwards[-1] is None

    def stands(self) -> bool:
        return (
            list(map(INSIDE, self._states)) == self._insides
            and [state.get("forward") for state in self._states] == self._forwards
            and list(map(type, self._modules)) == self._classes
        )


def join_layers(model: Any) -> bool:
    """Join what reads the same rows in a model of one of the kinds; whether anything was."""
    if Look(model).build is None:
        return False
    joined = [join(layer.self_attn, ("q_proj", "k_proj", "v_proj")) for layer in model.model.layers]
    return any(joined + [join(layer.mlp, ("gate_proj", "up_proj")) for layer in model.model.layers])


def _computed(model: Any, kind: Kind) -> Iterator[tuple[str, Any]]:
    """Every module that is computed in the model's stead, with what its class is called behind the prefix; each one
    before what is inside it, so that whoever stops on the way has seen where."""
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
        if kind.normed:
            yield "NormedAttention", layer.self_attn
            yield "RMSNorm", layer.self_attn.q_norm
            yield "RMSNorm", layer.self_attn.k_norm
        else:
            yield "Attention", layer.self_attn


def _is_defined_there(module: nn.Module, home: str, kind: Kind, part: str) -> bool:
    """Whether a module is of the very class that its model's file defines, neither replaced nor given a new forward."""
    if part == "ModuleList":
        return type(module) is nn.ModuleList
    of_class = type(module)
    named = getattr(sys.modules[home], kind.prefix + part.removeprefix("Normed"), None)
    at_home = of_class is named and of_class.__module__ == of_class.forward.__module__ == home
    return at_home and set(module._modules) == CHILDREN[part]
