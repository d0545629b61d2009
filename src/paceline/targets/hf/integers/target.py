"""A target whose weights are integers and whose rows are the same, bit by bit, whatever they are scored with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from paceline.errors import InputError, UnsupportedModel
from paceline.targets.base import Request
from paceline.targets.hf.integers.kernels import Compiled, obstacle_to_nibbles, without_numba
from paceline.targets.hf.integers.kernels import obstacle as why_not_compiled
from paceline.targets.hf.integers.linear import Int4Linear, Int8Linear, IntegerLinear, Integers
from paceline.targets.hf.integers.linear import quantized as rounded
from paceline.targets.hf.integers.operations import DEFAULT_CONTEXT_LENGTH, ExactOperations, is_uniform
from paceline.targets.hf.integers.ordinary import LEAST, OrdinaryIntegerTarget, obstacle_to_doubles, share_of_products
from paceline.targets.hf.joined import LinearSlice, join
from paceline.targets.hf.lean import Lean
from paceline.targets.hf.own import Mode, OwnForward
from paceline.targets.hf.path import ForwardJob, ForwardPath, Found
from paceline.targets.hf.target import HFTarget
from paceline.targets.hf.variants import is_silu, modules_of
from paceline.targets.pocket.llama import BundledForCausalLM, as_transformers
from paceline.tree import ROOT, DraftTree

if TYPE_CHECKING:
    from paceline.targets.hf.integers.stored import Stored  # needs transformers, which bundled models do without

QKV, GATE_UP = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")
"""Layers that are computed as one."""
EXACT_LENGTH = 2**20
"""Texts up to this length leave values in attention enough bits."""
TRIED = 17
"""Rows of the forward that is held against a single row at load."""


class IntegerTarget(HFTarget):
    """Computed by the lean path with exact operations, and by nothing else."""

    exact = True

    def __init__(
        self, model: Any, *, name: str, bits: int = 8, like: HFTarget | None = None, stored: Stored | None = None
    ) -> None:
        super().__init__(model, name=name, fixed_shapes=False)
        self._bits = bits
        if like is not None:
            self.context_length, self.trusted, self.limits = like.context_length, like.trusted, like.limits
        self.context_length = self.context_length or DEFAULT_CONTEXT_LENGTH
        if bits == 4 and (why := obstacle_to_nibbles()) is not None:
            raise InputError(f"quantize=int4 needs compiled products, and {why}; use quantize=int8")
        _quantize(model, bits, stored)
        self._own = OwnForward(model, None, Mode.PACKED)
        modules = modules_of(model)
        assert modules is not None, "only models of a known structure are quantised"
        operations = ExactOperations(modules, self.context_length)
        self.paths = [self._compiled(operations) or Lean(self._own, operations), NoPath(name)]
        if not self._rows_are_alike():
            raise UnsupportedModel(
                f"{name} cannot be quantised: torch's kernels here let its rows depend on each other"
            )

    def _compiled(self, operations: ExactOperations) -> Lean | None:
        """The path that computes a forward in one call, where all of it can be compiled and finds the same bits. Notes
        why there is none, unless another kernel is faster."""
        why = why_not_compiled()
        whole = [part.joint.layer if isinstance(part, LinearSlice) else part for part in self.model.modules()]
        if why is None and all(
            isinstance(layer.product, Compiled) for layer in whole if isinstance(layer, IntegerLinear)
        ):
            from paceline.targets.hf.fused.path import Fused
            from paceline.targets.hf.fused.placed import Unplaceable

            try:
                fused, lean = (kind(self._own, operations) for kind in (Fused, Lean))
                if torch.equal(self._tried(fused), self._tried(lean)):
                    return fused
                why = "compiled forwards find other numbers here than torch"
            except Unplaceable:
                why = "the model's layers differ in size"
        self.note = None if why is None else f"{why}, so integers are computed more slowly"
        return None

    @torch.no_grad()
    def _tried(self, path: ForwardPath) -> torch.Tensor:
        """Logits of a tree behind a short text."""
        tokens, rows = np.arange(TRIED) % self.vocab_size, self.open()
        half = min(TRIED, self.context_length or TRIED) // 2
        tree = DraftTree.build(tokens[: half - 1], [ROOT, ROOT, *range(half - 3)][: half - 1])
        with self.using(path):
            self.forward([Request.of_prompt(rows, tokens[:half])])
            rows.keep(range(half))
            logits: torch.Tensor = self.forward([Request.of_tree(rows, int(tokens[half]), tree)])[0].logits
            return logits

    @torch.no_grad()
    def _rows_are_alike(self) -> bool:
        """Whether a row alone has the bits that it has before others."""
        tokens = np.arange(TRIED) % self.vocab_size
        lengths = (1, min(TRIED, self.context_length or TRIED))
        drafts = [DraftTree.chain(tokens[1:length]) for length in lengths]
        scores = [self.forward([Request.of_tree(self.open(), int(tokens[0]), draft)])[0] for draft in drafts]
        return torch.equal(scores[0].logits[0], scores[1].logits[0])

    @cached_property
    def _ordinary(self) -> OwnForward:
        bundled: Any = self._own.model
        if isinstance(bundled, BundledForCausalLM):
            return OwnForward(as_transformers(bundled), None, Mode.PACKED)
        return self._own

    @property
    def own(self) -> OwnForward:
        """Transformers' forward over the same integers, which knows nothing of exact sums; for comparisons."""
        return self._ordinary

    @property
    def dtype(self) -> str:
        return f"int{self._bits}"


