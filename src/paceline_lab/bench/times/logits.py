"""Seconds behind a forward: reading the best tokens from rows of logits, and the law with the choice of a token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count

import numpy as np
import torch

from paceline.law import KeyedDice, Law, Noise, Sampling
from paceline.law.settings import of_kernel
from paceline.law.table import Acts
from paceline.targets.base import Request, Want
from paceline.targets.replay import ReplayRows
from paceline.targets.scores import Scores
from paceline.tree import EMPTY, DraftTree
from paceline_lab.bench.times.made_up import BEST
from paceline_lab.bench.times.steps import TimedAct

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
HISTORY = 2000
"""Tokens before a choice, which penalties look at."""
WARM_TEXT = Sampling(temperature=0.8)
CUTS = {
    f"t=0.8 {row.label} {row.tried[0]}": {row.name: row.tried[0]} for row in WARM_TEXT.rows if row.acts is Acts.AS_CUT
}
PENALTIES = {row.name: row.tried[0] for row in WARM_TEXT.rows if row.acts is Acts.ON_LOGITS and row.kind}
SETTINGS = {
    "greedy": Sampling(),
    **{name: replace(WARM_TEXT, **cut) for name, cut in CUTS.items()},
    "t=1": Sampling(temperature=1.0),
    "t=0.8 top-p 0.9, penalties": replace(of_kernel(0.8, "mass"), **PENALTIES),
}


def readings(rows: Sequence[int], vocabulary: int) -> Iterator[TimedAct]:
    """The best tokens and the normaliser of each number of rows, by dtype."""
    random = torch.Generator().manual_seed(0)
    for name, dtype in DTYPES.items():
        logits = (3 * torch.randn(max(rows), vocabulary, generator=random)).to(dtype)
        for number in rows:
            yield TimedAct("read", partial(_read, logits[:number]), dtype=name, rows=number)


def _read(logits: torch.Tensor) -> None:
    chain = DraftTree.chain([0] * (len(logits) - 1)) if len(logits) > 1 else EMPTY
    Scores(Request.of_tree(ReplayRows(), 0, chain, Want(top=BEST)), logits).top(BEST)


def choices(vocabulary: int) -> Iterator[TimedAct]:
    """The law per emitted token, from logits to the choice, by settings and by how certain a row of logits is; each
    time with the noise of another position."""
    tokens = np.random.default_rng(1).integers(0, vocabulary, HISTORY)
    for name, sampling in SETTINGS.items():
        law, dice = Law(sampling, len(tokens) // 2), KeyedDice(Noise(0))
        for kind, row in _rows(vocabulary).items():
            yield TimedAct("choose", partial(_choose, law, dice, row, tokens, count()), settings=name, row=kind)


def _choose(law: Law, dice: KeyedDice, row: torch.Tensor, tokens: np.ndarray, position: Iterator[int]) -> None:
    dice.choose(next(position), law.distribution(row, tokens))


def _rows(vocabulary: int) -> dict[str, torch.Tensor]:
    """From certain to uniform."""
    random = np.random.default_rng(0)
    spread = random.normal(0, 3, vocabulary).astype(np.float32)
    peaked, certain = spread.copy(), spread.copy()
    peaked[random.choice(vocabulary, 8, replace=False)] += 12
    certain[7] += 30
    flat = random.normal(0, 0.05, vocabulary).astype(np.float32)
    named = {"certain": certain, "a few peaks": peaked, "deviation 3": spread, "nearly flat": flat}
    return {name: torch.from_numpy(row) for name, row in named.items()}
