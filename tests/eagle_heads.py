"""Made-up EAGLE heads in the layouts of their authors, and what these say that they compute, in plain torch."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

Tensors = dict[str, torch.Tensor]

VARIANTS = (
    "eagle",
    "eagle-bin",
    "eagle3",
    "eagle3-narrow",
    "speculators",
    "speculators-layers",
    "peagle",
    "mtp",
    "mtp-qwen3-next",
    "mtp-deepseek",
)
FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
MTP_NAMES = {
    "mtp": ("mtp_layers.0.", "input_proj", "token_layernorm", "hidden_layernorm", "final_layernorm"),
    "mtp-qwen3-next": ("mtp_layers.0.", "input_proj", "token_layernorm", "hidden_layernorm", "final_layernorm"),
    "mtp-deepseek": ("model.layers.61.", "eh_proj", "enorm", "hnorm", "shared_head.norm"),
}


@dataclass(frozen=True)
class Published:
    """A head as its authors publish it, and the target that it is for."""

    variant: str
    config: dict[str, Any]
    tensors: Tensors
    embedding: torch.Tensor
    """The target's."""
    output: torch.Tensor
    """The target's."""
    aux: int
    state_width: int

    @property
    def layer(self) -> dict[str, Any]:
        return self.config.get("transformer_layer_config", self.config)

    @property
    def form(self) -> str:
        return {"eagle-bin": "eagle", "eagle3-narrow": "eagle3"}.get(self.variant, self.variant.partition("-")[0])


class Maker:
    """Random sizes and weights."""

    def __init__(self, variant: str, seed: int) -> None:
        self.variant, self.random = variant, np.random.default_rng([seed, len(variant)])
        self.generator = torch.Generator().manual_seed(seed)
        self.tensors: Tensors = {}

    def pick(self, *values: Any) -> Any:
        return values[int(self.random.integers(len(values)))]

    def add(self, name: str, *shape: int) -> None:
        noise = torch.randn(shape, generator=self.generator)
        is_norm = len(shape) == 1 and name.endswith("weight")
        self.tensors[name] = 1 + 0.3 * noise if is_norm else noise * (shape[-1] ** -0.5 if len(shape) > 1 else 0.3)

    def layer_config(self) -> dict[str, Any]:
        kv, group, size = self.pick(1, 2), self.pick(1, 2, 3), self.pick(4, 8)
        config = {
            "model_type": "llama",
            "hidden_size": self.pick(12, 16, 20),
            "intermediate_size": self.pick(10, 24),
            "num_attention_heads": kv * group,
            "num_key_value_heads": kv,
            "head_dim": size,
            "num_hidden_layers": 1,
            "rms_norm_eps": self.pick(1e-5, 1e-6),
            "hidden_act": "silu",
            "vocab_size": self.pick(17, 23),
            "max_position_embeddings": 4,
        }
        theta, factor = self.pick(100.0, 10000.0), self.pick(2.0, 3.0)
        return config | self.pick(
            {"rope_theta": theta},
            {"rope_theta": theta, "rope_scaling": {"type": "linear", "factor": factor}},
            {"rope_parameters": {"rope_type": "linear", "factor": factor, "rope_theta": theta}},
        )

    def layer(self, place: str, config: dict[str, Any], **how: Any) -> None:
        width, units, size = config["hidden_size"], config["intermediate_size"], config["head_dim"]
        heads, shared = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
        reads, gated = how.get("reads", width), how.get("gated", False)
        for name, rows in (("q", heads * (1 + gated)), ("k", shared), ("v", shared)):
            self.add(f"{place}self_attn.{name}_proj.weight", rows, reads)
            if how.get("bias"):
                self.add(f"{place}self_attn.{name}_proj.bias", rows)
        self.add(f"{place}self_attn.o_proj.weight", width, heads)
        if how.get("head_norms"):
            for name in "qk":
                self.add(f"{place}self_attn.{name}_norm.weight", size)
        for name in ("gate", "up"):
            self.add(f"{place}mlp.{name}_proj.weight", units, width)
        self.add(f"{place}mlp.down_proj.weight", width, units)
        norms = ("input_layernorm", "post_attention_layernorm")
        for name in norms if how.get("input_norm", True) else norms[1:]:
            self.add(f"{place}{name}.weight", width)

    def vocabulary(self, size: int, kept: int) -> None:
        ids = np.sort(self.random.permutation(size)[:kept])
        self.tensors["d2t"] = torch.from_numpy(ids - np.arange(kept))
        known = torch.zeros(size, dtype=torch.bool)
        known[torch.from_numpy(ids)] = True
        self.tensors["t2d"] = known