class NoPath(ForwardPath):
    """Takes what the exact path does not: a model that was changed since it was loaded."""

    def __init__(self, name: str) -> None:
        self._name = name

    def takes(self, job: ForwardJob) -> bool:
        return True

    def run(self, job: ForwardJob) -> Found:
        raise InputError(
            f"{self._name} in integers is computed without transformers' code, which something here hooks or replaces; "
            f"take that away, or leave quantize out"
        )


def quantized(target: HFTarget, stored: Stored | None = None, bits: int = 8) -> IntegerTarget | OrdinaryIntegerTarget:
    """The same model in integers, those of its checkpoint where it has some; the target it was loaded as cannot
    be used any more."""
    if (why := obstacle(target, bits)) is not None:
        raise UnsupportedModel(f"{target.name} cannot be quantised: {why}")
    note, is_lean = None if stored is None else stored.note(target.model), _is_lean(target)
    target.paths, target._own.snapshot = [], None  # they hold the layers in floats
    ours: IntegerTarget | OrdinaryIntegerTarget
    if is_lean:
        ours = IntegerTarget(target.model, name=target.name, bits=bits, like=target, stored=stored)
    else:
        _quantize(target.model, bits, stored)
        ours = OrdinaryIntegerTarget(target, bits=bits)
    ours.note = "; ".join(filter(None, (note, ours.note))) or None
    return ours


def check_place(
    name: str,
    dtype: torch.dtype | None,
    device: torch.device,
    device_map: str | dict[str, Any] | None = None,
    *,
    bits: int = 8,
    fixed_shapes: bool | None = None,
    stored: bool = False,
) -> None:
    """Refuse a type, a place or recorded forwards, which integers do not have, before weights are read. ``stored`` are
    the checkpoint's own integers, which were not requested."""
    if device.type != "cpu" or device_map is not None:
        if stored:
            raise UnsupportedModel(
                f"{name} is in 8-bit integers, which are for CPUs; leave the device out, or use the original model"
            )
        raise InputError(f"quantize=int{bits} is for CPUs; leave it out, or the device for {name}")
    what = f"{name} is in 8-bit integers and" if stored else f"quantize=int{bits}"
    kind = UnsupportedModel if stored else InputError
    if dtype not in (None, torch.float32):
        raise kind(f"{what} computes in float32 between its integers; leave dtype out")
    if fixed_shapes:
        raise kind(f"{what} has no forwards of fixed shapes; leave fixed_shapes out")
    if bits == 4 and (why := without_numba()) is not None:
        raise InputError(f"{what} needs compiled products, and {why}; use quantize=int8")
    if not is_uniform():
        raise InputError(f"{what} needs kernels that treat all rows alike, and torch's here do not")


