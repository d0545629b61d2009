"""Made-up heads in the layouts of public files, and what their tests have in common."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from enumeration import Coins
from paceline.drafters.networks import growth
from paceline.drafters.noise import foremost
from paceline.law import Distribution
from paceline.tree import DraftTree

Tensors = dict[str, torch.Tensor]
KINDS = (torch.float32, torch.float16, torch.bfloat16)


class Made:
    """Random numbers from a seed: sizes and tensors."""

    def __init__(self, seed: int) -> None:
        self._sizes = np.random.default_rng(seed)
        self._numbers = torch.Generator().manual_seed(seed)

    def size(self, least: int, most: int) -> int:
        return int(self._sizes.integers(least, most + 1))

    def chance(self) -> bool:
        return bool(self._sizes.integers(2))

    def kind(self) -> torch.dtype:
        return KINDS[self.size(0, 2)]

    def tensor(self, *sizes: int) -> torch.Tensor:
        return torch.randn(sizes, generator=self._numbers) / max(1, sizes[-1]) ** 0.5


def of_kind(tensors: Tensors, kind: torch.dtype) -> Tensors:
    return {name: weight.to(kind) for name, weight in tensors.items()}


def store(file: Path, tensors: Mapping[str, torch.Tensor], config: Mapping[str, Any]) -> Path:
    """A folder with these weights, by the ending of the file's name, and this configuration."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".safetensors":
        save_file({name: weight.clone() for name, weight in tensors.items()}, file)
    else:
        torch.save(dict(tensors), file)
    (file.parent / "config.json").write_text(json.dumps(config))
    return file.parent


class Opened:
    """Code that runs when a pickle is opened: it makes a file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self._file,)


def store_code(file: Path, mark: Path, config: Mapping[str, Any]) -> Path:
    """The same with a pickle that would make the file ``mark``."""
    torch.save({"0.0.linear.weight": Opened(mark)}, file)
    (file.parent / "config.json").write_text(json.dumps(config))
    with pytest.raises(pickle.UnpicklingError):
        torch.load(file, weights_only=True)
    return file.parent


def assert_same(found: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor]) -> None:
    """Tensor for tensor, bit by bit."""
    assert found.keys() == wanted.keys()
    for name, weight in wanted.items():
        assert found[name].dtype == weight.dtype, name
        assert torch.equal(found[name], weight), name


def draw_by(coins: Coins, patch: pytest.MonkeyPatch) -> None:
    """Let drafts that are drawn use coins that are enumerated."""

    def drawn(law: Distribution, count: int, exponentials: Any = None) -> Any:
        if exponentials is None:
            return foremost(law, count, exponentials)
        assert count == 1
        return np.array([coins.fresh(fractions(law))]), np.zeros(1)

    patch.setattr(growth, "foremost", drawn)


def fractions(law: Distribution) -> Distribution:
    """The same law with weights that add up exactly."""
    return Distribution(law.ids, np.array([Fraction(weight) for weight in law.weights.tolist()]))


def in_fractions(tree: DraftTree) -> DraftTree:
    """A draft whose laws are those that `draw_by` draws by."""
    return replace(tree, drawn={node: fractions(law) for node, law in tree.drawn.items()})
