"""What is kept of a model from one `generate` to the next: the probed target, on the model itself.

A dictionary from models to targets would keep every model alive, for a target holds its model. Hung onto the model,
the two go together.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel

from paceline.targets.hf.load import load_target
from paceline.targets.hf.target import HFTarget

PLACE = "_paceline"
_hanging = threading.Lock()


class Kept:
    """One model's target, and who uses it right now. Neither copied nor saved with the model."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
        self.training: list[torch.nn.Module] = []
        self.target: HFTarget | None = None
        self.made_for: tuple[Any, ...] = ()

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """A copy of the model, or the model read back from a file, has None here and is probed anew."""
        return type(None), ()

    def target_of(self, model: PreTrainedModel) -> HFTarget:
        """The target; made again if the model has been converted or moved, or calculates in another type."""
        place = model.device.type
        mixed = torch.get_autocast_dtype(place) if torch.is_autocast_enabled(place) else None
        state = model.dtype, model.device, mixed
        if self.target is None or self.target.model is not model or self.made_for != state:
            self.target, self.made_for = load_target(model), state
        return self.target


@contextmanager
def borrowed(model: PreTrainedModel) -> Iterator[HFTarget]:
    """The model's target, for as long as a generation takes. Meanwhile the model is in eval mode; afterwards every
    part of it is in the mode it was in when the first of several simultaneous generations began."""
    kept = _kept(model)
    with kept.lock:
        kept.users += 1
        if kept.users == 1:
            kept.training = [module for module in model.modules() if module.training]
    try:
        with kept.lock:
            for module in kept.training:
                module.training = False
            target = kept.target_of(model)
        yield target
    finally:
        with kept.lock:
            kept.users -= 1
            if kept.users == 0:
                for module in kept.training:
                    module.training = True
                kept.training = []


def _kept(model: PreTrainedModel) -> Kept:
    with _hanging:
        kept = model.__dict__.get(PLACE)
        if not isinstance(kept, Kept):
            kept = model.__dict__[PLACE] = Kept()
        return kept
