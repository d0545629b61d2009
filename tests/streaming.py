"""Adapters of streams that were never trained, and what streams are, written a second time in plain torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from families import WINDOW
from paceline.drafters.networks.checkpoint import Provenance
from paceline.drafters.networks.streaming.adapter import StreamingAdapter, StreamingShape
from paceline.drafters.networks.streaming.checkpoint import write_adapter
from paceline.targets.base import Request, Want
from paceline.targets.hf.streams import sizes_of
from paceline.targets.hf.target import HFTarget
from paceline.targets.hf.variants import TracksModules
from paceline.targets.streams import LookAhead, StreamAdapter, Streams
from paceline.tree import Ints

MAPS = {
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


def made_adapter(target: HFTarget, *, streams: int = 3, layers: int = 2, rank: int = 4, seed: int = 1) -> Any:
    """An adapter whose every number matters."""
    assert target.modules is not None, "it has llama's structure"
    sizes = sizes_of(target.modules.layers[-1])
    torch.manual_seed(seed)
    adapter = StreamingAdapter(
        StreamingShape(
            width=sizes["q"][1],
            vocab_size=target.vocab_size,
            streams=streams,
            layers=layers,
            rank=rank,
            queries=sizes["q"][0],
            keys=sizes["k"][0],
            units=sizes["gate"][0],
            tracks=target.modules.tracks.count if isinstance(target.modules, TracksModules) else 1,
        )
    )
    with torch.no_grad():
        for name, weight in adapter.named_parameters():
            if not name.endswith(".a"):
                weight.normal_(0, 0.3 if name.endswith(".b") else 0.5)
    return adapter.requires_grad_(False)


def saved(adapter: StreamingAdapter, folder: Path, target: HFTarget, **about: Any) -> Path:
    about = {"target": target.fingerprint(), "target_name": target.name} | about
    write_adapter(folder, adapter, Provenance(**about))
    return folder


def scored_streams(
    target: HFTarget, text: Sequence[int], draft: Sequence[int], parents: Sequence[int], row: int, adapter: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of a row of a draft (-1 for the text's last) and of all its streams, by the target."""
    tokens, (first, streams) = torch.tensor(text).numpy(), (target.layers - adapter.shape.layers, adapter.shape.streams)

    want, rows = Want(hidden=frozenset({first})), target.open()
    (scores,) = target.score([Request.of_prompt(rows, tokens, want, ends_prompt=True)])
    rows.keep(range(len(tokens)))
    logits, states = scores.logits[-1], scores.hidden(first)[-1]
    path = path_of(parents, row)
    if draft:
        (scores,) = target.score([Request(rows, torch.tensor(draft).numpy(), torch.tensor(parents).numpy(), want)])
        if row >= 0:
            logits, states = scores.logits[row], scores.hidden(first)[row]
    asked = LookAhead(rows, torch.tensor(path, dtype=torch.int64).numpy(), states)
    held: StreamAdapter = adapter.as_adapter("made")
    found = target.streamed([asked], Streams(held, streams))
    assert found is not None
    return logits, found


def path_of(parents: Sequence[int] | Ints, row: int) -> list[int]:
    path = list[int]()
    while row >= 0:
        path.insert(0, row)
        row = int(parents[row])
    return path


class Reference:
    """One dense forward of a text and the streams behind its last token, from a model's state dict."""

    def __init__(self, model: Any, windowed: Sequence[int] = ()) -> None:
        """``windowed`` are the layers whose rows see the last `WINDOW` keys."""
        self.config, self.weights = model.config, {name: each.double() for name, each in model.state_dict().items()}
        self.windowed = windowed
        self.later_is_seen = False
        """The planted mistake: a stream sees those behind it."""

    def logits(self, tokens: Sequence[int], adapter: StreamingAdapter) -> torch.Tensor:
        """``[1 + streams, vocabulary]``: of the last row, and of its streams."""
        shape, count, n = adapter.shape, self.config.num_hidden_layers, len(tokens)
        states = self.weights["model.embed_tokens.weight"][torch.tensor(tokens)]
        places, streams = torch.arange(n), 0
        for layer in range(count):
            if layer == count - shape.layers:
                streams = shape.streams
                states = torch.cat([states, states[-1] + adapter.stream_embedding.double()])
                places = torch.cat([places, n + torch.arange(streams)])
            states = self._layer(layer, states, places, streams, adapter, layer - count + shape.layers)
        last = self._norm(states[n - 1 :], "model.norm.weight")
        head = self.weights.get("lm_head.weight", self.weights["model.embed_tokens.weight"])
        return last @ head.T

    def _layer(
        self, layer: int, states: torch.Tensor, places: torch.Tensor, streams: int, adapter: Any, own: int
    ) -> torch.Tensor:
        lead, main = f"model.layers.{layer}", len(states) - streams
        size = getattr(self.config, "head_dim", None) or self.config.hidden_size // self.config.num_attention_heads

        def mapped(name: str, rows: torch.Tensor) -> torch.Tensor:
            found = rows @ self.weights[f"{lead}.{MAPS[name]}.weight"].T
            if (bias := self.weights.get(f"{lead}.{MAPS[name]}.bias")) is not None:
                found = found + bias
            if streams and adapter.shape.rank:
                down, up = (each.double() for each in adapter.maps[own][name])
                found[main:] += rows[main:] @ down.T @ up.T
            return found

        given = self._norm(states, f"{lead}.input_layernorm.weight")
        query, key, value = (mapped(name, given).unflatten(1, (-1, size)) for name in "qkv")
        if f"{lead}.self_attn.q_norm.weight" in self.weights:
            query = self._norm(query, f"{lead}.self_attn.q_norm.weight")
            key = self._norm(key, f"{lead}.self_attn.k_norm.weight")
        query, key = (self._turned(rows, places) for rows in (query, key))
        found = torch.empty_like(query)
        for row in range(len(states)):
            seen = [other for other in range(len(states)) if self._sees(layer, row, other, main)]
            for head in range(query.shape[1]):
                shared = head * key.shape[1] // query.shape[1]
                scores = key[seen, shared] @ query[row, head] / size**0.5
                chances = (scores - scores.max()).exp()
                found[row, head] = chances @ value[seen, shared] / chances.sum()
        states = states + mapped("o", found.flatten(1))
        given = self._norm(states, f"{lead}.post_attention_layernorm.weight")
        gate = mapped("gate", given)
        return states + mapped("down", gate * gate.sigmoid() * mapped("up", given))

    def _sees(self, layer: int, row: int, other: int, main: int) -> bool:
        """A stream sees what the last row of the text sees, that row, and the streams up to itself."""
        if other >= main:
            return row >= main and (other <= row or self.later_is_seen)
        edge = min(row, main - 1)
        return other <= edge and (layer not in self.windowed or edge - other < WINDOW)

    def _norm(self, rows: torch.Tensor, name: str) -> torch.Tensor:
        return rows * (rows.square().mean(-1, keepdim=True) + self.config.rms_norm_eps).rsqrt() * self.weights[name]

    def _turned(self, rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        half = rows.shape[-1] // 2
        base = self.config.rope_parameters["rope_theta"]
        angles = places[:, None].double() * base ** -(torch.arange(half).double() / half)
        cosines, sines = angles.cos()[:, None], angles.sin()[:, None]
        one, other = rows[..., :half], rows[..., half:]
        return torch.cat([one * cosines - other * sines, other * cosines + one * sines], dim=-1)
