"""Any transformers causal LM with attention layers as a target."""

from __future__ import annotations

import hashlib
import inspect
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from paceline.targets.base import NOTHING, Done, OnEarly, Pending, Reach, Request, Scores, Target
from paceline.targets.cache import CacheRows
from paceline.targets.hf.attention import NAME, MaskScratch, serving
from paceline.targets.hf.forward import Attention, Forward, Mode, masks
from paceline.targets.hf.packed import identities, pack
from paceline.targets.hf.rope import (
    Switch,
    TurningRows,
    regimes,
    rotary_modules,
    rotated_as_of,
    standing,
    stretched,
)
from paceline.targets.hf.taps import Anatomy, Taps, tapped
from paceline.tree import Ints

KNOWN_LAYERS = {"full_attention", "sliding_attention"}


class HFTarget(Target):
    """Scores drafts on a transformers model; use `paceline.load`, which also probes what the model can be trusted with.

    The model's weights, configuration and attention implementation stay as they were; it is put into eval mode.
    `pack` is for models that nobody else holds.
    """

    def __init__(self, model: PreTrainedModel, *, name: str | None = None, mode: Mode = Mode.PACKED) -> None:
        refuse_recurrent(model.config, type(model))
        config: Any = model.config.get_text_config()
        self.model = model.train(False)
        self.name = name or getattr(model, "name_or_path", "") or type(model).__name__
        self.vocab_size = int(config.vocab_size)
        self.context_length = stretched(config)
        self.eos = _eos(model)
        self.mode = mode
        self.limits = Reach()
        self.switch = Switch.of(config)
        self.anatomy = Anatomy(model)
        self.layer_types = list(getattr(config, "layer_types", None) or _layer_types(config))
        self.window: int | None = getattr(config, "sliding_window", None)
        self._scratch = MaskScratch()
        self._one_at_a_time = threading.Lock()
        self._rotary = rotary_modules(model) if self.switch is not None else []
        accepted = inspect.signature(model.forward).parameters
        self._keeps_logits = "logits_to_keep" in accepted
        self._takes_positions = "position_ids" in accepted

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.model.dtype
        return dtype

    @property
    def device(self) -> torch.device:
        device: torch.device = self.model.device
        return device

    @property
    def like(self) -> torch.Tensor:
        """An empty tensor of the model's type and place."""
        return torch.empty(0, dtype=self.model.dtype, device=self.model.device)

    def pack(self) -> HFTarget:
        """Arrange the weights for this machine's kernels, where that helps. From here on they cannot be changed."""
        if pack(self.model):
            self.anatomy = Anatomy(self.model)
        return self

    def open(self, capacity: int = 0) -> CacheRows:
        return CacheRows(capacity) if self.switch is None else TurningRows(capacity, self.switch)

    def reach(self, position: int) -> Reach:
        if self.switch is None:
            return self.limits
        return Reach(trees=self.limits.trees, depth=self.switch.depth(position))

    def prefill_size(self, length: int) -> int:
        whole = self.switch is not None and length >= self.switch.position
        return length if whole else self.prefill_chunk

    def submit(self, requests: Sequence[Request], on_early: OnEarly | None = None) -> Pending:
        for request in requests:
            self._reread(request)
        scores: dict[int, Scores] = {}
        for group in self._groups(requests):

            def early(number: int, logits: torch.Tensor, group: list[int] = group) -> None:
                if on_early is not None:
                    on_early(group[number], logits)

            scores.update(zip(group, self.forward([requests[i] for i in group], early), strict=True))
        return Done([scores[i] for i in range(len(requests))])

    def _groups(self, requests: Sequence[Request]) -> list[list[int]]:
        """Numbers of the requests that go into one forward together."""
        if self.mode is not Mode.PACKED:
            return [[i] for i in range(len(requests))]
        return [list(range(len(requests)))] if self.switch is None else regimes(requests, self.switch)

    def _reread(self, request: Request) -> None:
        """Read the cached text again where the model's own generation would."""
        rows = request.rows
        if isinstance(rows, TurningRows) and rows.must_reread(request):
            text = rows.tokens.copy()
            rows.rewind(0)
            self.forward([Request.of_prompt(rows, text)])
            rows.keep(range(len(text)))

    def forward(self, requests: Sequence[Request], on_early: OnEarly | None = None) -> list[Scores]:
        """Score requests that belong together in one forward. One at a time: a model's attention is switched over."""
        with self._one_at_a_time:
            return self._forward(requests, on_early)

    @torch.no_grad()
    def _forward(self, requests: Sequence[Request], on_early: OnEarly | None = None) -> list[Scores]:
        want = NOTHING
        for request in requests:
            want = want | request.want
        self.anatomy.check(want, self.name)
        wanted = [r for r in requests if not r.prefill or r.want.logits]
        with ExitStack() as stack:
            forward = self._begin(requests, stack)

            def early(logits: torch.Tensor) -> None:
                for part in forward.parts:
                    if on_early is not None and part.request.want.early_exit is not None:
                        on_early(part.number, logits[part.start : part.start + part.n])

            taps = stack.enter_context(tapped(self.anatomy, want, early))
            output = self.model(**self._inputs(forward, wanted))
        return _split(forward, wanted, output.logits[0], taps, self._keeps_logits)

    @torch.no_grad()
    def windows(self, request: Request) -> list[int | None]:
        """The window each layer names to the attention function in a forward, for the probe."""
        with ExitStack() as stack:
            forward = self._begin([request], stack)
            self.model(**self._inputs(forward, [request]))
        return forward.windows

    @torch.no_grad()
    def unassisted(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits ``[n, vocabulary]`` of a text as the model itself finds them, for the probe."""
        raw: list[torch.Tensor] = []
        head = self.anatomy.head
        hook = head.register_forward_hook(lambda *call: raw.append(call[-1])) if head is not None else None
        try:
            with Attention(self.model, self._native()):
                ids = tokens[None].to(self.model.device)
                inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
                logits: torch.Tensor = self.model(**inputs, use_cache=False).logits[0]
        finally:
            if hook is not None:
                hook.remove()
        if raw and raw[-1][0].shape == logits.shape:
            self.anatomy.calibrate(raw[-1][0], logits)
        return logits

    def _begin(self, requests: Sequence[Request], stack: ExitStack) -> Forward:
        """What has to be in place while the model runs; undone when the stack closes."""
        forward = Forward(requests, self.mode, self._scratch)
        stack.enter_context(Attention(self.model, NAME if self.mode is Mode.PACKED else self._native()))
        stack.enter_context(serving(forward))
        if self.switch is not None:
            for request in requests:
                assert isinstance(request.rows, TurningRows), "this target scores the rows it opened"
                request.rows.mark(len(request.tokens), standing(request), request.held)
            position = max(standing(request) for request in requests)
            stack.enter_context(rotated_as_of(position, self._rotary, self.like))
        return forward

    def _native(self) -> str:
        """The implementation of a model that cannot use ours: its own, if a float mask means to it what we mean."""
        current = self.model.config._attn_implementation
        return current if current in ("eager", "sdpa") else "eager"

    def _inputs(self, forward: Forward, wanted: Sequence[Request]) -> dict[str, Any]:
        device = self.model.device
        requests = [part.request for part in forward.parts]
        tokens = torch.from_numpy(_joined([request.tokens for request in requests]))
        inputs: dict[str, Any] = {
            "input_ids": tokens[None].to(device),
            "past_key_values": forward,
            "use_cache": True,
        }
        if self._takes_positions:
            positions = torch.from_numpy(_joined([request.positions for request in requests]))
            inputs["position_ids"] = positions[None].to(device)
        if self.mode is Mode.MASKED:
            inputs["attention_mask"] = masks(forward, self.like, self.layer_types, self.window)
        if self._keeps_logits and len(wanted) < len(requests):
            inputs["logits_to_keep"] = _kept(forward, wanted).to(device)
        return inputs

    def fingerprint(self) -> str:
        """Over the names, shapes and types of all weights and an even sample of the values of each."""
        digest = hashlib.sha256()
        for name, identity in sorted(identities(self.model)):
            digest.update(name.encode() + identity)
        return digest.hexdigest()[:16]


def _joined(parts: Sequence[Ints]) -> Ints:
    """One array of all; of a single sequence its own."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _kept(forward: Forward, wanted: Sequence[Request]) -> torch.Tensor:
    """Row numbers whose logits are needed; at least one, since a head fed with nothing fails in some models."""
    spans = [torch.arange(p.start, p.start + p.n) for p in forward.parts if p.request in wanted]
    return torch.cat(spans) if spans else torch.tensor([0])


def _split(forward: Forward, wanted: Sequence[Request], logits: torch.Tensor, taps: Taps, kept: bool) -> list[Scores]:
    scores, row = [], 0
    for part in forward.parts:
        want, fresh = part.request.want, slice(part.start, part.start + part.n)
        mine: torch.Tensor | None = None
        if part.request in wanted:
            mine = logits[row : row + part.n] if kept else logits[fresh]
            row += part.n
        hidden = {layer: taps.hidden[layer][fresh] for layer in want.hidden}
        early = taps.early[fresh] if taps.early is not None and want.early_exit is not None else None
        scores.append(Scores(part.request, mine, hidden=hidden, early=early))
    return scores


def refuse_recurrent(config: Any, model_class: type | None = None) -> None:
    """One sentence for models whose state cannot be rolled back to before a refused draft."""
    config = config.get_text_config()
    strange = sorted(set(getattr(config, "layer_types", None) or ()) - KNOWN_LAYERS)
    if strange or getattr(model_class, "_is_stateful", False):
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
        eos = getattr(model.config.get_text_config(), "eos_token_id", None)
    return frozenset() if eos is None else frozenset([eos] if isinstance(eos, int) else eos)
