"""A rank's part of a model, by the tensor plan that transformers has for its class.

The plan names layers whose outputs are divided (queries, keys, values, the first products of an MLP) and layers whose
inputs are (the last ones), after which the ranks' results are added up: two sums a layer. Divided layers become small
layers of the same kind, so every path computes them as it computes whole ones. Embeddings stay whole: reading a row
costs nothing, and drafters read them between forwards, when no other rank computes. For the same reason the leader
keeps the whole output head for drafters, while forwards gather logits from all ranks.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from paceline.errors import InputError, UnsupportedModel
from paceline.targets.hf.packed import ordinary
from paceline.targets.hf.ranks.group import RankGroup

COLUMNS, ROWS, PACKED_COLUMNS, EXPERTS = "colwise", "rowwise", "packed_colwise", "moe_tp_experts"
GATHERED = frozenset({"colwise_gather_output", "colwise_rep"})
WHOLE = GATHERED | {
    *("rowwise_split_input", "rowwise_rep", "replicated_with_grad_allreduce", "replicate", "mla_kv_a_proj"),
    *("embedding_rowwise", "embedding_colwise", "local_params"),
}
"""Styles of layers that every rank computes alone, for what they read and write is whole on every rank."""
KNOWN = WHOLE | {COLUMNS, ROWS, PACKED_COLUMNS, EXPERTS}
NUMBERED = re.compile(r"\.\d+(?=\.|$)")


class SummedLinear(nn.Module):
    """A linear layer whose inputs are divided: every rank multiplies its own, and the results are added up."""

    def __init__(self, layer: nn.Linear, group: RankGroup, part: torch.Tensor) -> None:
        super().__init__()
        self.in_features, self.out_features, self._group = layer.in_features, layer.out_features, group
        self.part = ordinary(part, None)
        self.bias = layer.bias

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        total = self._group.summed(self.part(given))
        return total if self.bias is None else total + self.bias


class GatheredHead(nn.Module):
    """An output head whose tokens are divided between ranks. Vocabularies need not be divisible: the last rank may
    have fewer tokens, which are filled up for the gathering only."""

    weight: torch.Tensor | None
    """Of all tokens; None where a rank has no use for it."""

    def __init__(self, layer: nn.Linear, group: RankGroup, *, tied: bool) -> None:
        super().__init__()
        self.in_features, self.out_features, self._group = layer.in_features, layer.out_features, group
        share = -(-layer.out_features // group.size)
        self._own = slice(group.rank * share, min((group.rank + 1) * share, layer.out_features))
        self._share = share
        whole = group.leads or tied
        self.weight = layer.weight if whole else None
        self._part = None if whole else nn.Parameter(layer.weight[self._own].clone(), requires_grad=False)
        self.bias = layer.bias

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        weight = self._part if self.weight is None else self.weight[self._own]
        assert weight is not None, "a rank has the weights of its own tokens"
        part = F.linear(states, weight, None if self.bias is None else self.bias[self._own])
        found = self._group.gathered(F.pad(part, (0, self._share - part.shape[-1])))
        return found[..., : self.out_features]

    def alone(self, states: torch.Tensor) -> torch.Tensor:
        """The same by the leader, without the other ranks."""
        assert self.weight is not None, "the leader has the whole head"
        return F.linear(states, self.weight, self.bias)


def cut(model: Any, group: RankGroup) -> None:
    """Leave this rank's part of a model in place of the whole."""
    plan = plan_of(model)
    check_heads(model, plan, group.size)
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    tied = getattr(head, "weight", None) is getattr(embedding, "weight", None)
    for name, module in list(model.named_modules()):
        style = plan.get(generic(name))
        made: nn.Module | None = None
        if module is head and style in GATHERED and _is_linear(module, name):
            made = GatheredHead(module, group, tied=tied)
        elif style == COLUMNS and _is_linear(module, name):
            bias = None if module.bias is None else _part(module.bias, 0, group, name)
            made = ordinary(_part(module.weight, 0, group, name), bias)
        elif style == ROWS and _is_linear(module, name):
            made = SummedLinear(module, group, _part(module.weight, 1, group, name))
        elif style == EXPERTS:
            module.register_forward_hook(_adding(group))
        if made is not None:
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, made)
    for name, weight in list(model.named_parameters()):
        if (style := plan.get(generic(name))) in (COLUMNS, ROWS, PACKED_COLUMNS):
            parent, _, child = name.rpartition(".")
            part = _expert_part(weight, str(style), group, name)
            setattr(model.get_submodule(parent), child, nn.Parameter(part, requires_grad=False))


