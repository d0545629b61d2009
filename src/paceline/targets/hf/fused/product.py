"""One product of rows with a weight in 8-bit integers, shared by the threads."""

from __future__ import annotations

import mmap
from contextlib import suppress

import numpy as np
import torch

from paceline.targets.hf.fused import layout as at
from paceline.targets.hf.fused.team import TEAM

PAGE = 1 << 21
"""Bytes of a large page."""


def in_large_pages(weight: torch.Tensor) -> torch.Tensor:
    """The weight in memory that is read fast from end to end: of small pages a processor forgets where they lie."""
    if weight.numel() < PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return weight.contiguous()
    room = mmap.mmap(-1, weight.numel() + PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a system without them
        room.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(room, np.int8)
    first = -whole.ctypes.data % PAGE
    moved = torch.from_numpy(whole[first : first + weight.numel()]).view(weight.shape)
    return moved.copy_(weight)


def product(rows: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Scaled sums ``[n, outputs]`` of rows ``[n, inputs]`` of whole numbers."""
    shorts = rows.to(torch.int16).contiguous()
    outputs, inputs = weight.shape
    found, steps = torch.empty(len(rows), outputs), torch.ones(len(rows))
    job = np.zeros(at.JOB, np.int64)
    job[at.KIND], job[at.THREADS], job[at.COUNT] = at.PRODUCT, torch.get_num_threads(), len(rows)
    job[at.WIDTH], job[at.VOCABULARY] = inputs, outputs
    job[at.WEIGHT], job[at.SCALES] = weight.data_ptr(), scales.data_ptr()
    job[at.SHORTS], job[at.STEPS], job[at.LOGITS] = shorts.data_ptr(), steps.data_ptr(), found.data_ptr()
    TEAM.run(job)
    return found
