"""Weights rounded to 4 bits: a multiplier for every group of 32, and a scale for every output channel.

The multipliers are whole numbers, so all products of an output add up in whole numbers, and are exact.
"""

from __future__ import annotations

import torch

SPAN, PAIRS = 512, 16
"""Inputs of a span, and its groups: each is every 16th pair of neighbours. `fused.tiles` says why."""
LOWEST, HIGHEST = -8, 7
LARGEST_ROW = 127
"""Of the numbers that weights are multiplied with."""
SHORT, INT = 2**15 - 1, 2**31 - 1
CHUNK = 1 << 22
"""Values that are rounded together."""
TINY = 1e-30


def in_groups(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A weight ``[outputs, inputs]`` as integers of 4 bits, multipliers ``[outputs, groups]``, and a scale for each
    output."""
    size = max(1, CHUNK // weight.shape[1])
    values, multipliers, scales = zip(*map(_rounded, weight.split(size)), strict=True)
    return torch.cat(values), torch.cat(multipliers), torch.cat(scales)


def _rounded(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    outputs, inputs = weight.shape
    spans = -(-inputs // SPAN)
    padded = torch.zeros((outputs, spans * SPAN), dtype=torch.float32, device="cpu")
    padded[:, :inputs] = weight
    groups = padded.view(outputs, spans, SPAN // (2 * PAIRS), PAIRS, 2)
    steps = _steps(groups)
    largest = largest_multiplier(inputs)
    scales = steps.abs().amax((1, 2)).clamp_min(TINY) / largest
    multipliers = (steps / scales[:, None, None]).round_()
    values = _nearest(groups, multipliers * scales[:, None, None])
    return values.view(outputs, -1)[:, :inputs].to(torch.int8), multipliers.view(outputs, -1).to(torch.int16), scales


def largest_multiplier(inputs: int) -> int:
    """The largest multiplier with which sums of ``inputs`` products fit into 32 bits."""
    return min(SHORT, INT // (-LOWEST * LARGEST_ROW * inputs))


def _steps(groups: torch.Tensor) -> torch.Tensor:
    """A step for each group. The weight of the largest magnitude becomes -8, so a step may be negative; then the step
    is the one with the least squared error for the integers that were found."""
    high, low = groups.amax((2, 4)), groups.amin((2, 4))
    steps = torch.where(high > -low, high, low) / LOWEST
    values = _nearest(groups, steps)
    square = values.square().sum((2, 4))
    return torch.where(square > 0, (values * groups).sum((2, 4)) / square.clamp_min(1.0), steps)


def _nearest(groups: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    """Integers of 4 bits; zeros where a group has no step."""
    wide = steps[:, :, None, :, None]
    found = groups / torch.where(wide == 0, 1.0, wide)
    return torch.where(wide == 0, 0.0, found).round_().clamp_(LOWEST, HIGHEST)
