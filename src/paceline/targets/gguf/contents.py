"""What a GGUF file says of its model, and where its tensors are, by the package gguf; no weights are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from paceline.errors import MissingPackage, UnsupportedModel
from paceline.targets.gguf.file import ORIGINAL, GgufFile, damaged, opened
from paceline.targets.gguf.kinds import Instead
from paceline.targets.gguf.metadata import FACTORS
from paceline.targets.hf import folder
from paceline.targets.memory import host_memory, must_fit

PACKAGES = ("gguf", "accelerate")
"""Packages that transformers' reader needs."""
ROPE, SCALING = "rope.", "scaling."
STRETCHES = {f"{SCALING}{key}" for key in ("type", "factor", "original_context_length", "finetuned")}
"""What is said of stretched positions that is understood here."""
LINEAR, OLD_FACTOR = "linear", "scale_linear"
"""How positions are stretched if a file has only a factor, and an older name of that."""


@dataclass(frozen=True)
class GgufContents:
    """What a file says of its model, and its tensors."""

    path: Path
    instead: Instead
    fields: Mapping[str, Any]
    tensors: Mapping[str, Any]
    smaller: str = "give --dtype bfloat16 or a smaller model"
    """How to need less memory."""

    @property
    def architecture(self) -> str:
        return str(self.fields.get("general.architecture", ""))

    def said(self, key: str, default: Any = None) -> Any:
        """A value of the metadata."""
        return self.fields[key].contents() if key in self.fields else default

    @property
    def stretch(self) -> tuple[str, float]:
        """How positions are stretched, and by which factor, as llama.cpp takes it where a file leaves some of it out;
        instead of how, what is said of it that is not understood here."""
        own = f"{self.architecture}.{ROPE}"
        said = {key.removeprefix(own): self.said(key) for key in self.fields if key.startswith(own + SCALING)}
        if strange := said.keys() - STRETCHES:
            return min(strange), 1.0
        kind = said.get(f"{SCALING}type", LINEAR)
        factor = said.get(f"{SCALING}factor", self.said(own + OLD_FACTOR, 0.0)) or 1.0
        return ("none" if kind == LINEAR and factor == 1 else kind), float(factor)

    @property
    def values(self) -> int:
        return sum(int(tensor.n_elements) for name, tensor in self.tensors.items() if name != FACTORS)

    def must_fit(self, size: float) -> None:
        """Refuse a model for which there is no memory, with so many bytes a weight."""
        must_fit(self.path, size * self.values, host_memory(), self.smaller)

    @classmethod
    def of(cls, file: GgufFile, instead: Instead) -> GgufContents:
        import gguf

        if len(file.parts) > 1:
            raise UnsupportedModel(
                f"{file.first} is the first of {len(file.parts)} files, and only one is read here; {instead.otherwise}"
            )
        try:
            reader = gguf.GGUFReader(file.first)
            tensors = {tensor.name: tensor for tensor in reader.tensors}
            found = cls(file.first, instead, reader.fields, tensors)
            fields = {**reader.fields, "general.architecture": found.said("general.architecture", "")}
            return cls(file.first, instead, fields, tensors)
        except MemoryError:
            raise
        except Exception as error:  # the reader finds damage in every way
            raise damaged(file.first, folder.in_one_line(error)) from None


def read_contents(path: Path, instead: Instead) -> GgufContents:
    """The header and the metadata; no weights are read."""
    file = opened(path)
    if lacking := [package for package in PACKAGES if find_spec(package) is None]:
        raise MissingPackage(
            f"{path} is a GGUF file: {instead.why}; {instead.so}, with pip install {' '.join(lacking)}; or {ORIGINAL}"
        )
    return GgufContents.of(file, instead)