def publish(folder: Path, variant: str, seed: int) -> Published:
    """Write a head into a folder."""
    maker = Maker(variant, seed)
    layer = maker.layer_config()
    build = {"eagle": _eagle, "eagle3": _eagle3, "speculators": _speculators, "peagle": _speculators, "mtp": _mtp}
    config, aux, state = build[variant.partition("-")[0]](maker, layer)
    size, random = layer["vocab_size"], maker.generator
    made = Published(
        variant,
        config,
        maker.tensors,
        torch.randn(size, state, generator=random),
        torch.randn(size, state, generator=random),
        aux,
        state,
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if variant == "eagle-bin":
        torch.save(maker.tensors, folder / "pytorch_model.bin")
    else:
        save_file(maker.tensors, folder / "model.safetensors")
    return made


def _eagle(maker: Maker, layer: dict[str, Any]) -> tuple[dict[str, Any], int, int]:
    width, bias = layer["hidden_size"], maker.pick(None, True, False)
    maker.add("fc.weight", width, 2 * width)
    if bias is not False:
        maker.add("fc.bias", width)
    maker.layer("layers.0.", layer, input_norm=False, bias=maker.pick(True, False))
    if maker.variant == "eagle-bin":
        maker.add("embed_tokens.weight", layer["vocab_size"], width)
    return layer | ({} if bias is None else {"bias": bias}), 1, width


def _eagle3(maker: Maker, layer: dict[str, Any]) -> tuple[dict[str, Any], int, int]:
    width, size, narrow = layer["hidden_size"], layer["vocab_size"], maker.variant == "eagle3-narrow"
    state, kept = width + 8 if narrow else width, maker.pick(size, 9)
    maker.add("fc.weight", width, 3 * state)
    maker.layer("midlayer.", layer, reads=2 * width)
    maker.add("midlayer.hidden_norm.weight", width)
    maker.add("norm.weight", width)
    maker.add("lm_head.weight", kept, width)
    if kept < size:
        maker.vocabulary(size, kept)
    else:
        maker.tensors |= {"d2t": torch.zeros(size, dtype=torch.int64), "t2d": torch.zeros(size, dtype=torch.bool)}
    if narrow:
        maker.add("embed_tokens.weight", size, width)
    return layer | {"draft_vocab_size": kept} | ({"target_hidden_size": state} if narrow else {}), 3, state


def _speculators(maker: Maker, layer: dict[str, Any]) -> tuple[dict[str, Any], int, int]:
    width, size, aux = layer["hidden_size"], layer["vocab_size"], maker.pick(1, 2, 3)
    peagle, kept = maker.variant == "peagle", maker.pick(size, 9)
    layers = 3 if maker.variant != "speculators" else 1
    layer |= {"num_hidden_layers": layers, "model_type": maker.pick("llama", "qwen3")}
    how = {"head_norms": layer["model_type"] == "qwen3", "bias": maker.pick(True, False)}
    flags = {name: bool(maker.pick(True, False)) for name in FLAGS}
    flags["fc_norm"] &= not flags["norm_before_fc"]
    maker.add("fc.weight", width, aux * width)
    for number in range(layers):
        maker.layer(f"layers.{number}.", layer, reads=width if number else 2 * width, **how)
    maker.add("layers.0.hidden_norm.weight", width)
    maker.add("norm.weight", width)
    if kept < size or maker.pick(True, False):
        maker.add("lm_head.weight", kept, width)
    if flags["norm_before_fc"]:
        maker.add("input_norm.weight", aux * width)
    for number in range(aux if flags["fc_norm"] else 0):
        maker.add(f"fc_norm.{number}.weight", width)
    if kept < size:
        maker.vocabulary(size, kept)
    if maker.pick(True, False):
        maker.add("embed_tokens.weight", size, width)
    if not peagle and maker.pick(True, False):
        kinds = [maker.pick("sliding_attention", "full_attention") for _ in range(layers)]
        layer |= {"layer_types": kinds, "sliding_window": 3}
    more: dict[str, Any] = {"mask_token_id": int(maker.random.integers(size))} if peagle else {}
    if peagle:
        maker.add("mask_hidden", 1, 1, aux * width)
    kind = "peagle" if peagle else "eagle3"
    return (
        {
            "speculators_model_type": kind,
            "transformer_layer_config": layer,
            "draft_vocab_size": kept,
            "target_hidden_size": None,
            "eagle_aux_hidden_state_layer_ids": list(range(aux)),
            "speculators_config": {"algorithm": kind},
            **flags,
            **more,
        },
        aux,
        width,
    )


def _mtp(maker: Maker, layer: dict[str, Any]) -> tuple[dict[str, Any], int, int]:
    width, hybrid = layer["hidden_size"], maker.variant == "mtp-qwen3-next"
    place, fc, token, hidden, last = MTP_NAMES[maker.variant]
    layer |= {"num_hidden_layers": 12, "model_type": "qwen3_next" if hybrid else "qwen3"}
    if hybrid:
        layer |= {"partial_rotary_factor": 0.5}
    maker.add(f"{place}{fc}.weight", width, 2 * width)
    for name in (token, hidden, last):
        maker.add(f"{place}{name}.weight", width)
    maker.layer(place, layer, head_norms=maker.variant != "mtp-deepseek", gated=hybrid)
    if maker.variant == "mtp-deepseek":
        maker.add(f"{place}shared_head.head.weight", layer["vocab_size"], width)
        maker.add(f"{place}embed_tokens.weight", layer["vocab_size"], width)
    config = {
        "speculators_model_type": "mtp",
        "transformer_layer_config": layer,
        "num_nextn_predict_layers": 1,
        "speculators_config": {"algorithm": "mtp"},
    }
    return config, 1, width


# --- what they compute -------------------------------------------------------------------------------------


class Reference:
    """The forward over a whole text: a row for each token, its state, and all rows before it."""

    def __init__(self, made: Published) -> None:
        self.made, self.tensors, self.layer = made, made.tensors, made.layer
        self.eps, self.offset = self.layer["rms_norm_eps"], float(made.variant == "mtp-qwen3-next")

    def flag(self, name: str) -> bool:
        return bool(self.made.config.get(name))

    def norm(self, name: str, states: torch.Tensor) -> torch.Tensor:
        weight = self.tensors[f"{name}.weight"] + self.offset
        return states / (states.pow(2).mean(-1, keepdim=True) + self.eps).sqrt() * weight

    def linear(self, name: str, states: torch.Tensor) -> torch.Tensor:
        found = states @ self.tensors[f"{name}.weight"].T
        return found + self.tensors[f"{name}.bias"] if f"{name}.bias" in self.tensors else found

    def embedded(self, tokens: list[int]) -> torch.Tensor:
        own = [name for name in self.tensors if name.endswith("embed_tokens.weight")]
        return (self.tensors[own[0]] if own else self.made.embedding)[torch.tensor(tokens)]

    def taken(self, shown: torch.Tensor) -> torch.Tensor:
        """The states that rows are read beside, of the target's."""
        if self.made.form in ("eagle", "mtp"):
            return shown
        if self.flag("norm_before_fc"):
            shown = self.norm("input_norm", shown)
        if self.flag("fc_norm"):
            parts = shown.split(self.made.state_width, dim=-1)
            shown = torch.cat([self.norm(f"fc_norm.{number}", part) for number, part in enumerate(parts)], dim=-1)
        return self.linear("fc", shown)

    def __call__(self, tokens: list[int], states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What the rows give, and their logits."""
        embedded, form = self.embedded(tokens), self.made.form
        if form == "eagle":
            read = self.linear("fc", torch.cat([embedded, states], dim=-1))
            given = self.units("layers.0.", read + self.attention("layers.0.", read))
            return given, given @ self.made.output.T
        if form == "mtp":
            return self.mtp(embedded, states)
        place = "midlayer." if form == "eagle3" else "layers.0."
        hidden = self.norm(f"{place}hidden_norm", states)
        both = torch.cat([self.norm(f"{place}input_layernorm", embedded), hidden], dim=-1)
        beside = hidden if self.flag("norm_before_residual") else states
        given = self.units(place, beside + self.attention(place, both, 0))
        for number in range(1, self.layer["num_hidden_layers"]):
            place = f"layers.{number}."
            read = self.norm(f"{place}input_layernorm", given)
            given = self.units(place, given + self.attention(place, read, number))
        normed, output = self.norm("norm", given), self.tensors.get("lm_head.weight", self.made.output)
        return normed if self.flag("norm_output") else given, self.spread(normed @ output.T)

    def mtp(self, embedded: torch.Tensor, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        place, fc, token, hidden, last = MTP_NAMES[self.made.variant]
        pair = self.norm(place + token, embedded), self.norm(place + hidden, states)
        read = self.linear(place + fc, torch.cat(pair, dim=-1))
        found = read + self.attention(place, self.norm(f"{place}input_layernorm", read))
        given = self.norm(place + last, self.units(place, found))
        return given, given @ self.tensors.get(f"{place}shared_head.head.weight", self.made.output).T

    def units(self, place: str, states: torch.Tensor) -> torch.Tensor:
        read = self.norm(f"{place}post_attention_layernorm", states)
        gate = self.linear(f"{place}mlp.gate_proj", read)
        units = gate * gate.sigmoid() * self.linear(f"{place}mlp.up_proj", read)
        return states + self.linear(f"{place}mlp.down_proj", units)

    def attention(self, place: str, read: torch.Tensor, number: int = 0) -> torch.Tensor:
        size, heads = self.layer["head_dim"], self.layer["num_attention_heads"]
        group, rows = heads // self.layer["num_key_value_heads"], len(read)
        query, key, value = (self.linear(f"{place}self_attn.{name}_proj", read).view(rows, -1, size) for name in "qkv")
        gates = torch.ones(rows, heads, size)
        if query.shape[1] == 2 * heads:
            query, gates = query[:, 0::2], query[:, 1::2].sigmoid()
        if f"{place}self_attn.q_norm.weight" in self.tensors:
            query, key = self.norm(f"{place}self_attn.q_norm", query), self.norm(f"{place}self_attn.k_norm", key)
        query, key = self.turned(query), self.turned(key)
        place_of = torch.arange(rows)
        hidden = place_of[None] > place_of[:, None]
        if "sliding_attention" in self.layer.get("layer_types", [])[number : number + 1]:
            hidden |= place_of[None] <= place_of[:, None] - self.layer["sliding_window"]
        found = []
        for head in range(heads):
            scores = query[:, head] @ key[:, head // group].T / math.sqrt(size)
            found.append(scores.masked_fill(hidden, -torch.inf).softmax(-1) @ value[:, head // group])
        mixed = torch.stack(found, dim=1) * gates
        return self.linear(f"{place}self_attn.o_proj", mixed.flatten(1))

    def turned(self, rows: torch.Tensor) -> torch.Tensor:
        """Pairs of channels as complex numbers, turned by their positions."""
        rope = {**self.layer.get("rope_scaling", {}), **self.layer.get("rope_parameters", {})}
        theta = rope.get("rope_theta", self.layer.get("rope_theta"))
        size = int(rows.shape[-1] * self.layer.get("partial_rotary_factor", 1))
        half = size // 2
        angles = torch.arange(len(rows))[:, None] / theta ** (torch.arange(half) * 2 / size) / rope.get("factor", 1.0)
        turn = torch.polar(torch.ones_like(angles), angles)[:, None]
        turned = torch.complex(rows[..., :half], rows[..., half:size]) * turn
        return torch.cat([turned.real, turned.imag, rows[..., size:]], dim=-1)

    def spread(self, logits: torch.Tensor) -> torch.Tensor:
        """Over the target's tokens: a row of the output is that of its own number and ``d2t``."""
        d2t = self.tensors.get("d2t")
        if d2t is None:
            return logits
        found = torch.full((len(logits), self.layer["vocab_size"]), -torch.inf)
        for row, more in enumerate(d2t.tolist()):
            found[:, row + more] = logits[:, row]
        return found
