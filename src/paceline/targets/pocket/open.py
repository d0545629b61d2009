"""A bundled model by its name, with or without ballast, as a target."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from paceline.targets.device import HEADROOM, WantedDevice
from paceline.targets.hf.integers.target import IntegerTarget, check_place
from paceline.targets.hf.target import HFTarget
from paceline.targets.memory import host_memory, must_fit
from paceline.targets.place import free_memory
from paceline.targets.pocket.ballast import forbid, widened, widened_config
from paceline.targets.pocket.bundle import Bundle, read_bundle
from paceline.targets.pocket.kept import kept
from paceline.targets.pocket.llama import BundledForCausalLM, as_transformers
from paceline.targets.pocket.names import BALLAST_MARK
from paceline.targets.pocket.shape import Ballast, ModelShape, choose_shape, read_ballast
from paceline.targets.pocket.target import BundledTarget

if TYPE_CHECKING:
    from paceline.targets.hf.ranks.group import RankGroup

DTYPE = torch.float32
"""The type of a bundled model unless another is asked for. In half precision, which the files have, near ties could
change a text from run to run."""
STORED = torch.bfloat16
"""The type of the files; ballast is exact in it."""


def open_bundled(
    name: str,
    dtype: torch.dtype | None,
    where: WantedDevice,
    bits: int | None = None,
    fixed_shapes: bool | None = None,
    group: RankGroup | None = None,
) -> HFTarget:
    """The target of that name, or of this rank's part of it."""
    if bits is not None:
        check_place(name, dtype, where.for_integers(), bits=bits, fixed_shapes=fixed_shapes)
    dtype = dtype or DTYPE
    if BALLAST_MARK in name:
        return _with_ballast(name, dtype, where, bits, fixed_shapes, group)
    bundle = read_bundle(name)
    needed = sum(weight.numel() for weight in bundle.weights.values()) * dtype.itemsize
    device = where.for_integers() if bits is not None else where.for_floats(name, needed, dtype)
    weights = {part: weight.to(device=device, dtype=dtype) for part, weight in bundle.weights.items()}
    return _target(BundledForCausalLM(bundle.config, weights, bundle.generation), name, bits, fixed_shapes, group)


def _target(
    model: BundledForCausalLM, name: str, bits: int | None, fixed_shapes: bool | None, group: RankGroup | None
) -> HFTarget:
    """Probed where kernels are not those that the tests run on."""
    if group is not None:
        from paceline.targets.hf.ranks.target import over_ranks

        return over_ranks(as_transformers(model), group, name)
    if bits is not None:
        return IntegerTarget(model, name=name, bits=bits)
    if model.device.type == "cpu" and not fixed_shapes:
        return BundledTarget(model, name).pack()
    from paceline.targets.hf.probe import prepare

    return prepare(HFTarget(as_transformers(model), name=name, fixed_shapes=fixed_shapes).pack())


def stored(name: str) -> BundledForCausalLM:
    """The model of that name with the weights as its files store them, in 16 bits, for other formats of files."""
    if BALLAST_MARK not in name:
        bundle = read_bundle(name)
        return BundledForCausalLM(bundle.config, bundle.weights, bundle.generation)
    must_fit(name, read_ballast(name).size * STORED.itemsize * HEADROOM, host_memory(), "ask for less ballast")
    bundle, shape = _shaped(read_ballast(name))
    model = _built(bundle, shape, STORED, torch.device("cpu"))
    if model.lm_head.bias is not None:
        forbid(model.lm_head.bias, bundle.config.vocab_size)
    return model


def describe(name: str) -> str:
    """A name with ballast, its parameters and its shape, for people."""
    bundle, shape = _shaped(read_ballast(name))
    return (
        f"{name} ({shape.parameters(bundle.config) / 1e6:.1f}M parameters: {shape.layers} layers, "
        f"{shape.ratio * bundle.config.hidden_size} wide, MLP {shape.units}, {shape.vocab} ids)"
    )


def _shaped(ballast: Ballast) -> tuple[Bundle, ModelShape]:
    bundle = read_bundle(ballast.source)
    return bundle, choose_shape(ballast, bundle.config)


def _with_ballast(
    name: str,
    dtype: torch.dtype,
    where: WantedDevice,
    bits: int | None,
    fixed_shapes: bool | None,
    group: RankGroup | None,
) -> HFTarget:
    ballast = read_ballast(name)
    needed = ballast.size * dtype.itemsize
    device = where.for_integers() if bits is not None else where.for_floats(name, needed, dtype)
    must_fit(name, needed * HEADROOM, free_memory(device), "ask for less ballast")
    bundle, shape = _shaped(ballast)
    model = _built(bundle, shape, dtype, device)
    # The bias is set behind the probe, which compares differences with the spread of the logits.
    target = _target(model, name, bits, fixed_shapes, group)
    if model.lm_head.bias is not None:
        forbid(model.lm_head.bias, bundle.config.vocab_size)
    return target


def _built(bundle: Bundle, shape: ModelShape, dtype: torch.dtype, device: torch.device) -> BundledForCausalLM:
    if device.type == "cpu":
        weights = kept(bundle, shape, dtype, lambda: widened(bundle, shape, dtype, device))
    else:
        weights = widened(bundle, shape, dtype, device)
    return BundledForCausalLM(widened_config(bundle.config, shape), weights, bundle.generation)
