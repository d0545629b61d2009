"""The path that every model has: its own forward, called with our rows as its cache and our attention where it can.

There are three modes. *Packed*: the model uses transformers' attention interface. Keys and values go straight to each
sequence's own rows, and our attention function reads them there. *Masked*: the model has its own attention code. It
scores one sequence at a time, gets all keys back from the cache, and an additive float mask (one per layer type where
types differ; eager attention would add a boolean mask as 0 and 1). *Chained*: the model builds its mask and its
position bias itself and scores plain continuations only.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from paceline.targets.base import Request
from paceline.targets.hf.attention import MaskScratch, PackedKVCache, Segment, causal_mask
from paceline.targets.hf.indexed import IndexedLayers, offsets
from paceline.targets.hf.integers.doubles import InDoubles
from paceline.targets.hf.names import CACHE_NAMES
from paceline.targets.hf.path import ForwardJob, ForwardPath, Found, OnExit
from paceline.targets.hf.recurrent import families
from paceline.targets.hf.rope import RotatedRows, Switch, rotary_modules, rotary_position, rotated_as_of
from paceline.targets.hf.snapshot import ModelSnapshot
from paceline.targets.hf.taps import Anatomy, tapped
from paceline.tree import Ints

if TYPE_CHECKING:
    from transformers import Cache, PreTrainedModel

    from paceline.targets.hf.interface import ForwardCache


def cache_name(model: PreTrainedModel) -> str | None:
    """Which of these a model's forward has."""
    accepted = inspect.signature(model.forward).parameters
    return next((name for name in CACHE_NAMES if name in accepted), None)


RECURRENT_LAYERS = frozenset({"linear_attention", "conv", "mamba", "recurrent"})
"""Types of layers that keep a state and attend to nothing."""


BOTH = {
    "hybrid": ("full_attention", "linear_attention"),
    "hybrid_sliding": ("sliding_attention", "linear_attention"),
}
"""Types of layers that do both."""


class Mode(StrEnum):
    """How drafts reach a model, best first."""

    PACKED = "packed"
    MASKED = "masked"
    CHAINED = "chained"


class Unsupported(Exception):
    """The model needs something of attention or cache that this mode cannot do; the next mode may."""


def masks(segment: Segment, like: torch.Tensor, layer_types: Sequence[str], window: int | None) -> Any:
    """The additive float mask(s) ``[1, 1, n, keys]`` of a masked forward: one, or a dict where full and sliding layers
    mix. All keys come back from the cache, so a window has to be masked out of them."""
    by_kind = {
        kind: None
        if kind in RECURRENT_LAYERS
        else segment.full_mask(window if kind == "sliding_attention" else None, like)[None, None]
        for kind in sorted({part for kind in layer_types for part in BOTH.get(kind, (kind,))})
    }
    return by_kind if len(by_kind) > 1 else next(iter(by_kind.values()))