def plan_of(model: Any) -> dict[str, str]:
    """Names of modules and weights, with ``*`` for the numbers of layers, and how each is divided. Of old versions only
    the class names the head, and only its instances the layers."""
    plans = (getattr(each, "_tp_plan", None) or {} for each in (type(model), model))
    plan: dict[str, str] = {name: style for each in plans for name, style in each.items()}
    if COLUMNS not in plan.values() and EXPERTS not in plan.values():
        raise UnsupportedModel(
            f"transformers has no tensor plan that divides layers of {type(model).__name__}, so it is not cut; "
            "use one device, or device_map in Python"
        )
    if strange := sorted({style for style in plan.values() if style not in KNOWN}):
        raise UnsupportedModel(
            f"the tensor plan of {type(model).__name__} divides layers in ways that are not known here "
            f"({', '.join(strange)}); use one device, or device_map in Python"
        )
    return plan


def check_heads(model: Any, plan: dict[str, str], size: int) -> None:
    """Refuse a number of ranks that does not divide the heads. A group of queries stays with its keys."""
    config = model.config.get_text_config()
    if not any(style == COLUMNS and "attn" in name for name, style in plan.items()):
        return
    for field in ("num_attention_heads", "num_key_value_heads"):
        count = getattr(config, field, None)
        if isinstance(count, int) and count % size:
            divisors = [str(n) for n in range(1, count + 1) if count % n == 0]
            raise InputError(f"{field} is {count}, which {size} ranks do not divide; take {' or '.join(divisors)}")


def generic(name: str) -> str:
    """A name with ``*`` for the numbers of layers."""
    return NUMBERED.sub(".*", name)


def _is_linear(module: Any, name: str) -> bool:
    if not isinstance(module, nn.Linear):
        raise UnsupportedModel(
            f"{name} is a {type(module).__name__}, and only ordinary linear layers are cut over ranks"
        )
    return True


def _part(weight: torch.Tensor, dim: int, group: RankGroup, name: str) -> torch.Tensor:
    """This rank's part of a weight, as a copy: the whole is given back."""
    count = weight.shape[dim]
    if count % group.size:
        raise InputError(f"{name} has {count} units, which {group.size} ranks do not divide; take fewer ranks")
    share = count // group.size
    return weight.detach().narrow(dim, group.rank * share, share).clone(memory_format=torch.contiguous_format)


def _expert_part(weight: torch.Tensor, style: str, group: RankGroup, name: str) -> torch.Tensor:
    """The same of the weights of all experts ``[experts, outputs, inputs]``. Packed ones are two products' weights
    above one another, each of which is divided."""
    if style == PACKED_COLUMNS:
        halves = weight.chunk(2, dim=-2)
        return torch.cat([_part(half, weight.dim() - 2, group, name) for half in halves], dim=-2)
    return _part(weight, weight.dim() - (1 if style == ROWS else 2), group, name)


def _adding(group: RankGroup) -> Callable[[nn.Module, Any, torch.Tensor], torch.Tensor]:
    """A hook behind experts, each of which every rank computes a part of."""

    def add(_: nn.Module, __: Any, part: torch.Tensor) -> torch.Tensor:
        return group.summed(part)

    return add
