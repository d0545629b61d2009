"""Raw rows of logits in full precision, and what normalises them.

Tensors are only asked for their own methods, so this module does not load torch.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def full_precision(logits: "torch.Tensor") -> "torch.Tensor":
    """In float32 at least: half precision is widened, wider rows come back as they are, and uncopied."""
    assert logits.is_floating_point(), f"{logits.dtype} does not hold logits"
    return logits.float() if logits.dtype.itemsize < 4 else logits


def log_normalizer(logits: "torch.Tensor") -> "torch.Tensor":
    """``log Z`` of every row: a logit minus it is the log-probability of its token."""
    return full_precision(logits).logsumexp(dim=-1)


def log_probabilities(logits: "torch.Tensor") -> "torch.Tensor":
    return full_precision(logits).log_softmax(dim=-1)
