"""The path that every model has: its own forward, called with our rows as its cache and our attention where it can."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from paceline.targets.base import Request
from paceline.targets.hf.attention import NAME, MaskScratch, serving
from paceline.targets.hf.forward import Attention, Elsewhere, Forward, Mode, masks
from paceline.targets.hf.path import Found, Job, Path
from paceline.targets.hf.rope import Switch, TurningRows, rotary_modules, rotated_as_of, standing
from paceline.targets.hf.taps import Anatomy, tapped
from paceline.tree import Ints


class OwnForward(Path):
    """Calls the model, in the mode that the probe found."""

    def __init__(self, model: PreTrainedModel, switch: Switch | None, mode: Mode) -> None:
        config: Any = model.config.get_text_config()
        self.model = model
        self.mode = mode
        self.anatomy = Anatomy(model)
        self.layer_types = list(getattr(config, "layer_types", None) or _layer_types(config))
        self.window: int | None = getattr(config, "sliding_window", None)
        self._switch = switch
        self._scratch = MaskScratch()
        self._rotary = rotary_modules(model) if switch is not None else []
        accepted = inspect.signature(model.forward).parameters
        self._keeps_logits = "logits_to_keep" in accepted
        self.moved = 0
        """How many positions further every text is taken to stand, without rows in front of it: for the probe."""
        self.claimed = 0
        """How many more rows the cache says it has, positions being what they are: for the probe."""
        self.takes_positions = "position_ids" in accepted
        self.takes_cache = "past_key_values" in accepted

    def takes(self, job: Job) -> bool:
        return True

    def run(self, job: Job) -> Found:
        with ExitStack() as stack:
            forward = self._begin(job.requests, stack)
            taps = stack.enter_context(tapped(self.anatomy, job.want, job.early))
            logits: torch.Tensor = self.model(**self._inputs(forward, job)).logits[0]
        if not job.asking.logits:
            return Found(None, taps)
        if job.logit_rows is not None and not self._keeps_logits:
            logits = logits[job.logit_rows.to(logits.device)]
        return Found(logits, taps)

    @torch.no_grad()
    def windows(self, request: Request) -> list[int | None]:
        """The window each layer names to the attention function in a forward, for the probe."""
        with ExitStack() as stack:
            forward = self._begin([request], stack)
            self.model(**self._inputs(forward, Job([request])))
        return forward.windows

    @torch.no_grad()
    def unassisted(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits ``[n, vocabulary]`` of a text, up to `moved`, as the model itself finds them, for the probe."""
        raw: list[torch.Tensor] = []
        head = self.anatomy.head
        hook = head.register_forward_hook(lambda *call: raw.append(call[-1])) if head is not None else None
        try:
            with Attention(self.model, self._native()):
                ids = tokens[None].to(self.model.device)
                inputs = self._elsewhere(ids) if self.moved else {"attention_mask": torch.ones_like(ids)}
                logits: torch.Tensor = self.model(input_ids=ids, use_cache=bool(self.moved), **inputs).logits[0]
        finally:
            if hook is not None:
                hook.remove()
        if raw and raw[-1][0].shape == logits.shape:
            self.anatomy.calibrate(raw[-1][0], logits)
        return logits

    def _elsewhere(self, ids: torch.Tensor) -> dict[str, Any]:
        """Arguments that make the model take a text to stand behind `moved` others, of which it sees none."""
        n = ids.shape[1]
        causal = torch.full((n, n), float("-inf"), dtype=self.like.dtype, device=ids.device).triu(1)[None, None]
        kinds = sorted(set(self.layer_types))
        inputs: dict[str, Any] = {
            "attention_mask": causal if len(kinds) == 1 else dict.fromkeys(kinds, causal),
            "past_key_values": Elsewhere(self.moved),
        }
        if self.takes_positions:
            inputs["position_ids"] = torch.arange(self.moved, self.moved + n, device=ids.device)[None]
        return inputs

    def _begin(self, requests: Sequence[Request], stack: ExitStack) -> Forward:
        """What has to be in place while the model runs; undone when the stack closes."""
        forward = Forward(requests, self.mode, self._scratch, self.moved + self.claimed)
        stack.enter_context(Attention(self.model, NAME if self.mode is Mode.PACKED else self._native()))
        stack.enter_context(serving(forward))
        if self._switch is not None:
            for request in requests:
                assert isinstance(request.rows, TurningRows), "this target scores the rows it opened"
                request.rows.mark(len(request.tokens), standing(request) + self.moved, request.held)
            position = max(standing(request) for request in requests) + self.moved
            stack.enter_context(rotated_as_of(position, self._rotary, self.like))
        return forward

    def _native(self) -> str:
        """The implementation of a model that cannot use ours: its own, if a float mask means to it what we mean."""
        current = self.model.config._attn_implementation
        return current if current in ("eager", "sdpa") else "eager"

    @property
    def like(self) -> torch.Tensor:
        """An empty tensor of the model's type and place."""
        return torch.empty(0, dtype=self.model.dtype, device=self.model.device)

    def _inputs(self, forward: Forward, job: Job) -> dict[str, Any]:
        device = self.model.device
        tokens = torch.from_numpy(joined([request.tokens for request in job.requests]))
        inputs: dict[str, Any] = {
            "input_ids": tokens[None].to(device),
            "past_key_values": forward,
            "use_cache": True,
        }
        if self.takes_positions:
            positions = torch.from_numpy(joined([request.positions for request in job.requests]))
            inputs["position_ids"] = positions[None].to(device) + self.moved
        if self.mode is Mode.MASKED:
            inputs["attention_mask"] = masks(forward, self.like, self.layer_types, self.window)
        if self._keeps_logits and job.logit_rows is not None:
            # At least one row: a head fed with nothing fails in some models.
            rows = job.logit_rows if len(job.logit_rows) else torch.tensor([0])
            inputs["logits_to_keep"] = rows.to(device)
        return inputs


def joined(parts: Sequence[Ints]) -> Ints:
    """One array of all; of a single sequence its own."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _layer_types(config: Any) -> list[str]:
    kind = "sliding_attention" if getattr(config, "sliding_window", None) else "full_attention"
    return [kind] * config.num_hidden_layers
