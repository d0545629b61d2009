"""The cost of heads of several shapes: bytes, the time of a draft beside a plain forward, and the known text."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np
import torch

from paceline.context import Context, Ending
from paceline.drafters import Ask, Budget
from paceline.drafters.networks.fitting import FittedHead
from paceline.drafters.networks.redrafter import ReDrafter
from paceline.drafters.networks.redrafter.drafter import HeadState
from paceline.drafters.networks.redrafter.head import HeadShape, RecurrentHead
from paceline.law import Sampling
from paceline.targets.base import Request, Target
from paceline.targets.place import named_dtype
from paceline_make.heads.data import Ids

DRAFTS = 15


@dataclass(frozen=True)
class ShapeCost:
    """One shape of a head for one model."""

    name: str
    shape: HeadShape
    parameters: int
    share: float | None
    """Of the model's parameters."""
    bytes: int
    """On disk: bfloat16, and with int8 the output in 8-bit integers."""
    milliseconds: float
    """A draft of width 4 and length 4."""
    rounds: float
    """The same as a share of a plain forward."""
    coverage: float | None
    """Of the tokens of running text, those that it knows; None without a text."""


def shapes(width: int, vocab_size: int) -> Iterator[tuple[str, HeadShape, bool]]:
    """The public code's shape, and ways to make it cheaper; whether the output is stored in integers."""
    own = HeadShape(width=width, vocab_size=vocab_size, exit=width)
    yield "exit of twice the width, as published", replace(own, exit=2 * width), False
    yield "exit of the width", own, False
    yield "the same, output in int8", own, True
    yield "rank an eighth of the width", replace(own, rank=max(1, width // 8)), False
    for part in (2, 4):
        yield f"1/{part} of the vocabulary", replace(own, kept=max(1, vocab_size // part)), False


def costs(target: Target, text: Ids | None = None) -> Iterator[ShapeCost]:
    """Of every shape, with heads that were never trained: the time does not depend on that."""
    width = int(target.embed(torch.zeros(1, dtype=torch.int64, device=target.device)).shape[-1])
    plain = _plain_seconds(target)
    whole = getattr(target, "parameters", None)
    for name, shape, int8 in shapes(width, target.vocab_size):
        head = RecurrentHead(shape).to(device=target.device, dtype=_type_of(target)).requires_grad_(False)
        took = _draft_seconds(head, target)
        parameters = head.parameters_in_all
        output = head.lm_head[shape.blocks]
        integers = sum(weight.numel() for weight in output.parameters()) if int8 else 0
        yield ShapeCost(
            name,
            shape,
            parameters,
            parameters / whole if whole else None,
            2 * parameters - integers,
            1e3 * took,
            took / plain,
            None if text is None else coverage(text, shape),
        )


def coverage(text: Ids, shape: HeadShape) -> float:
    """With the most frequent tokens of this very text, so at best."""
    counts = np.sort(np.bincount(text, minlength=shape.vocab_size))[::-1]
    return float(counts[: shape.known].sum() / max(1, counts.sum()))


def _type_of(target: Target) -> torch.dtype | None:
    return torch.float32 if target.exact else named_dtype(target.dtype)


def _draft_seconds(head: RecurrentHead, target: Target) -> float:
    drafter = ReDrafter()
    drafter.use(FittedHead(head), target, target.layers)  # beside a compiled target in integers, as it will draft
    context = Context([1, 2, 3], Sampling(temperature=0.8), Ending(max_new_tokens=9))
    hidden = torch.randn(head.shape.width, generator=torch.Generator().manual_seed(0))
    state = HeadState(context, hidden.to(device=target.device, dtype=_type_of(target)), len(context))
    return _seconds(lambda: drafter.propose([Ask(state, Budget(16, 4))]))


def _plain_seconds(target: Target) -> float:
    rows = target.open(64)
    tokens = np.arange(16) % target.vocab_size
    target.score([Request.of_prompt(rows, tokens)])
    rows.keep(range(16))

    def forward() -> None:
        (scores,) = target.score([Request(rows, tokens[:1].copy(), np.array([-1]))])
        scores.choice(-1)
        rows.keep([])

    try:
        return _seconds(forward)
    finally:
        rows.close()


def _seconds(act: Any) -> float:
    act()
    times = []
    for _ in range(DRAFTS):
        started = time.perf_counter()
        act()
        times.append(time.perf_counter() - started)
    return median(times)