class OwnForward(ForwardPath):
    """Calls the model, in the mode that the probe found."""

    def __init__(self, model: PreTrainedModel, switch: Switch | None, mode: Mode) -> None:
        config: Any = model.config.get_text_config()
        self.model = model
        self.mode = mode
        self.anatomy = Anatomy(model)
        self.homes = homes = {type(module).__module__ for module in model.modules()} & sys.modules.keys()
        self.recurrent = any(map(families.knows, homes))
        """Whether layers keep a state that each token changes."""
        self.family = next((found for home in homes if (found := families.family_of(home)) is not None), families.USUAL)
        if self.recurrent:
            families.install(homes)
        self.layer_types = list(getattr(config, "layer_types", None) or _layer_types(config, self.family.attends))
        self.window: int | None = getattr(config, "sliding_window", None)
        if self.family.slides and self.window is not None:
            self.layer_types = [kind.replace("full_", "sliding_") for kind in self.layer_types]
        if self.family.measures:
            self.layer_types = [families.MASKS.get(kind, kind) for kind in self.layer_types]
        self._kinds = sorted({*self.layer_types, *(["linear_attention"] if self.family.measures else [])})
        """The names of the masks that the model takes."""
        self._switch = switch
        self._scratch = MaskScratch()
        self._rotary = rotary_modules(model) if switch is not None else []
        accepted = inspect.signature(model.forward).parameters
        self._keeps_logits = "logits_to_keep" in accepted
        self.moved = 0
        """Positions that are added to those of every text, without rows for them; set by the probe."""
        self.claimed = 0
        """Rows that the cache says it has beyond those it has; set by the probe."""
        self.in_doubles = False
        """Whether the floats between products of integers are doubles (`integers.doubles`)."""
        self.takes_positions = "position_ids" in accepted
        self.cache_name = cache_name(model)
        """The argument of its forward that takes the cache; None without one."""
        self.snapshot: ModelSnapshot | None = None
        """The model as it was when a text began last; None before the first one."""
        self.changes = 0
        """Changes of the model that were noticed. Paths take it as it is after each of them."""

    @property
    def obstacle(self) -> str | None:
        """Why the model must not be recorded as it is."""
        return None if self.snapshot is None else self.snapshot.obstacle

    def look(self) -> int:
        """Notice a change since a text began last."""
        if self.snapshot is not None and not self.snapshot.unchanged():
            self.forget()
        if self.snapshot is None:
            self.snapshot = ModelSnapshot(self.model)
        return self.changes

    def forget(self) -> None:
        self.changes, self.snapshot = self.changes + 1, ModelSnapshot(self.model)

    def takes(self, job: ForwardJob) -> bool:
        return True

    def with_cache(self, cache: Cache) -> dict[str, Cache]:
        """The argument that gives the model this cache."""
        if not self.family.takes_cache:
            return {}
        assert self.cache_name is not None, "the probe refuses models that take no cache"
        return {self.cache_name: cache}

    def run(self, job: ForwardJob) -> Found:
        with ExitStack() as stack:
            forward = self._begin(job.requests, stack)
            outputs = job.outputs
            if self.in_doubles:
                outputs = replace(outputs, on_exit=partial(_heard_outside, outputs.on_exit))
            taps = stack.enter_context(tapped(self.anatomy, outputs))
            logits: torch.Tensor = self.model(**self._inputs(forward, job)).logits[0]
            forward.check()
        if self.in_doubles:
            logits, taps = logits.float(), taps.narrowed()
        if not job.outputs.logits:
            return Found(None, taps)
        if job.logit_rows is not None and not self._keeps_logits:
            logits = logits[job.logit_rows.to(logits.device)]
        return Found(logits, taps)

    @torch.no_grad()
    def windows(self, request: Request) -> list[int | None]:
        """The window that each layer names to the attention function; for the probe."""
        with ExitStack() as stack:
            forward = self._begin([request], stack)
            self.model(**self._inputs(forward, ForwardJob([request])))
        return forward.windows

    @torch.no_grad()
    def unassisted(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits ``[n, vocabulary]`` of a text from the model alone, at positions from `moved` on; for the probe."""
        from paceline.targets.hf.interface import attention_is

        raw: list[torch.Tensor] = []
        head = self.anatomy.head
        hook = head.register_forward_hook(lambda *call: raw.append(call[-1])) if head is not None else None
        try:
            with attention_is(self._native(), self.model):
                ids = tokens[None].to(self.model.device)
                inputs = self._elsewhere(ids) if self.moved else {"attention_mask": torch.ones_like(ids)}
                logits: torch.Tensor = self.model(
                    input_ids=ids, use_cache=bool(self.moved) and self.family.uses_cache, **inputs
                ).logits[0]
        finally:
            if hook is not None:
                hook.remove()
        if raw and raw[-1][0].shape == logits.shape:
            self.anatomy.calibrate(raw[-1][0], logits)
        return logits

    def _elsewhere(self, ids: torch.Tensor) -> dict[str, Any]:
        """Arguments that place a text behind `moved` positions without rows."""
        from paceline.targets.hf.interface import ForwardCache

        cache = ForwardCache(None, claimed=self.moved)
        self._index(cache, None)
        n = ids.shape[1]
        causal = causal_mask(n, self.like)[None, None]
        kinds = self._kinds
        inputs: dict[str, Any] = {
            "attention_mask": {kind: None if kind in RECURRENT_LAYERS else causal for kind in kinds}
            if len(kinds) > 1
            else causal,
            **self.with_cache(cache),
        }
        if self.takes_positions:
            inputs["position_ids"] = torch.arange(self.moved, self.moved + n, device=ids.device)[None]
        return inputs

    def _begin(self, requests: Sequence[Request], stack: ExitStack) -> ForwardCache:
        """Prepare the model for a forward; undone when the stack closes."""
        from paceline.targets.hf.interface import ATTENTION_NAME, ForwardCache, attention_is, computing
        from paceline.targets.hf.recurrent.forward import RecurrentForward, compiles

        segments = Segment.of_all(requests, self._scratch)
        alone = None if self.mode is Mode.PACKED else segments[0]
        assert alone is None or len(segments) == 1, "only a packed forward holds several sequences"
        before = segments[0].request.end - segments[0].n
        recurrent = RecurrentForward(requests, narrow=self.in_doubles and compiles()) if self.recurrent else None
        forward = ForwardCache(PackedKVCache(segments), before, self.moved + self.claimed, alone, recurrent)
        self._index(forward, alone)
        stack.enter_context(attention_is(self._native() if alone else ATTENTION_NAME, self.model))
        stack.enter_context(computing(forward))
        if self.in_doubles:
            stack.enter_context(InDoubles())
        if self._switch is not None:
            for request in requests:
                assert isinstance(request.rows, RotatedRows), "this target scores the rows it opened"
                request.rows.mark(len(request.tokens), rotary_position(request) + self.moved, request.held)
            position = max(rotary_position(request) for request in requests) + self.moved
            stack.enter_context(rotated_as_of(position, self._rotary, self.like))
        return forward

    def _index(self, forward: ForwardCache, alone: Segment | None) -> None:
        if self.family.measures and self.mode is Mode.MASKED:
            device, moved = self.model.device, self.moved
            forward.offsets = (moved, moved) if alone is None else offsets(alone.request, moved, device)
        if self.family.indexes:
            forward.layers = IndexedLayers(None if alone is None else alone.request, self.moved, self.model.device)

    def _native(self) -> str:
        """The attention implementation of a model that cannot use ours: its own, if that takes a float mask."""
        current = self.model.config._attn_implementation
        return current if current in ("eager", "sdpa") else "eager"

    @property
    def like(self) -> torch.Tensor:
        """An empty tensor on the model's device, of the type of its floats."""
        kind = torch.float64 if self.in_doubles else self.model.dtype
        return torch.empty(0, dtype=kind, device=self.model.device)

    def _inputs(self, forward: ForwardCache, job: ForwardJob) -> dict[str, Any]:
        device = self.model.device
        tokens = torch.from_numpy(joined([request.tokens for request in job.requests]))
        inputs: dict[str, Any] = {
            "input_ids": tokens[None].to(device),
            "use_cache": self.family.uses_cache,
            **self.with_cache(forward),
        }
        if self.takes_positions:
            positions = torch.from_numpy(joined([request.positions for request in job.requests]))
            inputs["position_ids"] = positions[None].to(device) + self.moved
        if self.mode is Mode.MASKED:
            assert forward.alone is not None, "a mask belongs to one sequence"
            inputs["attention_mask"] = masks(forward.alone, self.like, self._kinds, self.window)
        if self._keeps_logits and job.logit_rows is not None:
            # at least one row: some heads fail without any
            rows = job.logit_rows if len(job.logit_rows) else torch.tensor([0])
            inputs["logits_to_keep"] = rows.to(device)
        return inputs


def _heard_outside(on_exit: OnExit, early: torch.Tensor) -> None:
    """What is done with early logits is no part of a forward in doubles."""
    with torch._C.DisableTorchFunction():
        on_exit(early.float())


def joined(arrays: Sequence[Ints]) -> Ints:
    """One array of all; a single one is not copied."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _layer_types(config: Any, attends: bool) -> list[str]:
    kind = "sliding_attention" if getattr(config, "sliding_window", None) else "full_attention"
    kind = kind if attends else "recurrent"
    return [kind] * config.num_hidden_layers
