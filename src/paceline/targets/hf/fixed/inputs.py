"""Inputs of a forward of a fixed shape: tensors that are allocated once, filled on the host and sent in one copy.

All of them are small. The mask, which is as large as the context, is computed from them on the device.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch

from paceline.targets.base import Request
from paceline.targets.hf.fixed.shapes import SHORTEST_RECORDED_TEXT, TENTATIVE

HIDDEN_KEY = {torch.float16: -3e4}
"""Added to the score of a hidden key; -1e30 in other types. Its weight is then exactly 0. The value is finite, so that
padding rows, which see no key at all, hold numbers."""


class Parts(NamedTuple):
    """Views of one memory, one behind the other: numbers, then flags."""

    tokens: torch.Tensor
    positions: torch.Tensor
    places: torch.Tensor
    committed: torch.Tensor
    fresh: torch.Tensor
    tentative: torch.Tensor
    seen: torch.Tensor

    @classmethod
    def of(cls, memory: torch.Tensor, shapes: list[tuple[int, ...]], flags: tuple[int, ...]) -> Parts:
        flat = memory[: -math.prod(flags)].view(torch.int64)
        ends = np.cumsum([math.prod(shape) for shape in shapes])
        numbers = [flat[end - math.prod(shape) : end].view(shape) for shape, end in zip(shapes, ends, strict=True)]
        tokens, positions, places, committed, fresh, tentative = numbers
        seen = memory[-math.prod(flags) :].view(flags).view(torch.bool)
        return cls(tokens, positions, places, committed, fresh, tentative, seen)


class Inputs:
    """``tokens``, ``positions`` and ``places`` are ``[count, rows]``: tokens to score, their positions in their texts,
    and the rows of their slots that they are written to. ``committed`` ``[count]`` is the length of each text,
    ``fresh`` ``[count]`` the number of rows behind it, held ones included, ``tentative`` ``[count, TENTATIVE]`` their
    positions, and ``seen`` ``[count, rows, TENTATIVE]`` which of these each row sees."""

    def __init__(self, count: int, rows: int, device: torch.device) -> None:
        shapes = [(count, rows), (count, rows), (count, rows), (count,), (count,), (count, TENTATIVE)]
        numbers, flags = sum(math.prod(shape) for shape in shapes), (count, rows, TENTATIVE)
        size = 8 * numbers + math.prod(flags)
        pinned = device.type == "cuda"
        with torch.inference_mode(False):
            self._host = torch.zeros(size, dtype=torch.uint8, pin_memory=pinned)
            self._device = torch.zeros(size, dtype=torch.uint8, device=device)
        self._sent = torch.cuda.Event() if pinned else None
        self._on_host = Parts.of(self._host, shapes, flags)
        here = Parts.of(self._device, shapes, flags)
        self.tokens, self.positions, self.places, self.committed, self.fresh, self.tentative, self.seen = here

    def fill(self, requests: list[tuple[int, Request]], scratch: int) -> None:
        """Copy each request to the place of its slot, and send all of it to the device. Padding rows hold token 0 at
        position 0, see nothing, and are written to row ``scratch``."""
        tokens, positions, places, texts, fresh, tentative, seen = self._emptied(scratch)
        for place, request in requests:
            n, known = len(request.tokens), len(request.parents)
            committed = request.rows.committed
            tokens[place, :n] = request.tokens
            positions[place, :n] = request.positions
            places[place, :n] = np.arange(committed + request.held, request.end)
            texts[place], fresh[place] = committed, known
            tentative[place, :known] = request.tentative_positions
            seen[place, :n, :known] = request.visible
        self._send()

    def fill_single(self, ends: list[tuple[int, int]], scratch: int) -> None:
        """The same for one row behind each text, whose token the device finds by itself: the place of a slot, and the
        length of its text."""
        _, positions, places, texts, fresh, tentative, seen = self._emptied(scratch)
        for place, end in ends:
            for part in (positions, places, tentative):
                part[place, 0] = end
            texts[place], fresh[place], seen[place, 0, 0] = end, 1, True
        self._send()

    def _emptied(self, scratch: int) -> list[np.ndarray]:
        if self._sent is not None:
            self._sent.synchronize()  # the last copy may still be reading what is about to be overwritten
        self._host.zero_()
        parts = [part.numpy() for part in self._on_host]
        parts[2].fill(scratch)
        return parts

    def _send(self) -> None:
        self._device.copy_(self._host, non_blocking=True)
        if self._sent is not None:
            self._sent.record(torch.cuda.current_stream(self._device.device))

    def keys(self, window: int | None, length: int) -> torch.Tensor | None:
        """The rows of each slot that a layer reads, ``[count, some]``; None for the first ``length`` of them. A window
        over a long text leaves few rows, which are copied together."""
        some = -(-((window or length) + TENTATIVE) // SHORTEST_RECORDED_TEXT) * SHORTEST_RECORDED_TEXT
        if some >= length:
            return None
        assert window is not None, "a layer without a window reads all rows"
        first = (self.committed - window + 1).clamp(0, length - some)
        return first[:, None] + torch.arange(some, device=first.device)

    def mask(self, window: int | None, keys: torch.Tensor, dtype: torch.dtype, copies: int) -> torch.Tensor:
        """``[count, 1, copies * rows, keys]``, added to the scores: 0 where a row sees a key. ``keys`` are row numbers
        in the slots, the same for all slots or ``[count, keys]``."""
        keys = keys.expand(len(self.committed), -1)
        behind = keys - self.committed[:, None]
        seen, text = self.seen, (behind < 0)[:, None]
        if window is not None:
            at = self.positions[:, :, None]
            seen = seen & (at - self.tentative[:, None] < window)
            text = text & (at - keys[:, None] < window)
        drafted = ((behind >= 0) & (behind < TENTATIVE))[:, None]
        which = behind.clamp(0, TENTATIVE - 1)[:, None].expand(-1, seen.shape[1], -1)
        visible = torch.where(drafted, seen.gather(2, which), text)
        mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
        mask.masked_fill_(~visible, HIDDEN_KEY.get(dtype, -1e30))
        return mask.repeat(1, copies, 1)[:, None]
