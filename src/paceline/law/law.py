"""The law of the next token, given the model's logits and the tokens before it."""

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.law.adjust import Adjustment
from paceline.law.distribution import Distribution
from paceline.law.scores import full_precision, log_probabilities
from paceline.law.settings import Sampling
from paceline.law.warp import check_peak, warped


class Law:
    """`Sampling` applied to one sequence, whose first ``prompt_length`` tokens were not emitted.

    A row is ``[vocabulary]``, on any device; ``tokens`` is the whole token list before the place being
    decided, prompt included. No method changes either.
    """

    def __init__(self, sampling: Sampling, prompt_length: int) -> None:
        self.sampling = sampling
        self.prompt_length = prompt_length
        self._adjustment = Adjustment(sampling, prompt_length)

    @property
    def argmax_only(self) -> bool:
        """Whether the next token is the argmax of the model's own row, so that no row need be fetched."""
        return self.sampling.greedy and not self.sampling.adjusts

    @staticmethod
    def check_peak(peak: float) -> None:
        """Refuse a row whose largest score is not a number to choose by."""
        check_peak(peak)

    def adjust(self, row: torch.Tensor, tokens: NDArray[np.int64]) -> torch.Tensor:
        """The logits after bias, penalties, bans and custom processors, in float32 at least.

        Custom processors are called once each and in order, so a stateful one sees the calls that plain
        decoding would make. Where nothing acts, the row itself may come back.
        """
        row = row.detach()
        scores = full_precision(row)
        if not self.sampling.adjusts:
            return scores
        return self._adjustment.apply(scores.clone() if scores is row else scores, tokens)

    def distribution(self, row: torch.Tensor, tokens: NDArray[np.int64]) -> Distribution:
        """The law that plain decoding draws the next token from; of greedy decoding, a one-hot law."""
        scores = self.adjust(row, tokens)
        if not self.sampling.greedy:
            return warped(scores.numpy(force=True), self.sampling)
        best = int(scores.argmax())  # the first of equals, which is the lowest id
        check_peak(float(scores[best]))
        return Distribution.one_hot(best)

    def log_probabilities(self, row: torch.Tensor) -> torch.Tensor:
        """The model's own, before any setting acts: what ``logprobs`` reports."""
        return log_probabilities(row.detach())
