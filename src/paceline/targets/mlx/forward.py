"""One forward of a model's own code over the rows of several requests, which lie behind one another.

The model is given one object for each layer in place of mlx-lm's `KVCache`. It says where rows are written, which keys
they see, and where they stand: a row's position is its depth in its own text, so the rotary modules rotate each row by
its own position.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NoReturn

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from numpy.typing import NDArray

from paceline.targets.base import Request
from paceline.targets.mlx.rows import MLXRows


class PositionsCounted(TypeError):
    """A model's code counts positions itself, so rows cannot have positions of their own."""


def _refuse(*_: Any) -> NoReturn:
    raise PositionsCounted("the model counts positions on from the length of its cache")


class RowOffset(int):
    """The offset of rows that have positions of their own. Rotary modules read `positions`; other code that counts on
    from it would be wrong for siblings, and fails."""

    positions: mx.array
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __floordiv__ = __mod__ = __neg__ = _refuse

    @classmethod
    def of(cls, positions: NDArray[np.int64]) -> RowOffset:
        offset = cls(int(positions[0]))
        offset.positions = mx.array(positions.astype(np.int32))
        return offset


class RotaryRows:
    """Stands for a rotary module, and rotates each row of ``[1, heads, n, width]`` by its own position if asked to. MLX
    knows one offset for each text of a batch, so rows are turned into texts of one row."""

    def __init__(self, module: nn.Module) -> None:
        self._module: Any = module

    def __call__(self, rows: mx.array, *args: Any, **kwargs: Any) -> mx.array:
        offset = kwargs.get("offset", args[0] if args else 0)
        if not isinstance(offset, RowOffset):
            rotated: mx.array = self._module(rows, *args, **kwargs)
            return rotated
        if rows.ndim != 4 or rows.shape[0] != 1 or rows.shape[2] != offset.positions.size:
            raise PositionsCounted("rows are rotated in another order than they are given")
        others = {name: value for name, value in kwargs.items() if name != "offset"}
        apart = rows.transpose(2, 1, 0, 3)
        turned: mx.array = self._module(apart, *args[1:], offset=offset.positions, **others)
        return turned.transpose(2, 1, 0, 3)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def rotate_by_row(model: nn.Module) -> list[str]:
    """Put `RotaryRows` in place of a model's rotary modules; returns the classes of these."""
    found = []
    for module in model.modules():
        for name, child in module.children().items():
            if isinstance(child, nn.Module) and _is_rotary(child):
                module[name] = RotaryRows(child)
                found.append(type(child).__name__)
    return found


def _is_rotary(module: nn.Module) -> bool:
    name = type(module).__name__.lower()
    return "rope" in name or "rotary" in name


class Packing:
    """The rows of the requests of one forward: where they are written, stand, and what they see."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._requests = requests
        self._masks: dict[int | None, mx.array] = {}
        self.offset: int = requests[0].rows.committed + requests[0].held
        if not self._in_line:
            self.offset = RowOffset.of(np.concatenate([request.positions for request in requests]))

    @cached_property
    def _in_line(self) -> bool:
        """Whether the rows are the next ones of one text, so that the model's code can count and mask them itself."""
        return len(self._requests) == 1 and self._requests[0].is_chain

    def store(self, layer: int, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Write a layer's fresh rows; returns those that it attends to, of a text behind another."""
        found, start = list[tuple[mx.array, mx.array]](), 0
        for request in self._requests:
            rows, end = request.rows, start + len(request.tokens)
            assert isinstance(rows, MLXRows), "a target scores rows that it opened"
            written = rows.write(layer, keys[:, :, start:end], values[:, :, start:end])
            found.append(written.first(request.end))
            start = end
        if len(found) == 1:
            return found[0]
        every, each = zip(*found, strict=True)
        return mx.concatenate(every, axis=2), mx.concatenate(each, axis=2)

    def mask(self, window: int | None, *, array: bool) -> mx.array | str | None:
        """As models expect it of mlx-lm's caches: nothing, a word, or which keys each row sees ``[n, keys]``."""
        if window is not None and all(request.end <= window for request in self._requests):
            window = None
        if self._in_line and window is None and not array:
            return "causal" if len(self._requests[0].tokens) > 1 else None
        if window not in self._masks:
            self._masks[window] = mx.array(self._seen(window))
        return self._masks[window]

    def _seen(self, window: int | None) -> NDArray[np.bool_]:
        blocks = [_seen(request, window) for request in self._requests]
        if len(blocks) == 1:
            return blocks[0]
        heights, widths = (np.cumsum([0, *(block.shape[axis] for block in blocks)]) for axis in (0, 1))
        seen = np.zeros((heights[-1], widths[-1]), bool)
        for number, block in enumerate(blocks):
            seen[heights[number] : heights[number + 1], widths[number] : widths[number + 1]] = block
        return seen


def _seen(request: Request, window: int | None) -> NDArray[np.bool_]:
    """Which of its text's rows, cached and tentative, each fresh row sees ``[n, keys]``."""
    seen = np.ones((len(request.tokens), request.end), bool)
    seen[:, request.start :] = request.visible
    if window is not None:
        keys = np.concatenate([np.arange(request.start), request.tentative_positions])
        seen &= request.positions[:, None] - keys[None] < window
    return seen


class LayerCache:
    """What a layer gets in place of mlx-lm's cache."""

    def __init__(self, packing: Packing, layer: int, window: int | None) -> None:
        self._packing, self._layer, self._window = packing, layer, window

    @property
    def offset(self) -> int:
        return self._packing.offset

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        return self._packing.store(self._layer, keys, values)

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> mx.array | str | None:
        return self._packing.mask(window_size or self._window, array=return_array)
