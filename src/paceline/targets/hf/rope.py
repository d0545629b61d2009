"""Rotary embeddings that depend on the largest position of a forward.

*Dynamic* scaling lowers the frequencies with every position past the trained length, *longrope* changes its factors
once. Either way a row depends on how far the rest of its forward reaches, which a draft must not decide. So drafts end
short of the `Switch`, and every forward is rotated as transformers' own generation would rotate it: a prompt as of its
last token, a round as of its root.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

import numpy as np
import torch
from torch import nn

from paceline.targets.base import Request, Rows
from paceline.targets.cache import CacheRows
from paceline.tree import Ints

STATIC = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotary types whose angles depend on the position alone."""
REREADS = frozenset({"phi3", "phi4_multimodal", "phimoe"})
"""Model types whose generation drops its cache at the switch, if their configuration names the original length itself.
We read the text again there. So does transformers, except for phi4_multimodal, which goes on with the last token."""
SCALES = ("factor", "mscale")
"""Settings of longrope that have a short and a long value."""


@dataclass(frozen=True)
class Switch:
    """Where the rotation changes: the first position that makes a forward rotate in the new way."""

    position: int
    growing: bool
    """It changes again with every further position, so nothing can be drafted behind the switch."""
    rereads: bool
    """Generation drops its cache at the switch and reads the text again."""

    @classmethod
    def of(cls, config: Any) -> Switch | None:
        """The first switch in a configuration."""
        given = getattr(config, "rope_parameters", None) or {}
        kinds = [given] if "rope_type" in given else [p for p in given.values() if isinstance(p, dict)]
        found = []
        for kind in kinds:
            name = kind.get("rope_type")
            if name == "dynamic":
                found.append((int(config.max_position_embeddings), True))
            elif name == "longrope" and any(kind.get(f"short_{of}") != kind.get(f"long_{of}") for of in SCALES):
                found.append((int(kind["original_max_position_embeddings"]), False))
        if not found:
            return None
        first = min(position for position, _ in found)
        rereads = config.model_type in REREADS and hasattr(config, "original_max_position_embeddings")
        return cls(first, any(growing for _, growing in found), rereads)

    def depth(self, root: int) -> int | None:
        """How deep a draft may reach behind a root at this position."""
        if root < self.position:
            return self.position - 1 - root
        return 0 if self.growing or (self.rereads and root == self.position) else None


def rotary_position(request: Request) -> int:
    """The position as of which a request is rotated: its deepest one; for a piece of a prompt without the root that of
    the root behind it."""
    return int(request.positions.max()) + (request.prompt == len(request.tokens))


NO_LONGEST_TEXT = -1
"""The `max_position_embeddings` of a model that has no longest text, as XLNet's."""


def context_length(config: Any) -> int | None:
    """The context length, if there is one: dynamic scaling exists to go past the trained one."""
    length: int | None = getattr(config, "max_position_embeddings", None)
    if length == NO_LONGEST_TEXT:
        return None
    rope = getattr(config, "rope_parameters", None) or {}
    if length is not None and rope.get("rope_type") == "dynamic":
        return int(length * rope["factor"])
    return length


class RotatedRows(CacheRows):
    """Rows of which the first ``early`` were rotated as rows of a text short of the switch."""

    def __init__(self, capacity: int, switch: Switch) -> None:
        super().__init__(capacity)
        self._switch = switch
        self.early = 0

    def mark(self, count: int, position: int, held: int = 0) -> None:
        """Note how the next rows are rotated: ``count`` of them, behind the committed and held ones, as of
        ``position``."""
        before = self.committed + held
        self.early = min(self.early, before)
        if position < self._switch.position and self.early == before:
            self.early += count

    def adopt(self, other: Rows, count: int) -> None:
        assert isinstance(other, RotatedRows), "rows are copied from a sequence of the same target"
        super().adopt(other, count)
        self.early = min(other.early, self.committed)

    def must_reread(self, request: Request) -> bool:
        """Whether generation would read the cached text again for this request."""
        crosses = self._switch.rereads and rotary_position(request) >= self._switch.position
        return crosses and min(self.early, self.committed) > 0

    def common_prefix(self, tokens: Ints) -> int:
        """Only rows that are rotated as a fresh reading of the same prompt would rotate them."""
        common = super().common_prefix(tokens)
        if len(tokens) < self._switch.position:
            return min(common, self.early)
        return 0 if self._switch.growing or self.early else common


def rotary_modules(model: nn.Module) -> list[nn.Module]:
    """The modules whose rotation switches."""
    return [m for m in model.modules() if any(kind in ("dynamic", "longrope") for kind in _kinds(m).values())]


def _kinds(module: nn.Module) -> dict[str | None, str]:
    """Rope types by layer type; one entry under None where layers share theirs."""
    kind = getattr(module, "rope_type", None)
    if isinstance(kind, dict):
        return kind
    return {None: kind} if isinstance(kind, str) and hasattr(module, "original_inv_freq") else {}


@contextmanager
def rotated_as_of(position: int, modules: list[nn.Module], like: torch.Tensor) -> Iterator[None]:
    """Rotate the forward inside as if it reached ``position``; restores the modules."""
    saved = [_state(module) for module in modules]
    beyond = torch.full((1, 1), position, device=like.device)
    try:
        for module in modules:
            _reset(module)
            vars(module)["forward"] = _reaching(module.forward, beyond)
        yield
    finally:
        for module, state in zip(modules, saved, strict=True):
            vars(module).pop("forward", None)
            for name in _state(module).keys() - state.keys():
                delattr(module, name)
            for name, value in state.items():
                setattr(module, name, value)


def _reaching(forward: Callable[..., Any], beyond: torch.Tensor) -> Callable[..., Any]:
    """A rotary forward that gets one more position and drops its result: modules choose frequencies and scales by the
    largest position they get."""

    @wraps(forward)
    def reaching(rows: torch.Tensor, position_ids: torch.Tensor, *rest: Any, **named: Any) -> Any:
        shown = torch.cat([position_ids, beyond.expand(*position_ids.shape[:-1], 1)], dim=-1)
        found = forward(rows, shown, *rest, **named)
        return found[..., :-1, :] if isinstance(found, torch.Tensor) else tuple(part[..., :-1, :] for part in found)

    return reaching


def _state(module: nn.Module) -> dict[str, Any]:
    """The state that a rotary module keeps from earlier forwards, and a forward that was set on it."""
    names = (*module._buffers, *vars(module))
    return {name: getattr(module, name) for name in names if name.endswith(REMEMBERED)}


REMEMBERED = ("inv_freq", "max_seq_len_cached", "forward")


def _reset(module: nn.Module) -> None:
    """Set the trained frequencies, as copies: modules write into them."""
    for layer_type, kind in _kinds(module).items():
        prefix = f"{layer_type}_" if layer_type is not None else ""
        setattr(module, f"{prefix}inv_freq", getattr(module, f"{prefix}original_inv_freq").clone())
        if kind == "dynamic":
            setattr(module, f"{prefix}max_seq_len_cached", module.original_max_seq_len)


def rotation_groups(requests: Sequence[Request], switch: Switch) -> list[list[int]]:
    """Numbers of the requests that may share a forward without changing each other's rotation."""
    early = [i for i, request in enumerate(requests) if rotary_position(request) < switch.position]
    late = np.setdiff1d(np.arange(len(requests)), early).tolist()
    groups = [early, *([i] for i in late)] if switch.growing else [early, late]
    return [group for group in groups if group]
