"""How tokens of drafts are chosen where their logits are: the settings and the noise of several texts as numbers in
memory, so that what chooses by them can be recorded and played again for other texts.

A draft need not be exact. So the settings act on the best candidates alone, and the noise has half of its bits.
"""

from __future__ import annotations

import numpy as np
import torch

from paceline.law.kernel_rows import gumbel
from paceline.law.noise import Noise, Stream
from paceline.law.warp import Warps

COLDEST = 0.02
"""Lower temperatures count as this one."""
FLOATS = 3
INDEX = 5
"""Where the place of the next token stands among a text's numbers."""
DRAW_NUMBERS = 10


def numbers_of(warps: Warps, coins: tuple[Noise, int] | None) -> list[int]:
    """What `Draws` reads of a text; of its cuts those that kernels know. Without noise the likeliest token wins."""
    cold = warps.temperature == 0
    floats = [1.0, 1.0, 0.0] if cold else [max(warps.temperature, COLDEST), warps.mass, warps.least]
    noise, index = coins or (Noise(0), 0)
    counters = [index, noise.sample, Stream.TARGET, *noise.key]
    bits: list[int] = np.array(floats, np.float32).view(np.int32).tolist()
    return [*bits, min(warps.most, 1 << 40), int(coins is not None), *counters]


def cuts(warps: Warps) -> bool:
    """Whether any token is left out of the draw."""
    return bool(warps.most or warps.mass < 1 or warps.least)


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
        most, mass, least = self._numbers[:, FLOATS, None, None], self._float(1), self._float(2)
        ranks = torch.arange(logs.shape[-1], device=logs.device)
        kept = (most == 0) | (ranks < most)
        whole = torch.where(most == 0, 1.0, (shares * kept).sum(dim=-1, keepdim=True))
        before = shares.cumsum(dim=-1) - shares
        kept = kept & ((mass >= 1) | (before < mass * whole))
        kept = kept & (shares >= least * shares[..., :1])
        logs = logs.masked_fill(~kept, -torch.inf)
        open_end = kept[..., -1] & (most == 0)[..., 0]
        left = torch.where(open_end, rest, 0.0)
        total = (shares * kept).sum(dim=-1) + left
        return logs - total.log()[..., None], left / total

    def favoured(self, ids: torch.Tensor, logs: torch.Tensor, rest: torch.Tensor, ahead: int = 0) -> torch.Tensor:
        """The log-probabilities that candidates win the race, ``ahead`` places ahead; without noise their own
        log-probabilities."""
        if not self._noisy:
            return logs
        drawn = gumbel(self._numbers[:, INDEX:], ids, ahead) * self._numbers[:, FLOATS + 1, None, None]
        favours = logs + drawn
        whole = torch.logaddexp(torch.logsumexp(favours, dim=-1), rest)
        return favours - whole[..., None]
