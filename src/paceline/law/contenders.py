"""The few tokens of a row that can still win the race, found on the row's device.

The race compares exponential over weight for every token that survives the warps: 150,000 of each, to choose one token.
Nearly all lose by far, which can be shown without computing either. So the row stays on its device, a few ids and
scores are copied to the host, and the race among them has the winner of the race among all, bit by bit.

Let x be a row of scores, m the greatest, T the temperature. As `warp` and `race` compute them in float64, token *j* has
the weight ``w_j = exp((x_j - m) / T)``, the exponential ``E_j = -log u_j`` of its public uniform, and the time
``E_j / w_j``. Of the tokens that survive the warps the one of least time wins, the lowest id among equals.

**A bound on the time.** Some tokens in the `HEAVY` blocks of `BLOCK_TOKENS` ids with the greatest scores certainly
survive. Let V be the least time among those. The winner's time is at most V.

**A bound on the noise.** So the winner has ``E_j <= V w_j <= V w_b``, where ``w_b`` is the greatest weight in its
block, and ``u_j >= exp(-V w_b)``. The upper 32 bits of its uniform, as a whole number, are then at least ``2^32
exp(-V w_b) - 1``: a token of little weight can win only if its bits begin with many ones. These upper words are whole
numbers, the same on every machine, and need no logarithm. Comparing them with one number for each block leaves about as
many tokens as V times the sum of ``w_b`` over all tokens: some dozens of a usual row, some thousands of a flat one.

**Top-k and min-p.** The best token always survives both. Another token is certain if its score is among the k best and
its weight above min-p by a margin. For the tokens that are copied, the host computes the weights again and keeps what
the warps keep: both cuts depend on a token's own score and weight, once the k-th score is known.

**Top-p.** A token is in the nucleus if the weights before it, greatest first, sum to less than p times the sum of all.
A heavy token whose score is above those of all other blocks has only heavy tokens before it, and the sum of all is at
least the sum of the heavy ones; where that suffices, it certainly survives. The tokens that are copied are compared
with the nucleus in the order of their times until one is inside: it wins. The sums for that are computed on the device.
Where their rounding leaves it open, or no heavy token is certain, the whole row decides.

**Rounding.** Everything on the device is float64. The error of a bound or a sum is far below `MARGIN`, by which all of
them are widened. Weights below 2^-60 do not matter: where the best token is certain V is below 2^6, and no uniform
is closer to 1 than ``2^-53``; beside a nucleus they are nothing. (An upper word of 0 makes V infinite; then the whole
row decides.) Exponents of all others are at most 60 in size, so these weights are right to within ``2^-45``, and sums
of N weights to within ``N 2^-53`` more, whatever their order. Uniforms enter V as if the bits
below the upper 32 were zeros, which only makes V greater. Cutting a number of up to 2^32 to a whole one costs 1 and
computing it less than 1, so 2 are subtracted. Two tokens whose weights might be equal once they are rounded are taken
in either order.

**On the host** the same method takes one pass over the scores and one over the blocks (`kernels.contesting`). The best
token's block comes first, and V comes down with every token that is found to be faster. A block whose greatest weight
is below 2^-53 / V is left out with its noise, since no exponential is less than ``2^-53``. Nearly always one token is
left; those whose times are within `MARGIN` of each other go to numpy. Under top-k or top-p the whole row decides.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from paceline.law.device_rows import DeviceRows
from paceline.law.distribution import Distribution
from paceline.law.kernel_rows import KernelRows, fits
from paceline.law.scores import HOST_DEVICE
from paceline.law.shortlist import WHOLE_ROW_TOKENS, Coins
from paceline.law.warp import Warps

LARGE = 1 << 24
"""For sums over more tokens the margin would be too small."""
TOGETHER = 1 << 22
"""Scores, of several rows, in one `DeviceRows`: its work arrays then take a few hundred MB."""
DEVICES = frozenset({HOST_DEVICE, "cuda"})
"""Devices that have float64."""


def contenders(rows: Sequence[torch.Tensor], warps: Warps, coins: Sequence[Coins]) -> list[Distribution | None]:
    """The law of each adjusted row ``[vocabulary]``, restricted to tokens that can win; None where the whole row has to
    decide, or does so faster. The rows are on one device and share their settings."""
    size = len(rows[0])
    if not warps.in_kernels or rows[0].device.type not in DEVICES or not WHOLE_ROW_TOKENS < size <= LARGE:
        return [None] * len(rows)
    found: list[Distribution | None] = []
    for start in range(0, len(rows), at_once := max(1, TOGETHER // size)):
        some = slice(start, start + at_once)
        some_rows = torch.stack(list(rows[some]))
        kind = KernelRows if fits(some_rows, warps) else DeviceRows
        found += kind(some_rows, warps, coins[some]).laws()
    return found
