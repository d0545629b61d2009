"""Checkpoints whose weights are 8-bit integers already: they are used as they are, and not rounded again.

Two formats are read, both with a scale for each output channel (or one for all) and inputs rounded row by row as they
come. compressed-tensors has the integers in ``X.weight`` and the scales in ``X.weight_scale``, torchao has them in
``X._weight_qdata`` and ``X._weight_scale``. Anything else that these formats can say changes the arithmetic, and is
refused. Transformers builds the model, in floats and without their packages; `Stored` scales its weights, so that the
model can be probed, and keeps where the integers are until the layers are replaced.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING as METHODS

from paceline.errors import DamagedFile, UnsupportedModel
from paceline.targets.hf import folder
from paceline.targets.hf.folder import USE_ORIGINAL, WEIGHTS_FILE, in_one_line, weight_files
from paceline.targets.hf.integers.linear import Integers

ELSEWHERE = f"{USE_ORIGINAL}, or load this one with transformers and give it to paceline.load"
FIELDS = ("quantization_config", "compression_config")
"""Where a configuration says how the weights are quantised."""
INERT = {
    *("config_groups", "quant_method", "format", "quantization_status", "global_compression_ratio", "ignore"),
    *("sparsity_config", "version", "run_compressed", "dequantize", "use_optimized_inference"),
}
"""Fields of a compressed-tensors configuration that are looked at by themselves, or change nothing."""
INERT_OF_SCHEME = {"targets", "format"}
INERT_OF_NUMBERS = {"observer", "observer_kwargs", "scale_dtype", "zp_dtype"}
"""Fields that say how the scales were found. Their type is that of the tensors."""
IN_ORDER = (None, False, "weight", "static")
"""Orders of GPTQ that leave the columns of the file where they are."""
WEIGHTS = {"num_bits": (8,), "type": ("int",), "symmetric": (True,), "strategy": ("channel", "tensor")}
INPUTS = {"num_bits": (8,), "type": ("int",), "symmetric": (True,), "strategy": ("token",), "dynamic": (True,)}
DEFAULTS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "tensor", "dynamic": False}
"""The default of a field that is left out."""


@dataclass(frozen=True)
class Layout:
    """How a format names the tensors of a layer."""

    name: str
    integers: str
    scales: str
    zeros: str

    def check(self, name: str, fields: dict[str, Any]) -> None:
        """Refuse a configuration that asks for more than 8-bit integers by channel and row."""
        reason = _other_torchao(fields) if self.name == "torchao" else _other_scheme(fields)
        if reason:
            raise _refusal(name, reason)

    @property
    def package(self) -> str:
        """The package by which transformers opens the format."""
        return self.name.replace("-", "_")

    @property
    def renaming(self) -> dict[str, str]:
        """For transformers, which loads the integers as the weight."""
        return {} if self.integers == ".weight" else {self.integers.replace(".", r"\.") + "$": ".weight"}


LAYOUTS = {
    "compressed-tensors": Layout("compressed-tensors", ".weight", ".weight_scale", ".weight_zero_point"),
    "torchao": Layout("torchao", "._weight_qdata", "._weight_scale", "._weight_zero_point"),
}


def is_described(config: Any) -> bool:
    """Whether a configuration says how the weights are quantised."""
    return any(getattr(config, field, None) for field in FIELDS)


def layout_of(name: str, config: Any, check_place: Callable[[], None]) -> Layout | None:
    """The layout of a checkpoint in integers, for which ``check_place`` is called; None for every other one.

    Its configuration is left without what it says of the integers, so that transformers builds a model of floats. What
    is not computed here, or not in this place, is left to transformers where the format's own package is installed, and
    else refused. So is a method that transformers does not know: it would read the integers as the weights.
    """
    field = next((field for field in FIELDS if getattr(config, field, None)), "")
    fields: Any = getattr(config, field, None)
    if not isinstance(fields, dict):
        return None
    method = str(fields.get("quant_method"))
    layout = LAYOUTS.get(method)
    if layout is None:
        if not any(fields.get(f"load_in_{bits}bit") for bits in (4, 8)) and method not in METHODS:
            raise UnsupportedModel(
                f"{name} is quantised in a way that transformers does not know (quant_method {method}); {USE_ORIGINAL}"
            )
        return None
    try:
        layout.check(name, fields)
        check_place()
    except UnsupportedModel:
        if find_spec(layout.package) is None:
            raise
        return None
    delattr(config, field)
    return layout


def _refusal(name: str, reason: str) -> UnsupportedModel:
    return UnsupportedModel(f"{name} is quantised in a way that is not computed here ({reason}); {ELSEWHERE}")


def _other_scheme(fields: dict[str, Any]) -> str | None:
    """The requests of a compressed-tensors configuration beyond 8-bit integers by channel and row."""
    if (kind := fields.get("format")) != "int-quantized":
        return f"format {kind}"
    sparsity = fields.get("sparsity_config") or {}
    if (kind := sparsity.get("format", "dense") if isinstance(sparsity, dict) else sparsity) != "dense":
        return f"sparsity_config {kind}"
    if other := _others(fields, INERT):
        return other
    groups = fields.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        return "no config_groups"
    for group in groups.values():
        if not isinstance(group, dict):
            return f"config_groups with {group}"
        if (kind := group.get("format")) not in (None, "int-quantized"):
            return f"format {kind}"
        for part, wanted in (("weights", WEIGHTS), ("input_activations", INPUTS)):
            if reason := _other_numbers(group.get(part), wanted):
                return f"{part} with {reason}"
        if other := _others(group, {"weights", "input_activations", *INERT_OF_SCHEME}):
            return other
    return None


def _other_numbers(numbers: Any, wanted: dict[str, tuple[Any, ...]]) -> str | None:
    """The unsupported parts of how weights or inputs are rounded."""
    if not isinstance(numbers, dict):
        return "no integers"
    for field, known in wanted.items():
        value = numbers.get(field)
        value = DEFAULTS[field] if value is None else value
        if (value.lower() if isinstance(value, str) else value) not in known:
            return f"{field} {value}"
    if (order := numbers.get("actorder")) not in IN_ORDER:
        return f"actorder {order}"
    if (size := numbers.get("group_size")) not in (None, -1):
        return f"group_size {size}"
    return _others(numbers, {*wanted, *INERT_OF_NUMBERS, "actorder", "group_size"})


def _others(fields: dict[str, Any], known: set[str]) -> str | None:
    """The first field that is not known and says something."""
    return next((field for field, value in fields.items() if field not in known and not _is_empty(value)), None)


def _is_empty(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_empty(part) for part in value.values())
    return value is None or value is False or value == []


def _other_torchao(fields: dict[str, Any]) -> str | None:
    """The requests of a torchao configuration other than 8-bit integers in weights and inputs. The details stand with
    each tensor."""
    kind = fields.get("quant_type")
    default = kind.get("default") if isinstance(kind, dict) else None
    said = default.get("_type") if isinstance(default, dict) else kind
    return None if said == "Int8DynamicActivationInt8WeightConfig" else f"torchao's {said}"


class Stored:
    """The integers of a checkpoint, by the names of the layers. They are read from the files when they are asked
    for."""

    def __init__(self, name: str, folder: Path, layout: Layout) -> None:
        self._name = name
        self._layout = layout
        self._files: dict[str, Any] = {}
        """By tensor."""
        self._said: dict[str, str] = {}
        paths = [path for path in weight_files(folder) if path.suffix == ".safetensors"]
        if not paths:
            raise _refusal(name, f"without {WEIGHTS_FILE}")
        for path in paths:
            try:
                opened: Any = safe_open(path, framework="pt")
            except Exception as error:  # safetensors has its own error types
                raise DamagedFile(f"{path} cannot be read as weights: {in_one_line(error)}") from error
            self._files |= dict.fromkeys(opened.keys(), opened)
            self._said |= opened.metadata() or {}
        scaled = {key.removesuffix(layout.scales) for key in self._files if key.endswith(layout.scales)}
        self.layers = frozenset(layer for layer in scaled if layer + layout.integers in self._files)
        """Names of the layers in integers."""
        parts = (layout.integers, layout.scales, layout.zeros)
        self.tensors = frozenset(layer + part for layer in self.layers for part in parts)
        """Names of what these consist of."""

    def scale(self, model: nn.Module) -> None:
        """Turn a model into which the integers were loaded into the floats they stand for, and check what they say."""
        linears = {key: part for key, part in model.named_modules() if type(part) is nn.Linear}
        self._check_tensors(linears)
        others = {id(part.weight) for part in model.modules() if isinstance(part, nn.Embedding)}
        if tied := sorted(layer for layer in self.layers if id(linears[layer].weight) in others):
            raise _refusal(self._name, f"{folder.listed(tied)} tied to an embedding")
        with torch.no_grad():
            for layer in self.layers:
                weight = linears[layer].weight
                integers, scales = self.integers(layer, tuple(weight.shape))
                weight.copy_(integers.float().mul_(scales[:, None]))

    def integers(self, layer: str, shape: tuple[int, ...]) -> Integers:
        """A layer's integers, and a scale for each output."""
        values = self._tensor(layer + self._layout.integers)
        scales = self._tensor(layer + self._layout.scales)
        if tuple(values.shape) != shape or scales.numel() not in (1, shape[0]):
            raise _refusal(self._name, f"{layer} with scales of other shapes than a channel's")
        scales = scales.float().reshape(-1).expand(shape[0]).contiguous()
        if not bool((scales.isfinite() & (scales >= 0)).all()):
            raise DamagedFile(f"{self._name} is damaged: the scales of {layer} are no positive numbers")
        if bool((values[scales == 0] != 0).any()):
            raise DamagedFile(f"{self._name} is damaged: scales of {layer} are 0 beside integers that are not")
        return values, scales

    def left(self, extra: list[str]) -> list[str]:
        """Those of the tensors that the model has no place for that are none of a layer in integers."""
        mine = (self._layout.scales, self._layout.zeros)
        return [key for key in extra if not any(key.endswith(e) and key.removesuffix(e) in self.layers for e in mine)]

    def note(self, model: nn.Module) -> str:
        """A note for the user about these integers."""
        kept = [key for key, part in model.named_modules() if type(part) is nn.Linear and key not in self.layers]
        rounded = f"; {folder.listed(kept)}, in floats there, rounded at load" if kept else ""
        return f"computed in the checkpoint's own 8-bit integers ({self._layout.name}){rounded}"

    def _tensor(self, key: str) -> torch.Tensor:
        found: torch.Tensor = self._files[key].get_tensor(key)
        return found

    def _check_tensors(self, linears: dict[str, nn.Linear]) -> None:
        """Refuse integers without scales, scales of other parts than linear layers, and tensors that say more."""
        layout = self._layout
        integers = {layer + layout.integers for layer in self.layers}
        if lacking := sorted(key for key in self._files if key not in integers and self._is_integer(key)):
            raise _refusal(self._name, f"no scales for {folder.listed(lacking)}")
        if others := sorted(self.layers - linears.keys()):
            raise _refusal(self._name, f"no linear layer {folder.listed(others)}")
        if not self.layers:
            raise _refusal(self._name, "no layer in integers")
        for layer in sorted(self.layers):
            if self._files[layer + layout.integers].get_slice(layer + layout.integers).get_dtype() != "I8":
                raise _refusal(self._name, f"{layer} not in 8-bit integers")
            self._check_layer(layer, {layer + part for part in (layout.integers, layout.scales, layout.zeros, ".bias")})

    def _is_integer(self, key: str) -> bool:
        """Whether a tensor is a matrix of integers, signed or not."""
        part = self._files[key].get_slice(key)
        is_matrix = len(part.get_shape()) == 2 and not key.endswith(self._layout.zeros)
        return bool(is_matrix and part.get_dtype().startswith(("I", "U")))

    def _check_layer(self, layer: str, known: set[str]) -> None:
        zeros = layer + self._layout.zeros
        if zeros in self._files and bool(self._tensor(zeros).any()):
            raise _refusal(self._name, f"{layer} with other zeros than 0")
        if more := sorted(key for key in self._beside(layer) if key not in known):
            raise _refusal(self._name, f"tensors {folder.listed(more)}")
        if self._layout.name == "torchao" and not _is_plain(self._said.get(f"{layer}.weight", "")):
            raise _refusal(self._name, f"{layer} with inputs that are not rounded by row")

    def _beside(self, layer: str) -> Iterator[str]:
        """The tensors of a layer without sublayers."""
        return (key for key in self._files if key.rpartition(".")[0] == layer)


def _is_plain(said: str) -> bool:
    """Whether torchao's description of a tensor asks for inputs that are rounded by row, around zero."""
    try:
        found = json.loads(said)
        inputs = found["_data"]["act_quant_kwargs"]["_data"]
        kinds = found["_type"], inputs["granularity"]["_type"], inputs["mapping_type"]["_data"]
    except (ValueError, LookupError, TypeError):
        return False
    return kinds == ("Int8Tensor", "PerRow", "SYMMETRIC") and not inputs.get("reduce_range")
