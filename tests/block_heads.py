"""Made-up block heads in the layouts of their authors, and what they compute, written from the formats alone.

Nothing of `paceline` is used here: tensors are made by name, and the forward follows the public descriptions with
loops over places, so that it can be wrong only where they are.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

KINDS = ("zlab", "zlab2", "jetspec", "dspark", "dflash", "dflash2", "dspark_speculators")


@dataclass
class Made:
    """A head as its files have it."""

    kind: str
    config: dict[str, Any]
    tensors: dict[str, torch.Tensor]
    mask_embedding: torch.Tensor | None = None
    states: list[int] = field(default_factory=list)
    """The target's states that it reads, 0 for the embeddings."""

    def save(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        save_file({name: each.contiguous() for name, each in self.tensors.items()}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(self.config))
        if self.mask_embedding is not None:
            content = {"mask_token_id": self.mask_token, "embedding": self.mask_embedding}
            torch.save(content, folder / "mask_embedding.pt")
        return folder

    @property
    def layers(self) -> dict[str, Any]:
        return self.config.get("transformer_layer_config", self.config)

    def said(self, name: str, default: Any = None) -> Any:
        inner = self.config.get("dflash_config", {})
        return inner.get(name, self.config.get(name, default))

    @property
    def mask_token(self) -> int:
        return int(self.said("mask_token_id"))

    @property
    def block(self) -> int:
        return int(self.said("block_size"))

    @property
    def from_anchor(self) -> bool:
        return bool(self.said("sample_from_anchor", "dspark" in self.kind))


def made(
    kind: str, seed: int, *, width: int | None = None, vocab: int | None = None, depth: int = 6, **given: Any
) -> Made:
    """A head of random sizes and weights. ``depth`` are the layers of the target."""
    random = torch.Generator().manual_seed(seed)

    def one_of(*choices: Any) -> Any:
        return choices[int(torch.randint(len(choices), (1,), generator=random))]

    def weight(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return torch.randn(*shape, generator=random) * scale / math.sqrt(shape[-1])

    def norm(size: int) -> torch.Tensor:
        return 1 + 0.2 * torch.randn(size, generator=random)

    group = one_of(2, 4) if width is None else 1
    width = width or one_of(16, 24, 32)
    vocab = vocab or one_of(40, 97)
    shared, share, size = one_of(1, 2), one_of(1, 2, 3), one_of(4, 8)
    heads, layers, units, block = shared * share, one_of(1, 2, 3), one_of(20, 36), one_of(2, 4, 6)
    states = sorted({one_of(*range(1, max(2, depth))) for _ in range(one_of(1, 2, 3))})
    bias, taps, rank = one_of(True, False), one_of(1, 2), one_of(3, 5)
    inner: dict[str, Any] = {"mask_token_id": one_of(vocab - 1, min(7, vocab - 1))}
    body: dict[str, Any] = {
        "vocab_size": vocab,
        "hidden_size": width,
        "intermediate_size": units,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": shared,
        "head_dim": size,
        "hidden_act": "silu",
        "rms_norm_eps": one_of(1e-6, 1e-5),
        "attention_bias": bias,
        "model_type": "qwen3",
    }
    if one_of(True, False):
        body["rope_parameters"] = {"rope_theta": one_of(1e4, 1e6), "rope_type": "default"}
    else:
        body["rope_theta"] = one_of(1e4, 5e5)
    if one_of(True, False):
        types = [one_of("sliding_attention", "full_attention") for _ in range(layers)]
        body |= {"layer_types": types, "use_sliding_window": True, "sliding_window": one_of(2, 3, 9)}
    tensors = {
        "fc.weight": weight(width, len(states) * width),
        "hidden_norm.weight": norm(width),
        "norm.weight": norm(width),
    }
    for layer in range(layers):
        place = f"layers.{layer}"
        attention = f"{place}.self_attn"
        for name, rows in (("q_proj", heads * size), ("k_proj", shared * size), ("v_proj", shared * size)):
            tensors[f"{attention}.{name}.weight"] = weight(rows, width)
            if bias:
                tensors[f"{attention}.{name}.bias"] = 0.3 * torch.randn(rows, generator=random)
        tensors[f"{attention}.o_proj.weight"] = weight(width, heads * size)
        if bias:
            tensors[f"{attention}.o_proj.bias"] = 0.3 * torch.randn(width, generator=random)
        tensors[f"{attention}.q_norm.weight"] = norm(size)
        tensors[f"{attention}.k_norm.weight"] = norm(size)
        tensors[f"{place}.input_layernorm.weight"] = norm(width)
        tensors[f"{place}.post_attention_layernorm.weight"] = norm(width)
        for name in ("gate_proj", "up_proj"):
            tensors[f"{place}.mlp.{name}.weight"] = weight(units, width)
        tensors[f"{place}.mlp.down_proj.weight"] = weight(width, units)
        if kind.endswith("2"):
            for name in ("attention_conv", "mlp_conv"):
                tensors[f"{place}.{name}.base_kernel"] = torch.randn(2, taps, width, generator=random)
                tensors[f"{place}.{name}.kernel_projection.weight"] = weight(2 * taps * (width // group), width)
    if kind.endswith("2"):
        inner |= {"conv_kernel_size": taps, "conv_group_size": group, "selector_rank": rank, "selector_top_k": 5}
        tensors["candidate_selector.predecessor_codebook"] = torch.randn(vocab, rank, generator=random)
        tensors["candidate_selector.successor_codebook"] = torch.randn(vocab, rank, generator=random)
        tensors["candidate_selector.hidden_projection.weight"] = weight(rank, width)
    known = vocab
    if not given.get("output") and kind in ("dflash", "dspark_speculators") and one_of(True, False):
        known = vocab // 2
        ids = torch.randperm(vocab, generator=random)[:known].sort().values
        tensors["lm_head.weight"] = weight(known, width, scale=2.0)
        tensors["d2t"] = ids - torch.arange(known)
        tensors["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill(0, ids, value=True)
    if given.get("output"):
        tensors.setdefault("lm_head.weight", weight(vocab, width))
    if one_of(True, False):
        tensors["embed_tokens.weight"] = weight(vocab, width, scale=3.0)
    if "dspark" in kind:
        markov = given.get("markov", one_of("vanilla", "gated", "rnn"))
        inner |= {"markov_rank": rank, "markov_head_type": markov, "enable_confidence_head": True}
        inner["confidence_head_with_markov"] = with_markov = one_of(True, False)
        tensors["markov_head.markov_w1.weight"] = torch.randn(vocab, rank, generator=random)
        tensors["markov_head.markov_w2.weight"] = torch.randn(known, rank, generator=random)
        if markov == "gated":
            tensors["markov_head.gate_proj.weight"] = weight(rank, width + rank)
            tensors["markov_head.gate_proj.bias"] = torch.randn(rank, generator=random)
        if markov == "rnn":
            tensors["markov_head.joint_proj.weight"] = weight(3 * rank, 2 * rank + width)
            tensors["markov_head.joint_proj.bias"] = torch.randn(3 * rank, generator=random)
        tensors["confidence_head.proj.weight"] = weight(1, width + rank * with_markov)
        tensors["confidence_head.proj.bias"] = torch.randn(1, generator=random)
    mask = torch.randn(width, generator=random) if kind == "zlab" and one_of(True, False) else None
    inner |= {"block_size": given.get("block", block)}
    if kind in ("dflash", "dflash2", "dspark_speculators"):
        inner |= {"aux_hidden_state_layer_ids": states, "draft_vocab_size": known}
        if one_of(True, False):
            inner["sliding_window_non_causal"] = one_of(True, False)
        if kind == "dflash" and one_of(True, False):
            inner["sample_from_anchor"] = True
        name = kind.removesuffix("_speculators")
        config = {"speculators_model_type": name, "transformer_layer_config": body, **inner}
    elif kind == "dspark":
        config = {**body, **inner, "target_layer_ids": [each - 1 for each in states], "num_target_layers": depth}
        config["architectures"] = ["Qwen3DSparkModel"]
    else:
        inner["target_layer_ids"] = [each - 1 for each in states]
        if kind == "jetspec":
            inner["causal_head"] = True
        if kind == "zlab2":
            inner |= {"final_logit_softcapping": 4.0, "output_multiplier": 0.7, "input_embedding_scale": 1.5}
            body["is_causal"] = one_of(True, False)
        config = {**body, "dflash_config": inner, "num_target_layers": depth, "architectures": ["DFlashDraftModel"]}
        if kind == "jetspec":
            config["block_size"] = inner.pop("block_size")
    return Made(kind, config, tensors, mask, states)


class Reference:
    """One block behind a text, computed a row at a time."""

    def __init__(self, head: Made, embedding: torch.Tensor, output: torch.Tensor) -> None:
        self.head, self.tensors = head, {name: each.double() for name, each in head.tensors.items() if name != "t2d"}
        self.embedding = self.tensors.get("embed_tokens.weight", embedding.double())
        self.output = self.tensors.get("lm_head.weight", output.double())
        body = head.layers
        self.eps, self.size = body["rms_norm_eps"], body["head_dim"]
        self.theta = body.get("rope_theta") or body["rope_parameters"]["rope_theta"]
        self.count = body["num_hidden_layers"]
        self._computed: dict[tuple[int, int], torch.Tensor] = {}

    def norm(self, row: torch.Tensor, name: str) -> torch.Tensor:
        return row / (row.pow(2).mean(-1, keepdim=True) + self.eps).sqrt() * self.tensors[f"{name}.weight"]

    def linear(self, row: torch.Tensor, name: str) -> torch.Tensor:
        found = row @ self.tensors[f"{name}.weight"].T
        return found + self.tensors[f"{name}.bias"] if f"{name}.bias" in self.tensors else found

    def turned(self, heads: torch.Tensor, position: int) -> torch.Tensor:
        half = self.size // 2
        angles = torch.tensor([position / self.theta ** (2 * number / self.size) for number in range(half)])
        cosines, sines = angles.double().cos(), angles.double().sin()
        one, other = heads[..., :half], heads[..., half:]
        return torch.cat([one * cosines - other * sines, other * cosines + one * sines], dim=-1)

    def key(self, layer: int, row: torch.Tensor, position: int) -> tuple[torch.Tensor, torch.Tensor]:
        place = f"layers.{layer}.self_attn"
        keys = self.linear(row, f"{place}.k_proj").view(-1, self.size)
        values = self.linear(row, f"{place}.v_proj").view(-1, self.size)
        return self.turned(self.norm(keys, f"{place}.k_norm"), position), values

    def sees(self, layer: int, asking: int, asked: int, anchor: int) -> bool:
        """Positions; from the anchor on they are those of the block."""
        body, head = self.head.layers, self.head
        sliding = body.get("layer_types", ["full_attention"] * self.count)[layer] == "sliding_attention"
        window = body["sliding_window"] if sliding else None
        if "speculators_model_type" in head.config:
            both = head.config.get("sliding_window_non_causal", head.kind == "dflash2")
            if asked < anchor:
                return window is None or asked >= anchor - window
            return window is None or both or asked <= asking
        causal = sliding if (said := head.said("is_causal", head.said("causal_head"))) is None else said
        near = window is None or abs(asking - asked) < window
        return near and not (causal and asked > asking)

    def convolved(self, name: str, rows: torch.Tensor, wrapped: Any) -> torch.Tensor:
        if f"{name}.base_kernel" not in self.tensors:
            return wrapped(rows)
        base, group = self.tensors[f"{name}.base_kernel"], self.head.said("conv_group_size")
        taps, width = base.shape[1], base.shape[2]
        moving = self.linear(rows, f"{name}.kernel_projection").view(len(rows), 2, taps, width // group)
        moving = moving.repeat_interleave(group, dim=-1)

        def one(which: int, given: torch.Tensor) -> torch.Tensor:
            found = torch.zeros_like(given)
            for place in range(len(given)):
                for tap in range(taps):
                    if place >= tap:
                        found[place] += given[place - tap] * (base[which, tap] + moving[place, which, tap])
            return found

        return one(1, wrapped(one(0, rows)))

    def hidden(self, states: torch.Tensor, anchor_token: int) -> torch.Tensor:
        """``states`` ``[tokens, ...]`` of the text before the anchor -> the block's rows ``[block, width]``."""
        head, anchor = self.head, len(states)
        context = self.norm(self.linear(states.double(), "fc"), "hidden_norm")
        tokens = [anchor_token] + [head.mask_token] * (head.block - 1)
        rows = self.embedding[tokens] * head.said("input_embedding_scale", 1.0)
        if head.mask_embedding is not None:
            rows[[token == head.mask_token for token in tokens]] = head.mask_embedding.double()
        positions = range(anchor, anchor + head.block)
        for layer in range(self.count):
            place = f"layers.{layer}"

            def attention(given: torch.Tensor, layer: int = layer, place: str = place) -> torch.Tensor:
                pairs = [self.key(layer, row, position) for position, row in enumerate(context)]
                pairs += [self.key(layer, row, position) for position, row in zip(positions, given, strict=True)]
                found = []
                for position, row in zip(positions, given, strict=True):
                    queries = self.linear(row, f"{place}.self_attn.q_proj").view(-1, self.size)
                    queries = self.turned(self.norm(queries, f"{place}.self_attn.q_norm"), position)
                    seen = [pair for asked, pair in enumerate(pairs) if self.sees(layer, position, asked, anchor)]
                    read = []
                    for number, query in enumerate(queries):
                        shared = number // (len(queries) // len(seen[0][0]))
                        scores = torch.stack([query @ key[shared] for key, _ in seen]) / math.sqrt(self.size)
                        shares = scores.exp() / scores.exp().sum()
                        read.append(sum(share * value[shared] for share, (_, value) in zip(shares, seen, strict=True)))
                    found.append(self.linear(torch.cat(read), f"{place}.self_attn.o_proj"))
                return torch.stack(found)

            def units(given: torch.Tensor, place: str = place) -> torch.Tensor:
                gate, up = (self.linear(given, f"{place}.mlp.{name}_proj") for name in ("gate", "up"))
                return self.linear(gate / (1 + (-gate).exp()) * up, f"{place}.mlp.down_proj")

            for name, norm, wrapped in (
                ("attention_conv", "input_layernorm", attention),
                ("mlp_conv", "post_attention_layernorm", units),
            ):
                rows = rows + self.convolved(f"{place}.{name}", self.norm(rows, f"{place}.{norm}"), wrapped)
        return self.norm(rows, "norm")

    def predicting(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden if self.head.from_anchor else hidden[1:]

    def rows(self, states: torch.Tensor, anchor_token: int) -> torch.Tensor:
        """Those that predict, computed once for a text."""
        key = len(states), anchor_token
        if key not in self._computed:
            self._computed[key] = self.predicting(self.hidden(states, anchor_token))
        return self._computed[key]

    @property
    def ids(self) -> torch.Tensor:
        """The target's ids of its columns."""
        offsets = self.tensors.get("d2t")
        own = torch.arange(len(self.output))
        return own if offsets is None else own + offsets.long()

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        found = hidden @ self.output.T * self.head.said("output_multiplier", 1.0)
        cap = self.head.said("final_logit_softcapping")
        return found if cap is None else cap * torch.tanh(found / cap)

    def behind(self, states: torch.Tensor, anchor_token: int, path: list[int]) -> list[torch.Tensor]:
        """Of every place the scores of all the target's tokens, behind the tokens of ``path``; those that cannot come
        have none."""
        rows = self.rows(states, anchor_token)
        bases, tensors, vocab = self.logits(rows), self.tensors, self.head.layers["vocab_size"]
        found, state = [], None
        for place, before in enumerate([anchor_token, *path][: len(rows)]):
            row, base, columns = rows[place], bases[place], range(len(self.output))
            if "candidate_selector.predecessor_codebook" in tensors:
                columns = base.topk(self.head.said("selector_top_k")).indices.tolist()
                context = tensors["candidate_selector.predecessor_codebook"][before]
                context = context * self.linear(row, "candidate_selector.hidden_projection")
                gain = torch.stack([context @ each for each in tensors["candidate_selector.successor_codebook"]])
                base = base + gain
            if "markov_head.markov_w1.weight" in tensors:
                embedded = tensors["markov_head.markov_w1.weight"][before]
                read = embedded
                if "markov_head.gate_proj.weight" in tensors:
                    read = torch.sigmoid(self.linear(torch.cat([row, embedded]), "markov_head.gate_proj")) * embedded
                if "markov_head.joint_proj.weight" in tensors:
                    state = torch.zeros_like(embedded) if state is None else state
                    joined = self.linear(torch.cat([state, embedded, row]), "markov_head.joint_proj")
                    gate, new, out = joined.chunk(3)
                    gate = torch.sigmoid(gate)
                    state, read = gate * state + (1 - gate) * torch.tanh(new), torch.tanh(out)
                base = base + tensors["markov_head.markov_w2.weight"] @ read
            scores = torch.full((vocab,), -math.inf, dtype=torch.float64)
            scores[self.ids[list(columns)]] = base[list(columns)]
            found.append(scores)
        return found

    def confidence(self, states: torch.Tensor, anchor_token: int, path: list[int]) -> list[float]:
        rows, found = self.rows(states, anchor_token), []
        for row, before in zip(rows, [anchor_token, *path], strict=False):
            read = row
            if self.head.said("confidence_head_with_markov"):
                read = torch.cat([row, self.tensors["markov_head.markov_w1.weight"][before]])
            found.append(float(torch.sigmoid(self.linear(read, "confidence_head.proj"))[0]))
        return found
