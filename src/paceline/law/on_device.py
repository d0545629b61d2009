"""The public noise drawn where the logits are. Torch has no unsigned words, but the bits of products and exclusive ors
are the same in signed ones."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from numpy.typing import NDArray

from paceline.law.noise import KEY_STEPS, M0, M1, PHILOX_ROUNDS, Noise, Stream

LOW = 0xFFFFFFFF
BITS = 2.0**-32
BESIDE = frozenset({"cuda"})
"""Devices that read the host's memory while the host goes on."""


def sent(here: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor of the host's, copied to a device when its turn comes there; the host does not wait for that."""
    return here.pin_memory().to(device, non_blocking=True) if device.type in BESIDE else here.to(device)


def sent_beside(scores: torch.Tensor, numbers: NDArray[Any]) -> torch.Tensor:
    """Ids, or numbers in the scores' precision, sent to where the scores are."""
    here = torch.from_numpy(numbers)
    return sent(here.to(scores.dtype) if here.is_floating_point() else here, scores.device)


@lru_cache(maxsize=16)
def ascending(count: int, device: torch.device) -> torch.Tensor:
    """The numbers below ``count``, made once for a device; not to be written to."""
    with torch.inference_mode(False):
        return torch.arange(count, device=device)


def upper_words(places: Sequence[tuple[Noise, int]], size: int, device: torch.device) -> torch.Tensor:
    """``[places, size]``: the upper 32 of the public bits of the tokens ``0 .. size`` at each place, as int64. Drawn
    once for places that are equal."""
    different = {each: number for number, each in enumerate(dict.fromkeys(places))}
    shared = len(different) < len(places)
    columns, owners = _sent(list(different), device, [different[each] for each in places] if shared else ())
    even, odd = _words(columns, ascending(size // 2, device)[None])
    words = torch.stack([even, odd], dim=2).flatten(1)
    return words[owners] if shared else words


def gumbel(numbers: torch.Tensor, ids: torch.Tensor, ahead: int = 0) -> torch.Tensor:
    """Minus the logarithms of the public exponentials of the tokens ``ids`` ``[texts, ...]``, from half of their bits:
    exact enough to rank a draft's candidates by. ``numbers`` ``[texts, 5]`` are the counter words and keys of a place,
    as `counters` has them; the tokens stand ``ahead`` places behind it."""
    flat = ids.flatten(1)
    index, *others = numbers.T[:, :, None]
    even, odd = _words(torch.stack([index + ahead & LOW, *others]), flat >> 1)
    uniforms = (torch.where(flat & 1 == 0, even, odd).double() + 0.5) * BITS
    return (-(-uniforms.log()).log()).float().view(ids.shape)


def _sent(
    places: Sequence[tuple[Noise, int]], device: torch.device, more: Sequence[int] = ()
) -> tuple[torch.Tensor, torch.Tensor]:
    """The counter words and keys of each place as columns, and ``more`` numbers: all that comes from the host in one
    copy."""
    numbers = counters(places)
    found = sent(torch.tensor([*numbers, *more]), device)
    return found[: len(numbers)].view(len(places), -1).T[:, :, None], found[len(numbers) :]


def counters(places: Sequence[tuple[Noise, int]]) -> list[int]:
    """Three counter words and both key words of each place."""
    return [word for noise, index in places for word in (index, noise.sample, Stream.TARGET, *noise.key)]


def _words(columns: torch.Tensor, blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The upper words of the even and of the odd token of each block, a row for each place."""
    c1, c2, c3, k0, k1 = columns
    c0 = blocks
    for _ in range(PHILOX_ROUNDS):
        product2, product0 = c2 * M1, c0 * M0
        c0, c2 = (product2 >> 32 ^ c1 ^ k0) & LOW, (product0 >> 32 ^ c3 ^ k1) & LOW
        c1, c3 = product2 & LOW, product0 & LOW
        k0, k1 = (k0 + KEY_STEPS[0]) & LOW, (k1 + KEY_STEPS[1]) & LOW
    return c1, c3
