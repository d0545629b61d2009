"""The probed target of a model, kept on the model itself from one `generate` to the next.

A dictionary from models to targets would keep every model alive, for a target holds its model. As an attribute of the
model, the two go together.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel

from paceline.targets.hf.load import load_target
from paceline.targets.hf.rope import context_length
from paceline.targets.hf.target import HFTarget

ATTRIBUTE = "_paceline"
_attaching = threading.Lock()


class ModelTarget:
    """The target of one model, and the number of calls that use it. Neither copied nor saved with the model."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
        self.training: list[torch.nn.Module] = []
        self.target: HFTarget | None = None
        self.made_for: tuple[Any, ...] = ()

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """A copy of the model, or the model read back from a file, has None here and is probed again."""
        return type(None), ()

    def of(self, model: PreTrainedModel) -> HFTarget:
        """The target; made again if the model is no longer the one that was probed."""
        state = _state(model)
        if self.target is None or self.target.model is not model or self.made_for != state:
            self.target, self.made_for = load_target(model), state
        return self.target


def _state(model: PreTrainedModel) -> tuple[Any, ...]:
    """The facts on which a target and its probe depend: type, place and autocast, the number of tokens, the context,
    and the modules themselves, which adapters and new embeddings replace."""
    place = model.device.type
    mixed = torch.get_autocast_dtype(place) if torch.is_autocast_enabled(place) else None
    config: Any = model.config.get_text_config()
    modules = tuple(model.modules())  # themselves: a number that is free again may be another module's
    return model.dtype, model.device, mixed, config.vocab_size, context_length(config), modules


@contextmanager
def borrowed(model: PreTrainedModel) -> Iterator[HFTarget]:
    """The model's target, for as long as a generation takes. Meanwhile the model is in eval mode; afterwards every
    part of it is in the mode it was in when the first of several simultaneous generations began."""
    attached = _attached(model)
    with attached.lock:
        attached.users += 1
        if attached.users == 1:
            attached.training = [module for module in model.modules() if module.training]
    try:
        with attached.lock:
            for module in attached.training:
                module.training = False
            target = attached.of(model)
        yield target
    finally:
        with attached.lock:
            attached.users -= 1
            if attached.users == 0:
                for module in attached.training:
                    module.training = True
                attached.training = []


def _attached(model: PreTrainedModel) -> ModelTarget:
    with _attaching:
        attached = model.__dict__.get(ATTRIBUTE)
        if not isinstance(attached, ModelTarget):
            attached = model.__dict__[ATTRIBUTE] = ModelTarget()
        return attached
