"""Transformers' own forward with the floats between two products in doubles.

The last bits of a row's floats depend on what is computed beside it. In float32 that shows: a value near the border
between two integers falls to the other side, in a fifth of the rows of our tests. In doubles it has to be within some
2^-45 of the border. Products themselves are the same bit by bit: a sum of integers and a step, both float32, multiply
exactly in a double. So a difference does not pass from one layer to the next.

Model files round to float32 in places, some functions do not take two types, and some round by the place of a number in
memory. `InDoubles` changes all three while a forward runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

BY_PLACE = frozenset(
    {
        *("cos", "sin", "tanh", "sigmoid", "silu", "mish", "elu", "selu", "gelu", "glu", "erf", "softplus"),
        *("exp", "exp2", "expm1", "log", "log2", "log1p", "log_sigmoid", "logaddexp", "logsumexp", "special_expit"),
        *("softmax", "log_softmax", "pow", "__rpow__", "rsqrt", "mean", "sum", "prod", "cumsum", "cumprod"),
        *("var", "std", "var_mean", "norm", "linalg_norm", "linalg_vector_norm", "normalize", "rms_norm", "layer_norm"),
    }
)
"""Functions whose float32 depends on where a number stands, or on the order of a sum."""
OF_ONE_TYPE = frozenset(
    {
        *("matmul", "__matmul__", "__rmatmul__", "bmm", "mm", "baddbmm", "addmm", "einsum", "linear", "conv1d", "dot"),
        *("scaled_dot_product_attention", "lerp", "scatter", "scatter_", "index_add", "index_add_", "mv", "addmv"),
        *("conv2d", "group_norm"),
    }
)
"""Functions that take tensors of one type only."""
ROUNDING = frozenset({"to", "type", "type_as", "float"})
"""Functions that may be told to give float32."""
NARROW = (torch.float32, torch.bfloat16, torch.float16)
MENDED = BY_PLACE | OF_ONE_TYPE | ROUNDING | {"embedding"}


class InDoubles(TorchFunctionMode):
    """In this context embeddings give doubles, and functions of doubles give doubles."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name, kwargs = func.__name__, kwargs or {}
        if name not in MENDED:
            return func(*args, **kwargs)
        if name == "embedding":
            return func(*args, **kwargs).double()
        if "out" in kwargs:
            return func(*args, **kwargs)
        if name.endswith("_") and not name.endswith("__"):  # what is written to keeps its type
            written = args[0].dtype
            return func(*(_of_type(written, value) for value in args), **kwargs)
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


def _of_type(kind: torch.dtype, value: Any) -> Any:
    return value.to(kind) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def _of_doubles(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


def _widened(value: Any) -> Any:
    """Arguments in doubles."""
    if isinstance(value, torch.Tensor):
        return value.double() if value.dtype in NARROW else value
    return type(value)(map(_widened, value)) if type(value) in (tuple, list) else value