def obstacle(target: HFTarget, bits: int = 8) -> str | None:
    """Why a target cannot be quantised, if it cannot."""
    modules = modules_of(target.model)
    if modules is None or not _is_lean(target):
        share = share_of_products(target.model)
        if share < LEAST <= share_of_products(target.model, exactly=False):
            return "its linear layers are of a kind of their own, quantised already, or adapted"
        if share < LEAST:
            return (
                f"linear layers hold {share:.0%} of its weights, and the others (such as experts) would stay in floats"
            )
        return obstacle_to_doubles(target)
    linears = [part for layer in modules.layers for part in (*layer.qkv, layer.out, layer.gate, layer.up, layer.down)]
    if not all(type(linear) is nn.Linear for linear in (*linears, modules.head)):
        return "its weights are quantised already, or adapted"
    if (target.context_length or 0) > EXACT_LENGTH:
        return f"texts of {target.context_length} tokens are too long for it"
    return None


def _is_lean(target: HFTarget) -> bool:
    """Whether it is computed without transformers' code."""
    modules = modules_of(target.model)
    lean = target.switch is None and any(isinstance(path, Lean) for path in target.paths)
    return modules is not None and lean and all(is_silu(layer.act) for layer in modules.layers)


@torch.no_grad()
def _quantize(model: Any, bits: int, stored: Stored | None = None) -> None:
    """Replace every linear layer, one at a time, and widen what is left. A head has 8 bits at least: all of a text goes
    through it."""
    uses = Counter(weight.data_ptr() for _, weight in model.named_parameters(remove_duplicate=False))
    if modules_of(model) is not None:
        _join(model, bits, stored)
    left = [
        (lead, parent, name)
        for lead, parent in model.named_modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear
    ]
    for lead, parent, name in left:
        linear = getattr(parent, name)
        tied = uses[linear.weight.data_ptr()] > 1
        if bits == 4 and parent is not model:
            setattr(parent, name, Int4Linear(linear, tied=tied))
            continue
        kernel = Compiled if bits == 4 else None
        integers = _integers(stored, parent, lead, [name])
        setattr(parent, name, Int8Linear(linear, integers, tied=tied, kernel=kernel))
    for weight in model.parameters():
        weight.data = weight.data.to(torch.float32, copy=True)  # a view would keep the whole file in memory


def _join(model: Any, bits: int, stored: Stored | None) -> None:
    """Replace layers that read the same rows by parts of one."""
    for index, layer in enumerate(model.model.layers):
        lead = f"model.layers.{index}"
        for part, parent, names in (("self_attn", layer.self_attn, QKV), ("mlp", layer.mlp, GATE_UP)):
            found = _integers(stored, parent, f"{lead}.{part}", names)
            join(parent, names, Int4Linear if bits == 4 else lambda joint, found=found: Int8Linear(joint, found))  # type: ignore[misc]


def _integers(stored: Stored | None, parent: nn.Module, lead: str, names: Sequence[str]) -> Integers | None:
    """The checkpoint's integers of layers that are computed as one; a layer that is in floats there is rounded. None
    where all are."""
    keys = [f"{lead}.{name}".lstrip(".") for name in names]
    if stored is None or stored.layers.isdisjoint(keys):
        return None
    weights = [getattr(parent, name).weight for name in names]
    parts = [
        stored.integers(key, tuple(weight.shape)) if key in stored.layers else rounded(weight)
        for key, weight in zip(keys, weights, strict=True)
    ]
    return torch.cat([values for values, _ in parts]), torch.cat([scales for _, scales in parts])
