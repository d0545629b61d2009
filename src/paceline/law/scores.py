"""Logits as the law reads them, and what normalises them.

A target gives logits in its own library's arrays. In the host's memory they are read as numpy's, uncopied, by way of
DLPack; only torch's may stay on another device, where the law's other half reads them. Tensors are only asked for their
own methods, so this module does not load torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from paceline.errors import InputError

if TYPE_CHECKING:
    import torch

Array: TypeAlias = Any
"""Numbers in their target's own library: numpy's, torch's, or of any other that lends its memory (``__dlpack__``)."""
Row: TypeAlias = NDArray[np.floating[Any]]
Scored: TypeAlias = "Row | torch.Tensor"
"""What `full_precision` makes of logits."""

HOST_DEVICE = "cpu"


def full_precision(logits: Array) -> Scored:
    """In float32 at least; what is that wide already is not copied. Numpy's, unless a tensor is on another device."""
    if hasattr(logits, "detach"):  # of torch, which alone has half precision that numpy does not know
        wide = logits.detach().float() if logits.dtype.itemsize < 4 else logits.detach()
        return wide.numpy() if wide.device.type == HOST_DEVICE else wide  # type: ignore[no-any-return]
    rows = logits if isinstance(logits, np.ndarray) else _lent(logits)
    assert rows.dtype.kind == "f", f"{rows.dtype} does not hold logits"
    return rows.astype(np.float32) if rows.itemsize < 4 else rows


def _lent(logits: Array) -> NDArray[Any]:
    """Another library's array as numpy's, uncopied."""
    try:
        return np.from_dlpack(logits)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(
            f"logits in a {type(logits).__module__}.{type(logits).__name__} cannot be read ({error}); the target's "
            "adapter must hand over float32 rows in the host's memory"
        ) from None


def far(logits: Array) -> bool:
    """Whether these are on another device than the host."""
    return hasattr(logits, "detach") and logits.device.type != HOST_DEVICE


def fetched(scores: Scored) -> Row:
    """In the host's memory."""
    return scores if isinstance(scores, np.ndarray) else scores.numpy(force=True)


def own_copy(scores: Scored) -> Scored:
    """To be written to."""
    return scores.copy() if isinstance(scores, np.ndarray) else scores.clone()


def log_normalizer(logits: torch.Tensor) -> torch.Tensor:
    """``log Z`` of every row: a logit minus it is the log-probability of its token."""
    return (logits.float() if logits.dtype.itemsize < 4 else logits).logsumexp(dim=-1)


def log_probabilities(logits: Array) -> Row:
    """The logarithms of every row's probabilities, on the host."""
    rows = fetched(full_precision(logits))
    light = rows - rows.max(axis=-1, keepdims=True)
    masses = np.exp(light).sum(axis=-1, keepdims=True, dtype=np.float64)
    return light - np.log(masses).astype(rows.dtype)  # type: ignore[no-any-return]
