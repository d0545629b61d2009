"""One product of rows with a weight in 8-bit integers, shared by the threads."""

from __future__ import annotations

import numpy as np
import torch

from paceline.targets.hf.fused import layout as at
from paceline.targets.hf.fused.team import TEAM
from paceline.targets.hf.fused.vector import MULTIPLY

VALUES = MULTIPLY.values
"""Numbers of inputs are multiples of this."""


def product(rows: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Scaled sums ``[n, outputs]`` of rows ``[n, inputs]`` of whole numbers."""
    shorts = rows.to(torch.int16)
    outputs, inputs = weight.shape
    found, steps = torch.empty(len(rows), outputs), torch.ones(len(rows))
    job = np.zeros(at.JOB, np.int64)
    job[at.KIND], job[at.THREADS], job[at.COUNT] = at.PRODUCT, torch.get_num_threads(), len(rows)
    job[at.WIDTH], job[at.VOCABULARY] = inputs, outputs
    job[at.WEIGHT], job[at.SCALES] = weight.data_ptr(), scales.data_ptr()
    job[at.SHORTS], job[at.STEPS], job[at.LOGITS] = shorts.data_ptr(), steps.data_ptr(), found.data_ptr()
    TEAM.run(job)
    return found
