"""What acts on the logits before temperature does: bias, penalties, bans and custom processors, each a step that is
loaded where it acts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from paceline.errors import InputError
from paceline.law.table import Acts, function

if TYPE_CHECKING:
    import torch

    from paceline.law.settings import Sampling

Tokens = NDArray[np.int64]
Step = Callable[["torch.Tensor", Tokens, int], "torch.Tensor"]
"""``(scores, tokens, prompt length) -> scores``; it may write to the scores that it is given."""


class Adjustment:
    """One `Sampling` applied to rows that follow a token list; each step writes to the row it is given.

    The order is transformers': sequence bias, repetition penalty, bad words, custom processors. Presence and
    frequency penalties, which it lacks, follow the repetition penalty. What does not act has no step.
    """

    def __init__(self, sampling: Sampling, prompt_length: int) -> None:
        groups = list(sampling.groups(Acts.ON_LOGITS))
        self._steps: list[Step] = [function(rows[0].host)(*values) for rows, values in groups if rows[0].host]
        self._prompt_length = prompt_length
        naming = [(row, getattr(sampling, row.name)) for row in sampling.rows if row.token is not None]
        self._naming = " or ".join(row.name for row, _ in naming)
        self._largest = max((row.token(entry) for row, value in naming if row.token for entry in value), default=-1)

    def apply(self, scores: torch.Tensor, tokens: Tokens) -> torch.Tensor:
        if self._largest >= scores.numel():
            raise InputError(
                f"{self._naming} names token {self._largest}, and the model has {scores.numel()} tokens; "
                "use ids of the model's own tokenizer"
            )
        for step in self._steps:
            scores = step(scores, tokens, self._prompt_length)
        return scores
