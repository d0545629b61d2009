"""What a forward of a fixed shape reads: tensors that are made once, filled on the host and sent over in one copy.

All of it is small. The mask, which is as large as the context, is made of it on the device: of the length of each
text, of which tentative row sees which, and of the windows of the layers.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from paceline.targets.base import Request
from paceline.targets.hf.fixed.shapes import SHORTEST, TENTATIVE

HIDDEN_KEY = {torch.float16: -3e4}
"""What is added to the score of a hidden key, -1e30 in other types: enough to leave it a weight of exactly nothing, yet
finite, so that a row which sees no key at all (it only fills up the shape) is still made of numbers."""


class Inputs:
    """``tokens``, ``positions`` and ``places`` are ``[count, rows]``: what is scored, where it stands in its text and
    into which row of its slot it is written. ``committed`` ``[count]`` is the length of each text, ``standing``
    ``[count, tentative]`` the positions of the rows behind it, held ones included, and ``seen``
    ``[count, rows, tentative]`` which of them each row sees."""

    def __init__(self, count: int, rows: int, device: torch.device) -> None:
        shapes = [(count, rows), (count, rows), (count, rows), (count,), (count, TENTATIVE)]
        numbers, flags = sum(math.prod(shape) for shape in shapes), (count, rows, TENTATIVE)
        size = 8 * numbers + math.prod(flags)
        pinned = device.type == "cuda"
        with torch.inference_mode(False):
            self._host = torch.zeros(size, dtype=torch.uint8, pin_memory=pinned)
            self._device = torch.zeros(size, dtype=torch.uint8, device=device)
        self._sent = torch.cuda.Event() if pinned else None
        on_host = _parts(self._host, shapes, flags)
        self._tokens, self._positions, self._places, self._committed, self._standing, self._seen = on_host
        here = _parts(self._device, shapes, flags)
        self.tokens, self.positions, self.places, self.committed, self.standing, self.seen = here

    def fill(self, requests: list[tuple[int, Request]], scratch: int) -> None:
        """Put down each request in the place of its slot, and send all of it. Rows that nobody asked for read token 0
        at position 0, see nothing, and are written to ``scratch``."""
        if self._sent is not None:
            self._sent.synchronize()  # the last copy may still be reading what is about to be overwritten
        self._host.zero_()
        places = self._places.numpy()
        places.fill(scratch)
        for place, request in requests:
            n, known = len(request.tokens), len(request.parents)
            committed = request.rows.committed
            self._tokens.numpy()[place, :n] = request.tokens
            self._positions.numpy()[place, :n] = request.positions
            places[place, :n] = np.arange(committed + request.held, request.end)
            self._committed.numpy()[place] = committed
            self._standing.numpy()[place, :known] = request.tentative_positions
            self._seen.numpy()[place, :n, :known] = request.visible
        self._device.copy_(self._host, non_blocking=True)
        if self._sent is not None:
            self._sent.record(torch.cuda.current_stream(self._device.device))

    def keys(self, window: int | None, length: int) -> torch.Tensor | None:
        """Which rows of each slot a layer has to look at, ``[count, some]``; None for the first ``length`` of them. Of
        a long text a window leaves little, which is worth copying together."""
        some = -(-((window or length) + TENTATIVE) // SHORTEST) * SHORTEST
        if some >= length:
            return None
        assert window is not None, "a layer without a window looks at all rows"
        first = (self.committed - window + 1).clamp(0, length - some)
        return first[:, None] + torch.arange(some, device=first.device)

    def mask(self, window: int | None, keys: torch.Tensor, dtype: torch.dtype, copies: int) -> torch.Tensor:
        """``[count, 1, copies * rows, keys]``, added to the scores: 0 where a row sees a key. ``keys`` are row numbers
        of slots, the same of all slots or ``[count, keys]``."""
        keys = keys.expand(len(self.committed), -1)
        behind = keys - self.committed[:, None]
        seen, text = self.seen, (behind < 0)[:, None]
        if window is not None:
            at = self.positions[:, :, None]
            seen = seen & (at - self.standing[:, None] < window)
            text = text & (at - keys[:, None] < window)
        drafted = ((behind >= 0) & (behind < TENTATIVE))[:, None]
        which = behind.clamp(0, TENTATIVE - 1)[:, None].expand(-1, seen.shape[1], -1)
        visible = torch.where(drafted, seen.gather(2, which), text)
        mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
        mask.masked_fill_(~visible, HIDDEN_KEY.get(dtype, -1e30))
        return mask.repeat(1, copies, 1)[:, None]


Parts = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def _parts(memory: torch.Tensor, shapes: list[tuple[int, ...]], flags: tuple[int, ...]) -> Parts:
    """The tensors that lie one behind the other in ``memory``: numbers, then flags."""
    flat = memory[: -math.prod(flags)].view(torch.int64)
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    numbers = [flat[end - math.prod(shape) : end].view(shape) for shape, end in zip(shapes, ends, strict=True)]
    tokens, positions, places, committed, standing = numbers
    return tokens, positions, places, committed, standing, memory[-math.prod(flags) :].view(flags).view(torch.bool)
