"""Who goes first: whoever does finds the machine's caches as another one left them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

Side = TypeVar("Side")


def order(sides: Sequence[Side], turn: int, prompt: int) -> Sequence[Side]:
    """Who goes first, and who after whom, with a prompt in a pass. Over as many passes as there are sides everybody
    goes first once with every prompt, and every other prompt has them follow each other the other way round."""
    first = (turn + prompt) % len(sides)
    turned = [*sides[first:], *sides[:first]]
    return turned if prompt % 2 == 0 else [turned[0], *reversed(turned[1:])]
