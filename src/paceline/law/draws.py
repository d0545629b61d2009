"""How tokens of drafts are chosen where their logits are: the settings and the noise of several texts as numbers in
memory, so that what chooses by them can be recorded and played again for other texts.

A draft need not be exact. So the settings act on the best candidates alone, and the noise has half of its bits.
"""

from __future__ import annotations

import numpy as np
import torch

from paceline.law.kernel_rows import gumbel
from paceline.law.noise import Noise, Stream
from paceline.law.settings import Sampling

COLDEST = 0.02
"""Lower temperatures count as this one."""
FLOATS = 3
INDEX = 5
"""Where the place of the next token stands among a text's numbers."""
NUMBERS = 10


def numbers_of(sampling: Sampling, coins: tuple[Noise, int] | None) -> list[int]:
    """What `Draws` reads of a text. Without noise the likeliest token wins."""
    cold = sampling.greedy
    floats = [1.0, 1.0, 0.0] if cold else [max(sampling.temperature, COLDEST), sampling.top_p, sampling.min_p]
    noise, index = coins or (Noise(0), 0)
    counters = [index, noise.sample, Stream.TARGET, *noise.key]
    bits: list[int] = np.array(floats, np.float32).view(np.int32).tolist()
    return [*bits, 0 if cold else min(sampling.top_k, 1 << 40), int(coins is not None), *counters]


def cuts(sampling: Sampling) -> bool:
    """Whether any token is left out of the draw."""
    return not sampling.greedy and bool(sampling.top_k or sampling.top_p < 1 or sampling.min_p)


class Draws:
    """``numbers`` are ``[texts, NUMBERS]``. With ``cut`` some of the texts leave tokens out; with ``noisy`` some are
    decided by the public noise."""

    def __init__(self, numbers: torch.Tensor, *, cut: bool, noisy: bool) -> None:
        self._numbers, self._cut, self._noisy = numbers, cut, noisy

    @property
    def temperatures(self) -> torch.Tensor:
        return self._float(0)

    def _float(self, place: int) -> torch.Tensor:
        """``[texts, 1, 1]``."""
        return self._numbers[:, place].to(torch.int32).view(torch.float32)[:, None, None]

    def logs(self, best: torch.Tensor, whole: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities of candidates ``[texts, width, candidates]``, best first, and the log of what other tokens
        have together ``[texts, width]``. ``best`` and ``whole`` are logits over the temperature, and the log of the
        sum of all tokens'."""
        logs = best - whole[..., None]
        shares = logs.exp()
        rest = (1 - shares.sum(dim=-1)).clamp_min(0)
        if self._cut:
            logs, rest = self._left(logs, shares, rest)
        return logs, rest.clamp_min(1e-30).log()

    def _left(self, logs: torch.Tensor, shares: torch.Tensor, rest: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        top_k, top_p, min_p = self._numbers[:, FLOATS, None, None], self._float(1), self._float(2)
        ranks = torch.arange(logs.shape[-1], device=logs.device)
        kept = (top_k == 0) | (ranks < top_k)
        whole = torch.where(top_k == 0, 1.0, (shares * kept).sum(dim=-1, keepdim=True))
        before = shares.cumsum(dim=-1) - shares
        kept = kept & ((top_p >= 1) | (before < top_p * whole))
        kept = kept & (shares >= min_p * shares[..., :1])
        logs = logs.masked_fill(~kept, -torch.inf)
        open_end = kept[..., -1] & (top_k == 0)[..., 0]
        left = torch.where(open_end, rest, 0.0)
        total = (shares * kept).sum(dim=-1) + left
        return logs - total.log()[..., None], left / total

    def favoured(self, ids: torch.Tensor, logs: torch.Tensor, rest: torch.Tensor, ahead: int = 0) -> torch.Tensor:
        """The logarithms of how likely candidates are to win the race, so many places ahead; without noise that is how
        likely they are."""
        if not self._noisy:
            return logs
        drawn = gumbel(self._numbers[:, INDEX:], ids, ahead) * self._numbers[:, FLOATS + 1, None, None]
        favours = logs + drawn
        whole = torch.logaddexp(torch.logsumexp(favours, dim=-1), rest)
        return favours - whole[..., None]
