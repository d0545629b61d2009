"""Who goes first, and who after whom: everybody finds the machine's caches as another one left them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

Side = TypeVar("Side")


def order(sides: Sequence[Side], turn: int, prompt: int) -> Sequence[Side]:
    """Who goes first, and who after whom, with a prompt in a pass.

    Over as many passes as there are sides everybody goes first once with every prompt; likewise over as many prompts in
    a pass. And over as many turns, or twice as many where their number is odd, everybody has come directly after
    everybody else equally often: rows of a balanced latin square (Williams 1949).
    """
    count, row = len(sides), turn + prompt
    steps = [(place + 1) // 2 * (1 if place % 2 else -1) for place in range(count)]  # 0, 1, -1, 2, -2 ...
    if count % 2 and row // count % 2:
        steps = [step - steps[-1] for step in reversed(steps)]
    return [sides[(row + step) % count] for step in steps]
