"""The size of a ballast, read from its name, and the model shape that comes closest to it.

The width must be a power of 4 times the small model's: then its square root is a power of 2, and rescaling a norm by it
is exact in every floating-point type. So the size is met by depth and by the width of the MLPs, with proportions like
those of models of that size.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from paceline.errors import InputError
from paceline.targets.pocket.llama import Config
from paceline.targets.pocket.names import BALLAST_MARK, POCKET_NAMES, close_name

RATIOS = (1, 4, 16, 64)
MLP_STEP = 32
CLOSE_ENOUGH = 0.01
SUFFIXES = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}
REFERENCE = 500e6
REFERENCE_DEPTH = 24
"""Layers of models with half a billion parameters; depth grows with the cube root of size."""
MLP_WIDTHS = 5.5
"""The usual width of an MLP, as a multiple of the residual stream's."""


@dataclass(frozen=True)
class Ballast:
    """The parts of a name like ``pocket+ballast:500M/150k``."""

    name: str
    source: str
    size: int
    vocab: int | None


@dataclass(frozen=True)
class ModelShape:
    """The widened model: how much wider its residual stream is, its layers, MLP units and ids."""

    ratio: int
    layers: int
    units: int
    vocab: int

    def parameters(self, config: Config) -> int:
        """The number of weights, the tied matrix of embedding and head counted once, without the head's bias."""
        width = self.ratio * config.hidden_size
        heads = 2 * (config.num_attention_heads + config.num_key_value_heads) * self.ratio
        layer = heads * config.head_dim * width + 3 * width * self.units + 2 * width
        return int(self.vocab * width + self.layers * layer + width)


def read_ballast(name: str) -> Ballast:
    """The parts of a name that holds `BALLAST_MARK`."""
    source, _, rest = name.partition(BALLAST_MARK)
    if source not in POCKET_NAMES:
        close = close_name(source)
        hint = f"did you mean {close!r}?" if close else f"only {', '.join(POCKET_NAMES)} can carry it"
        raise InputError(f"no bundled model {source!r} to put ballast on; {hint}")
    found = re.fullmatch(r":([\d.]+[kmb]?)(?:/([\d.]+[kmb]?))?", rest, re.IGNORECASE)
    size = _count(found[1]) if found else None
    vocab = _count(found[2]) if found and found[2] else None
    if found is None or size is None or (found[2] and vocab is None):
        raise InputError(
            f"cannot read a size in {name!r}; write {source}{BALLAST_MARK}:SIZE or {source}{BALLAST_MARK}:SIZE/VOCAB, "
            f"for example {source}{BALLAST_MARK}:500M or {source}{BALLAST_MARK}:1.5B/150k"
        )
    return Ballast(name, source, size, vocab)


def _count(text: str) -> int | None:
    unit = text[-1].lower() if text[-1].isalpha() else ""
    try:
        number = float(text.removesuffix(text[-1]) if unit else text)
    except ValueError:
        return None
    return round(number * SUFFIXES[unit]) or None


def choose_shape(ballast: Ballast, config: Config) -> ModelShape:
    """The best proportioned shape within one percent of the size that was asked for."""
    vocab = ballast.vocab or config.vocab_size
    if vocab < config.vocab_size:
        raise InputError(
            f"a vocabulary of {vocab} in {ballast.name!r} is smaller than the {config.vocab_size} ids that "
            f"{ballast.source} writes with; give that many or more"
        )
    smallest = ModelShape(1, config.num_hidden_layers, config.intermediate_size, vocab).parameters(config)
    if ballast.size < smallest * (1 - CLOSE_ENOUGH):
        raise InputError(
            f"{ballast.size:,} parameters in {ballast.name!r} do not hold {ballast.source}"
            f"{f' with {vocab:,} ids' if ballast.vocab else ''}, which has {smallest:,}; ask for more"
        )
    shapes = list(_close_shapes(ballast.size, vocab, config))
    if not shapes:
        raise InputError(f"no ballast comes within {CLOSE_ENOUGH:.0%} of the size in {ballast.name!r}; ask for another")
    return min(shapes, key=lambda shape: _oddness(shape, ballast.size, config))


def real_layers(layers: int, real: int) -> dict[int, int]:
    """The places of the small model's layers in the large one: large number -> small number."""
    return {(number + 1) * layers // real - 1: number for number in range(real)}


def _close_shapes(size: int, vocab: int, config: Config) -> Iterator[ModelShape]:
    least = config.intermediate_size
    for ratio in RATIOS:
        for layers in range(config.num_hidden_layers, 201):
            bare = ModelShape(ratio, layers, 0, vocab).parameters(config)
            per_unit = 3 * ratio * config.hidden_size * layers
            units = max(least, round((size - bare) / per_unit / MLP_STEP) * MLP_STEP)
            shape = ModelShape(ratio, layers, units, vocab)
            if abs(shape.parameters(config) - size) <= CLOSE_ENOUGH * size:
                yield shape


def _oddness(shape: ModelShape, size: int, config: Config) -> float:
    """The distance from the proportions of common models, in depth and in MLP width. Depth counts twice, because it
    decides how many small operations a forward has."""
    depth = REFERENCE_DEPTH * (size / REFERENCE) ** (1 / 3)
    widths = shape.units / (shape.ratio * config.hidden_size)
    return 2 * math.log(shape.layers / depth) ** 2 + math.log(widths / MLP_WIDTHS) ** 2
