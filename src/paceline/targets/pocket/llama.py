"""A bundled model without transformers: llama's modules with their weights, which `lean` computes.

Loading transformers' own model code takes longer than loading such a model and writing a page with it. Names of modules
and weights are transformers', and so is every operation: `as_transformers` makes a `LlamaForCausalLM` around the same
layers, for those who need one.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import nn

from paceline.targets.hf.packed import ordinary

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

Weights = dict[str, torch.Tensor]


class Config(SimpleNamespace):
    """The values of a model's ``config.json``."""

    def get_text_config(self) -> Config:
        return self


class Computed(nn.Module):
    """A module that `lean` computes."""

    def forward(self, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError("the lean path computes bundled models")


class BundledRMSNorm(nn.Module):
    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.variance_epsilon = eps

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        wide = states.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * wide.to(states.dtype)


class BundledRotaryEmbedding(nn.Module):
    inv_freq: torch.Tensor

    def __init__(self, config: Config, device: torch.device) -> None:
        super().__init__()
        self.rope_type = str(config.rope_parameters["rope_type"])
        self.attention_scaling = 1.0
        shares = torch.arange(0, config.head_dim, 2, dtype=torch.float) / config.head_dim
        frequencies = 1.0 / (config.rope_parameters["rope_theta"] ** shares)
        self.register_buffer("inv_freq", frequencies.to(device), persistent=False)

    def forward(self, like: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = positions[..., None].float() * self.inv_freq
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


class BundledAttention(Computed):
    def __init__(self, config: Config, weights: Weights, place: str, number: int) -> None:
        super().__init__()
        self.layer_idx, self.head_dim = number, int(config.head_dim)
        self.scaling = self.head_dim**-0.5
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            self.add_module(name, ordinary(weights[f"{place}.self_attn.{name}.weight"], None))


class BundledMLP(Computed):
    def __init__(self, weights: Weights, place: str) -> None:
        super().__init__()
        for name in ("gate_proj", "up_proj", "down_proj"):
            self.add_module(name, ordinary(weights[f"{place}.mlp.{name}.weight"], None))
        self.act_fn = nn.SiLU()


class BundledDecoderLayer(Computed):
    def __init__(self, config: Config, weights: Weights, number: int) -> None:
        super().__init__()
        place = f"model.layers.{number}"
        self.self_attn = BundledAttention(config, weights, place, number)
        self.mlp = BundledMLP(weights, place)
        for name in ("input_layernorm", "post_attention_layernorm"):
            self.add_module(name, BundledRMSNorm(weights[f"{place}.{name}.weight"], config.rms_norm_eps))


class BundledModel(Computed):
    def __init__(self, config: Config, weights: Weights) -> None:
        super().__init__()
        self.config = config
        norm, embedding = weights["model.norm.weight"], weights["model.embed_tokens.weight"]
        self.embed_tokens = nn.Embedding(len(embedding), embedding.shape[1], _weight=embedding, _freeze=True)
        self.layers = nn.ModuleList(
            BundledDecoderLayer(config, weights, number) for number in range(config.num_hidden_layers)
        )
        self.norm = BundledRMSNorm(norm, config.rms_norm_eps)
        self.rotary_emb = BundledRotaryEmbedding(config, norm.device)


class BundledForCausalLM(Computed):
    """The head has a bias if ``lm_head.bias`` is among the weights. ``generation`` holds the values of a model's
    ``generation_config.json``."""

    def __init__(self, config: Config, weights: Weights, generation: SimpleNamespace | None = None) -> None:
        super().__init__()
        self.config, self.generation_config = config, generation
        self.model = BundledModel(config, weights)
        self.lm_head: Any = ordinary(self.model.embed_tokens.weight, weights.get("lm_head.bias"))
        self.lm_head.weight = self.model.embed_tokens.weight

    @property
    def dtype(self) -> torch.dtype:
        return self.model.norm.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.model.norm.weight.device

    def get_decoder(self) -> Any:
        return self.model

    def get_input_embeddings(self) -> Any:
        return self.model.embed_tokens

    def get_output_embeddings(self) -> Any:
        return self.lm_head


def as_transformers(bundled: BundledForCausalLM) -> LlamaForCausalLM:
    """The same model as transformers has it, around the same layers and weights."""
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    with torch.device("meta"):
        model: Any = LlamaForCausalLM(LlamaConfig.from_dict(vars(bundled.config)))
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config).to(bundled.device)
    model.config.dtype = bundled.dtype
    if bundled.generation_config is not None:
        model.generation_config = GenerationConfig(**vars(bundled.generation_config))
    for name, module in bundled.named_modules():
        if isinstance(module, BundledRMSNorm):
            model.get_submodule(name).weight = module.weight
        elif name and not isinstance(module, Computed | BundledRotaryEmbedding | nn.ModuleList | nn.SiLU):
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, module)
    model.requires_grad_(False)
    found: LlamaForCausalLM = model.train(False)
    return found
