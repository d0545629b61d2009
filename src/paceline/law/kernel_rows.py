"""The race of rows on a GPU by the kernels of `racing`, where triton is installed and they find what torch finds."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from paceline import launching
from paceline.law.device_rows import BLOCK_TOKENS, CROSSING, HEAVY, MARGIN, DeviceRows
from paceline.law.noise import Noise
from paceline.law.on_device import counters, sent
from paceline.law.on_device import gumbel as by_torch
from paceline.law.settings import of_kernel
from paceline.law.shortlist import Coins, Shortlist
from paceline.law.warp import Warps
from paceline.once import once

MANY = 8
"""Blocks of a row that a program takes."""
TOKENS = 256
"""Tokens whose noise a program draws."""
TYPES = (torch.float32, torch.bfloat16, torch.float16)


class KernelRows(DeviceRows):
    """`DeviceRows` in three kernels, for settings without a nucleus."""

    def _shortlists(self) -> list[Shortlist]:
        lines = self.lines().numpy(force=True)
        room = (lines.shape[1] - 2) // 2
        found = list[Shortlist]()
        for number, line in enumerate(lines):
            count, peak = int(line[1]), float(line[:1].view(np.float64)[0])
            if count > room:
                found.append(self._long(number))
                continue
            ids, scores = line[2 : 2 + count], line[2 + room : 2 + room + count].view(np.float64)
            order = np.argsort(ids)  # programs end in any order
            found.append(Shortlist(ids[order], scores[order], peak))
        return found

    def lines(self) -> torch.Tensor:
        """``[rows, 2 + 2 * room]`` in 64 bits, where the rows are: of each the greatest score, as a float, minus
        infinity where the whole row has to decide; how many tokens can win; their ids, in any order; and their scores,
        as floats."""
        from paceline.law import racing

        rows, warps, kth = self._rows, self._warps, self._kth
        (count, size), room = rows.shape, min(CROSSING, rows.shape[1])
        blocks, line = -(-size // BLOCK_TOKENS), 2 + 2 * room
        floats = np.array([warps.temperature, warps.least, 1 + MARGIN], np.float64).view(np.int64)
        numbers = sent(torch.tensor([*floats.tolist(), *counters(self._coins)]), rows.device)
        maxima = rows.new_empty((count, blocks), dtype=torch.float32)
        limits = rows.new_empty(count, dtype=torch.float64)
        found = rows.new_empty((count, line), dtype=torch.int64)
        grid = (count, -(-blocks // MANY))
        given = (rows, maxima, numbers, rows if kth is None else kth, found, limits, size, blocks, line)
        fixed = {"BLOCK": BLOCK_TOKENS, "CUT": kth is not None}
        launching.launch(racing.block_maxima, grid, rows, maxima, size, blocks, BLOCK=BLOCK_TOKENS, MANY=MANY)
        launching.launch(racing.bounds, (count,), *given, PAD=1 << (blocks - 1).bit_length(), HEAVY=HEAVY, **fixed)
        launching.launch(racing.reached, grid, *given, room, MANY=MANY, **fixed)
        return found


def gumbel(numbers: torch.Tensor, ids: torch.Tensor, ahead: int = 0) -> torch.Tensor:
    """`on_device.gumbel`, in one kernel where that is possible."""
    if ids.device.type != "cuda" or obstacle(ids.device) is not None:
        return by_torch(numbers, ids, ahead)
    return in_one_kernel(numbers, ids.flatten(1), ahead).view(ids.shape)


def in_one_kernel(numbers: torch.Tensor, ids: torch.Tensor, ahead: int) -> torch.Tensor:
    """Of tokens ``[texts, some]``."""
    from paceline.law import racing

    assert numbers.stride(1) == 1, "the numbers of a place lie one behind the other"
    (texts, size), ids = ids.shape, ids.contiguous()
    result = torch.empty(ids.shape, dtype=torch.float32, device=ids.device)
    grid = (texts, -(-size // TOKENS))
    launching.launch(racing.gumbel, grid, ids, numbers, result, size, numbers.stride(0), ahead, BLOCK=TOKENS)
    return result


def fits(rows: torch.Tensor, warps: Warps) -> bool:
    """Whether the kernels are for such rows, and work where these are."""
    return rows.device.type == "cuda" and warps.in_one_race and rows.dtype in TYPES and obstacle(rows.device) is None


@cache
def obstacle(device: torch.device) -> str | None:
    """Why the kernels are not used on a device: there is no compiler for them, it fails, or they find other winners
    than torch's operations. It is asked when a model is loaded, since a recording must not compile anything."""
    if not launching.installed():
        return launching.NOT_INSTALLED
    try:
        with _disable_current_modes(), once():
            return None if _agree(device) else "they find other winners than torch"
    except Exception as error:  # anything that a compiler for an untested device may raise
        return f"{type(error).__name__}: {error}".splitlines()[0]


def _agree(device: torch.device) -> bool:
    random = torch.Generator().manual_seed(0)
    rows = (4 * torch.randn(3, 5000, generator=random)).to(device)
    coins: list[Coins] = [(Noise(number), number) for number in range(len(rows))]
    numbers = torch.tensor(counters(coins), device=device).view(len(coins), -1)
    ids = torch.arange(200, device=device).expand(len(coins), -1)
    if not torch.allclose(in_one_kernel(numbers, ids, 3), by_torch(numbers, ids, 3), rtol=1e-4, atol=1e-4):
        return False
    settings = of_kernel(0.8), of_kernel(1.3, "most"), of_kernel(1.0, "least")
    return all(
        KernelRows(rows, warps, coins).winners() == DeviceRows(rows, warps, coins).winners()
        for warps in map(Warps.of, settings)
    )
