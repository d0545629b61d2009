"""Which heads draft for a model: those in a folder, or those that come with the package."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from paceline.drafters.networks.fitting import FittedHead, fitted_head, layers_without_ballast
from paceline.drafters.networks.heads import HYDRA
from paceline.drafters.networks.hydra.checkpoint import read_heads
from paceline.drafters.networks.hydra.head import HydraHeads, HydraShape
from paceline.drafters.networks.residual import transplant
from paceline.errors import InputError
from paceline.targets.base import Target


def heads_for(named: str | Path, target: Target) -> FittedHead[HydraHeads]:
    """The heads for a target, read once in a process."""
    return fitted_head(named, target, HYDRA, read_heads, widened)


def state_of(shape: HydraShape, named: str | Path, target: Target) -> int:
    """The target's state that heads read, numbered as in `Want.hidden`. The layers of a model with ballast stand evenly
    among others."""
    count = layers_without_ballast(target)
    if shape.offset > count:
        raise InputError(
            f"the head in {named} reads a state {shape.offset} layers before the last, and {target.name} has {count} "
            f"layers; train one for this model"
        )
    return (count - shape.offset) * target.layers // count


def widened(heads: HydraHeads, ratio: int) -> HydraHeads:
    """The same function for a target with ballast, whose channels are the small target's and then inert ones, at the
    cost of heads of that width."""
    small, prefix = heads.shape, heads.shape.prefix
    if prefix is not None:  # a norm over inert zeros divides by less
        own = {name: getattr(prefix, name) * ratio for name in ("heads", "key_heads", "units")}
        prefix = replace(prefix, **own, eps=prefix.eps / ratio)
    made = HydraHeads(replace(small, width=small.width * ratio, rank=small.rank * ratio, prefix=prefix))
    transplant(heads.state_dict(), made, lambda name: _places(name, small.width, heads, ratio))
    made.token_ids = heads.token_ids
    if made.prefix_embeding_layer is not None:
        _silence(made, small.width, ratio)
    return made


def _places(name: str, width: int, heads: HydraHeads, ratio: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Where a layer's outputs and inputs are in the wider one."""
    weight = heads.get_parameter(f"{name}.weight")
    rows, columns = torch.arange(len(weight)), torch.arange(weight.shape[-1])
    if name.startswith("hydra_mlp."):  # its inputs are states one behind the other
        columns = columns // width * (width * ratio) + columns % width
    return rows, columns


def _silence(made: HydraHeads, width: int, ratio: int) -> None:
    """Let the prefix layer leave inert channels at zero, so that its norms see what those of the small one do."""
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight[width:] = 0.0
            elif name.startswith("prefix_embeding_layer.") and "norm" in name:
                weight.div_(ratio**0.5)
