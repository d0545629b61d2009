"""Which head drafts for a model, and the head of a model with ballast, which is as much wider as the model."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from paceline.drafters.networks.eagle.checkpoint import EagleConfig, read_head
from paceline.drafters.networks.eagle.head import EagleHead, EagleShape
from paceline.drafters.networks.fitting import FittedHead, HeadFacts, fitted_head, layers_without_ballast, states_before
from paceline.drafters.networks.layers import RMSNorm, compilable
from paceline.errors import InputError
from paceline.targets.base import Target


@dataclass(frozen=True, eq=False)
class FittedEagle:
    """A head in the type and on the device of its target, and the layers of the target that it reads."""

    head: EagleHead
    layers: tuple[int, ...]
    mask_token: int | None
    noise: str | None
    light: bool = True
    shared: FittedHead[Configured] | None = None
    """What other drafters of the process share, as long as one of them holds it."""


class Configured(nn.Module):
    """A head with its configuration, as files hold it."""

    def __init__(self, head: EagleHead, config: EagleConfig) -> None:
        super().__init__()
        self.head, self.config = head, config


def head_for(named: str | Path, target: Target) -> FittedEagle:
    """The head for a target, read once in a process."""

    def read(folder: Path) -> tuple[Configured, HeadFacts]:
        head, config = read_head(folder)
        own, shape = config.own, head.shape
        facts = HeadFacts(
            width=shape.state_width,
            vocab_size=shape.vocab_size,
            target=own.target,
            target_name=own.target_name,
            noise=own.noise,
        )
        return Configured(head, config), facts

    def wide(made: Configured, ratio: int) -> Configured:
        return Configured(widened(made.head, ratio), made.config)

    fitted = fitted_head(
        named, target, "eagle", read, wide, lambda made: compilable(made.head.decoder_layers, made.head.rotary)
    )
    head, config = fitted.head.head, fitted.head.config
    layers = layers_read(head.shape, config.layer_ids, target)
    return FittedEagle(head, layers, config.mask_token, fitted.noise, fitted.light, fitted)


def layers_read(shape: EagleShape, layer_ids: tuple[int, ...] | None, target: Target) -> tuple[int, ...]:
    """The numbers of the states that a head reads, as `Want.hidden` has them."""
    if not shape.fuses:
        return (target.layers,)
    count = layers_without_ballast(target)
    ids = (2, count // 2, count - 3) if layer_ids is None else layer_ids
    if len(ids) != shape.aux:
        raise InputError(
            f"the head reads the states of {shape.aux} layers and does not say of which ones; write their numbers as "
            "eagle_aux_hidden_state_layer_ids into its config.json"
        )
    return states_before(ids, target)


def widened(head: EagleHead, ratio: int) -> EagleHead:
    """The same function for a target with ballast, whose states have the small target's channels and then as many zeros
    as make it ``ratio`` times wider, at the cost of a head of that width.

    What writes into states writes zeros into new channels, so that the mean square of a wide state is the small one's
    divided by the ratio; epsilon and weights of norms undo that. New rows elsewhere are noise that nothing real reads.
    """
    small = head.shape
    made = EagleHead(_wide_shape(small, ratio), head.rotary)
    norms = {f"{name}.weight" for name, module in head.named_modules() if _scaled(name, module)}
    found = made.state_dict()
    with torch.no_grad():
        for name, weight in head.state_dict().items():
            new = found[name]
            if weight.is_floating_point():
                _place(name, new, weight / math.sqrt(ratio) if name in norms else weight, small, ratio)
            else:
                new.copy_(weight)
    return made


def _wide_shape(small: EagleShape, ratio: int) -> EagleShape:
    layer = small.layer.widened(ratio)
    return replace(small, layer=layer, state_width=small.state_width * ratio, rank=small.rank * ratio)


def _scaled(name: str, module: nn.Module) -> bool:
    """Whether this is a norm of states; those of heads have their width."""
    return isinstance(module, RMSNorm) and not name.endswith(("q_norm", "k_norm"))


READERS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "lm_head.0")
"""Matrices whose new rows are noise: what they give is not a state."""


def _place(name: str, new: torch.Tensor, weight: torch.Tensor, shape: EagleShape, ratio: int) -> None:
    """Write a small weight into a wide one. What is read of several states side by side is placed state by state."""
    part = name.removesuffix(".weight").removesuffix(".bias")
    inputs = _inputs(part, shape)
    if weight.ndim == 1:
        pieces = shape.aux if part == "input_norm" else 1
        if not part.endswith("norm"):
            new.zero_()
        new[_channels(len(weight), pieces, ratio)] = weight
        return
    columns = _channels(weight.shape[-1], inputs, ratio)
    if weight.ndim == 3:
        new.zero_()
        new[..., columns] = weight
        return
    if not part.endswith(READERS):
        new.zero_()
    rows = torch.arange(len(weight))
    new[rows] = 0
    new[rows[:, None], columns] = weight


def _inputs(part: str, shape: EagleShape) -> int:
    """How many states or embeddings, side by side, a weight reads."""
    if part == "mask_hidden" or (part == "fc" and shape.fuses):
        return shape.aux
    first = part.startswith("layers.0.") and shape.fuses and part.endswith(("q_proj", "k_proj", "v_proj"))
    return 2 if first or part == "fc" else 1


def _channels(count: int, pieces: int, ratio: int) -> Any:
    """The real channels of several states side by side, among the wide ones."""
    size = count // pieces
    return torch.cat([torch.arange(size) + piece * size * ratio for piece in range(pieces)])
