"""Linear layers of which each of several parallel tracks has a share, and the sums by which the tracks meet."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import nn

ROWS, COLUMNS = 0, 1
"""The dimension of a weight that tracks share out: of outputs, or of inputs."""
Sum = Callable[[torch.Tensor], torch.Tensor]
"""The sum of a tensor over all processes that hold tracks."""
LowRankMap = tuple[torch.Tensor, torch.Tensor]
"""What an adapter adds to a linear layer: ``a [rank, inputs]`` and ``b [outputs, rank]``."""


def alone(part: torch.Tensor) -> torch.Tensor:
    """The `Sum` of one process that holds all tracks."""
    return part


class Tracks:
    """The tracks that a process holds, and how they meet those of the others."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.numbers = range(count)
        """Of the held ones."""
        self.sum: Sum = alone
        self.meetings = 0
        """How often they have met."""

    @property
    def held(self) -> int:
        return len(self.numbers)

    def hold(self, track: int, everywhere: Sum) -> None:
        """Hold one only; the other processes have the others."""
        self.numbers, self.sum = range(track, track + 1), everywhere

    def apart(self, states: torch.Tensor) -> torch.Tensor:
        """States ``[texts, n, width]`` for each held track, ``[tracks * texts, n, width]``."""
        return states if self.held == 1 else states.repeat(self.held, 1, 1)

    def each(self, states: torch.Tensor) -> Sequence[torch.Tensor]:
        """The states of each held track."""
        return states.chunk(self.held)

    def met(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """The sum of a part from every track of all processes."""
        self.meetings += 1
        whole = parts[0]
        for part in parts[1:]:
            whole = whole + part
        return self.sum(whole)

    def averaged(self, states: torch.Tensor) -> torch.Tensor:
        """The mean of all tracks' states, ``[texts, n, width]``."""
        return self.met(self.each(states)) / self.count

    def own(self, states: torch.Tensor) -> list[torch.Tensor]:
        """Of each held track's states the share of the channels that it multiplies with the head."""
        return [part.chunk(self.count, -1)[track] for part, track in zip(self.each(states), self.numbers, strict=True)]


class SharedLinear(nn.Module):
    """A linear layer of which each track has a share."""

    def __init__(self, of: nn.Linear, tracks: Tracks, dimension: int) -> None:
        super().__init__()
        self.in_features, self.out_features = of.in_features, of.out_features  # of all tracks together
        self.weight, self._tracks, self._dimension = of.weight, tracks, dimension

    def shares(self) -> Sequence[torch.Tensor]:
        return self.weight.chunk(self._tracks.held, self._dimension)

    def hold(self, track: int, count: int) -> None:
        """Keep the weights of one of ``count`` tracks only."""
        share = self.weight.detach().chunk(count, self._dimension)[track].clone()
        self.weight = nn.Parameter(share, requires_grad=False)

    def apart(self, states: torch.Tensor) -> list[torch.Tensor]:
        """Each track's outputs."""
        pairs = zip(self._tracks.each(states), self.shares(), strict=True)
        return [F.linear(part, share) for part, share in pairs]

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """The same of all tracks, one behind another."""
        return _one_behind_another(self.apart(states))

    def shared_out(self, added: LowRankMap, count: int) -> list[LowRankMap]:
        """An adapter's map for each of ``count`` tracks. It is divided as the weights are: ``b`` where they share out
        outputs, ``a`` where they share out inputs. The other of the two is whole on every track."""
        inward, outward = added
        if self._dimension == ROWS:
            return [(inward, share) for share in outward.chunk(count, 0)]
        return [(share, outward) for share in inward.chunk(count, 1)]

    def more(self, states: torch.Tensor, added: LowRankMap) -> torch.Tensor:
        """What an adapter's map adds to `forward`. It has the sizes of the held tracks together."""
        shares = self.shared_out(added, self._tracks.held)
        pairs = zip(self._tracks.each(states), shares, strict=True)
        return _one_behind_another([F.linear(F.linear(part, inward), out) for part, (inward, out) in pairs])

    def in_floats(self) -> SharedLinear:
        """A copy in float32, for the same tracks."""
        with torch.device("meta"):
            made = SharedLinear(nn.Linear(self.in_features, self.out_features, False), self._tracks, self._dimension)
        made.weight = nn.Parameter(self.weight.detach().float().clone(), requires_grad=False)
        return made


def _one_behind_another(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


class TracksHead(SharedLinear):
    """The head: each track multiplies its share of the channels."""

    def __init__(self, of: nn.Linear, tracks: Tracks) -> None:
        super().__init__(of, tracks, COLUMNS)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Of each track's states. Rows ``[n, width]`` are those that the head reads, put together from the tracks'
        shares: a process that holds all tracks multiplies them with the whole head."""
        if states.dim() == 2 and self._tracks.held == self._tracks.count:
            return F.linear(states, self.weight)
        pairs = zip(self._tracks.own(states), self.shares(), strict=True)
        return self._tracks.met([F.linear(part, share) for part, share in pairs])
