"""Which block head drafts for a model, and the states of the model that it reads."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import torch

from paceline.drafters.networks.block.checkpoint import read_block
from paceline.drafters.networks.block.head import BlockHead
from paceline.drafters.networks.block.shape import BlockShape
from paceline.drafters.networks.fitting import FittedHead, fitted_head, layers_without_ballast
from paceline.drafters.networks.heads import BLOCK
from paceline.errors import InputError
from paceline.targets.base import Target

NOISE_SCALE = 0.02
WRITE = ("fc", "o_proj", "down_proj", "embed_tokens", "mask_embedding")
"""Weights that write into the stream of channels."""
NORMS = ("hidden_norm", "norm", "input_layernorm", "post_attention_layernorm")


def head_for(named: str | Path, target: Target) -> FittedHead[BlockHead]:
    """The head for a target, read once in a process."""
    return fitted_head(named, target, BLOCK, read_block, widened, lambda head: head.compilable)


def states_of(shape: BlockShape, named: str | Path, target: Target) -> tuple[int, ...]:
    """The target's states that a head reads, numbered as in `Want.hidden`. The layers of a model with ballast stand
    evenly among others."""
    count = layers_without_ballast(target)
    if shape.target_layers not in (0, count) or max(shape.states) > count:
        layers = shape.target_layers or max(shape.states)
        raise InputError(
            f"the head in {named} was made for a model of {layers} layers{' or more' * (not shape.target_layers)}, and "
            f"{target.name} has {count}; train one for this model"
        )
    return tuple(state * target.layers // count for state in shape.states)


def widened(head: BlockHead, ratio: int) -> BlockHead:
    """The same function for a target with ballast, at the cost of a head of that width; see `targets.pocket.ballast`.
    Channels are the small head's and then zeros; new attention heads and MLP units compute noise that is not read."""
    small = head.shape
    made = BlockHead(replace(small, layer=small.layer.widened(ratio), rank=small.rank * ratio))
    weights = head.state_dict()
    with torch.no_grad():
        for name, weight in made.named_parameters():
            _place(name, weight, weights[name].to(weight), small, ratio)
    made.token_ids = head.token_ids
    return made


def _place(name: str, wide: torch.Tensor, weight: torch.Tensor, small: BlockShape, ratio: int) -> None:
    """Fill a wide weight: the small one where its channels are, and beside it what changes nothing."""
    part = name.removesuffix(".weight").removesuffix(".bias").rpartition(".")[2]
    if part in NORMS:
        wide.fill_(1 / math.sqrt(ratio))
        wide[: len(weight)] = weight / math.sqrt(ratio)
        return
    places = _places(part, weight, small, ratio)
    if part in WRITE or wide.shape == weight.shape:
        wide.zero_()
    else:
        wide.normal_(std=NOISE_SCALE)
        wide[places[0]] = 0.0
    wide[torch.meshgrid(*places, indexing="ij")] = weight


def _places(part: str, weight: torch.Tensor, small: BlockShape, ratio: int) -> list[torch.Tensor]:
    """For each dimension, where the small weight stands in the wide one. Channels come first, but in joined inputs, and
    in kernels that are projected side by side."""
    places, width, rank = [torch.arange(size) for size in weight.shape], small.width, small.markov_rank
    real = torch.arange(width)
    if part == "fc":
        places[1] = torch.cat([number * width * ratio + real for number in range(len(small.states))])
    if part == "kernel_projection":
        groups = width // small.group
        kernels = torch.arange(2 * small.taps)[:, None] * groups * ratio + torch.arange(groups)
        places[0] = kernels.flatten()
    if part == "gate_proj" and weight.shape == (rank, width + rank):
        places[-1] = torch.cat([real, width * ratio + torch.arange(rank)])
    if part == "proj" and weight.ndim == 2:
        places[1] = torch.cat([real, width * ratio + torch.arange(weight.shape[1] - width)])
    return places
