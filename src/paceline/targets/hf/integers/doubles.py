"""Transformers' own forward with the floats between two products in doubles.

A row's floats differ in their last bits with what is computed beside it. In float32 that shows: a value on the border
between two integers falls to the other side in one forward of some hundred. In doubles it takes a value that is within
2^-45 of a border, which no text of our tests has met.

Model files round to float32 in places ("for precision"), some functions do not mix types, and some round by the place
of a number in memory. `InDoubles` mends all three while a forward runs: what is a double stays one, functions that mix
badly get doubles only, and those that round by place are computed in doubles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

BY_PLACE = frozenset(
    {
        *("cos", "sin", "exp", "exp_", "expm1", "sigmoid", "sigmoid_", "silu", "silu_", "softplus", "tanh", "tanh_"),
        *(
            "gelu",
            "erf",
            "softmax",
            "log_softmax",
            "logsigmoid",
            "logsumexp",
            "log",
            "log1p",
            "pow",
            "__pow__",
            "rsqrt",
        ),
        *("mean", "sum", "prod", "cumsum", "var", "std", "norm", "normalize", "rms_norm", "layer_norm"),
    }
)
"""Functions whose float32 depends on where a number stands, or on the order of a sum."""
OF_ONE_TYPE = frozenset(
    {
        *("matmul", "__matmul__", "__rmatmul__", "bmm", "mm", "baddbmm", "addmm", "einsum", "linear", "conv1d", "dot"),
        *("scaled_dot_product_attention", "lerp", "scatter", "index_add", "index_add_"),
    }
)
"""Functions that take tensors of one type only."""
ROUNDING = frozenset({"to", "type", "type_as", "float"})
"""Functions that may be told to give float32."""
MENDED = BY_PLACE | OF_ONE_TYPE | ROUNDING | {"embedding"}


class InDoubles(TorchFunctionMode):
    """While this is entered, embeddings are doubles, and what is computed from doubles is."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name, kwargs = func.__name__, kwargs or {}
        if name not in MENDED:
            return func(*args, **kwargs)
        if name == "embedding":
            return func(*args, **kwargs).double()
        if name not in ROUNDING:
            args = tuple(map(_widened, args))
        elif not _is_double(args[0]):
            return func(*args, **kwargs)
        elif name == "float" or (name == "type_as" and args[1].dtype is torch.float32):
            return args[0]
        else:
            args = tuple(_of_doubles(value) for value in args)
        return func(*args, **{key: _widened(_of_doubles(value)) for key, value in kwargs.items()})


def _is_double(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype is torch.float64


def _of_doubles(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


def _widened(value: Any) -> Any:
    """Arguments in doubles."""
    if isinstance(value, torch.Tensor):
        return value.double() if value.dtype is torch.float32 else value
    return type(value)(map(_widened, value)) if type(value) in (tuple, list) else value
