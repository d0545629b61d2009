"""Any transformers causal LM with attention layers as a target."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from paceline.targets.base import NOTHING, Done, OnEarly, Pending, Reach, Request, Scores, Target
from paceline.targets.cache import CacheRows
from paceline.targets.hf.attention import NAME, MaskScratch
from paceline.targets.hf.forward import Attention, Forward, Mode, masks
from paceline.targets.hf.taps import Anatomy, Taps, tapped

KNOWN_LAYERS = {"full_attention", "sliding_attention"}
FINGERPRINT_SAMPLE = 4096


class HFTarget(Target):
    """Scores drafts on a transformers model; use `paceline.load`, which also probes what the model can be trusted with.

    The model's weights, configuration and attention implementation stay as they were.
    """

    def __init__(self, model: PreTrainedModel, *, name: str | None = None, mode: Mode = Mode.PACKED) -> None:
        refuse_recurrent(model)
        config = model.config.get_text_config()
        self.model = model.eval()
        self.name = name or getattr(model, "name_or_path", "") or type(model).__name__
        self.vocab_size = int(config.vocab_size)
        self.context_length = getattr(config, "max_position_embeddings", None)
        self.eos = _eos(model)
        self.mode = mode
        self.limits = Reach()
        self.switch: int | None = None
        self.anatomy = Anatomy(model)
        self.layer_types = list(getattr(config, "layer_types", None) or _layer_types(config))
        self.window = getattr(config, "sliding_window", None)
        self._scratch = MaskScratch()
        accepted = inspect.signature(model.forward).parameters
        self._keeps_logits = "logits_to_keep" in accepted
        self._takes_positions = "position_ids" in accepted

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    def open(self, capacity: int = 0) -> CacheRows:
        return CacheRows(capacity)

    def reach(self, position: int) -> Reach:
        if self.switch is None:
            return self.limits
        depth = max(0, self.switch - 1 - position) if position < self.switch else self.limits.depth
        return Reach(trees=self.limits.trees, depth=depth)

    def prefill_size(self, length: int) -> int:
        return length if self.switch is not None and length > self.switch else self.prefill_chunk

    def submit(self, requests: Sequence[Request], on_early: OnEarly | None = None) -> Pending:
        if self.mode is Mode.PACKED:
            return Done(self.forward(requests, on_early))
        return Done([scores for request in requests for scores in self.forward([request], on_early)])

    @torch.no_grad()
    def forward(
        self, requests: Sequence[Request], on_early: OnEarly | None = None, *, shift: int = 0
    ) -> list[Scores]:
        """Score requests in one forward. ``shift`` moves all positions, for the probe of switching rotary embeddings."""
        want = NOTHING
        for request in requests:
            want = want | request.want
        self.anatomy.check(want, self.name)
        forward = Forward(requests, self.mode, self._scratch)
        wanted = [r for r in requests if not r.prefill or r.want.logits]

        def early(logits: torch.Tensor) -> None:
            if on_early is not None:
                for part in forward.parts:
                    on_early(part.number, logits[part.start : part.start + part.n])

        with Attention(self.model, NAME if self.mode is Mode.PACKED else self._native()):
            with tapped(self.anatomy, want, early) as taps:
                output = self.model(**self._inputs(forward, wanted, shift))
        return _split(forward, wanted, output.logits[0], taps, self._keeps_logits)

    @torch.no_grad()
    def windows(self, request: Request) -> list[int | None]:
        """The window each layer names to the attention function in a forward, for the probe."""
        forward = Forward([request], self.mode, self._scratch)
        with Attention(self.model, NAME):
            self.model(**self._inputs(forward, [request], 0))
        return forward.windows

    def _native(self) -> str:
        """The implementation of a model that cannot use ours: its own, if a float mask means to it what we mean."""
        current = self.model.config._attn_implementation
        return current if current in ("eager", "sdpa") else "eager"

    def _inputs(self, forward: Forward, wanted: Sequence[Request], shift: int) -> dict[str, Any]:
        device = self.model.device
        requests = [part.request for part in forward.parts]
        tokens = torch.cat([torch.from_numpy(request.tokens) for request in requests])
        inputs: dict[str, Any] = {
            "input_ids": tokens[None].to(device),
            "past_key_values": forward,
            "use_cache": True,
        }
        if self._takes_positions:
            positions = torch.cat([torch.from_numpy(request.positions) for request in requests])
            inputs["position_ids"] = (positions + shift)[None].to(device)
        if self.mode is Mode.PACKED:
            inputs["paceline"] = forward
        elif self.mode is Mode.MASKED:
            inputs["attention_mask"] = masks(forward, self.model, self.layer_types, self.window)
        if self._keeps_logits and len(wanted) < len(requests):
            inputs["logits_to_keep"] = _kept(forward, wanted).to(device)
        return inputs

    def fingerprint(self) -> str:
        """Over the names, shapes and types of all weights and an even sample of the values of each."""
        digest = hashlib.sha256()
        for name, weight in sorted(self.model.state_dict().items()):
            flat = weight.detach().reshape(-1)
            sample = flat[:: max(1, flat.numel() // FINGERPRINT_SAMPLE)].float().cpu().numpy()
            digest.update(f"{name}{tuple(weight.shape)}{weight.dtype}".encode() + sample.tobytes())
        return digest.hexdigest()[:16]


def _kept(forward: Forward, wanted: Sequence[Request]) -> torch.Tensor:
    """Row numbers whose logits are needed; at least one, since a head fed with nothing fails in some models."""
    spans = [torch.arange(p.start, p.start + p.n) for p in forward.parts if p.request in wanted]
    return torch.cat(spans) if spans else torch.tensor([0])


def _split(
    forward: Forward, wanted: Sequence[Request], logits: torch.Tensor, taps: Taps, kept: bool
) -> list[Scores]:
    scores, row = [], 0
    for part in forward.parts:
        fresh = slice(part.start, part.start + part.n)
        mine: torch.Tensor | None = None
        if part.request in wanted:
            mine = logits[row : row + part.n] if kept else logits[fresh]
            row += part.n
        hidden = {layer: taps.hidden[layer][fresh] for layer in part.request.want.hidden}
        early = (
            taps.early[fresh] if taps.early is not None and part.request.want.early_exit is not None else None
        )
        scores.append(Scores(part.request, mine, hidden=hidden, early=early))
    return scores


def refuse_recurrent(model_or_config: Any) -> None:
    """One sentence for models whose state cannot be rolled back to before a refused draft."""
    config = getattr(model_or_config, "config", model_or_config)
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    strange = sorted(set(getattr(config, "layer_types", None) or ()) - KNOWN_LAYERS)
    if strange or getattr(model_or_config, "_is_stateful", False):
        what = f"layers of type {', '.join(strange)}" if strange else "a recurrent state"
        raise ValueError(
            f"{config.model_type} keeps {what}, which cannot be rolled back after a refused draft; "
            "choose a model with full or sliding-window attention in every layer"
        )


def _layer_types(config: Any) -> list[str]:
    kind = "sliding_attention" if getattr(config, "sliding_window", None) else "full_attention"
    return [kind] * config.num_hidden_layers


def _eos(model: PreTrainedModel) -> frozenset[int]:
    generation = getattr(model, "generation_config", None)
    eos = getattr(generation, "eos_token_id", None)
    if eos is None:
        eos = model.config.get_text_config().eos_token_id
    return frozenset() if eos is None else frozenset([eos] if isinstance(eos, int) else eos)
