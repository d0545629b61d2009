"""Which prompts are taken, where fewer are wanted than there are: always the same ones, from all over."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import TypeVar

from paceline.bench.suites.prompts import Prompt

CELL = 80
"""Prompts of one task in one language, in every suite that has more to choose from."""

Item = TypeVar("Item")


def spread(items: Sequence[Item], limit: int | None) -> list[Item]:
    """``limit`` items at equal distances, the first among them; all of them where there are no more.

    Of items in blocks of equal size, none is passed over as long as ``limit`` is no less than the number of blocks.
    """
    if limit is None or limit >= len(items):
        return list(items)
    return [items[number * len(items) // limit] for number in range(limit)]


def thinned(prompts: Sequence[Prompt], limit: int | None) -> tuple[Prompt, ...]:
    """``limit`` prompts of each task in each language, in the order in which they stand."""
    cells: dict[tuple[str, str], list[Prompt]] = {}
    for prompt in prompts:
        cells.setdefault((prompt.task, prompt.language), []).append(prompt)
    kept = {prompt.key for cell in cells.values() for prompt in spread(cell, limit)}
    return tuple(prompt for prompt in prompts if prompt.key in kept)


def chosen(suite: str, what: str, asked: Sequence[str] | None, there: Sequence[str]) -> list[str]:
    """Those of ``there`` that were asked for, in its order; what is not there is told."""
    for name in asked or ():
        if name not in there:
            raise ValueError(f"{suite} has no {what} {name!r}{hint(name, there)}; there is {', '.join(there)}")
    return [name for name in there if asked is None or name in asked]


def hint(name: str, there: Sequence[str]) -> str:
    """A question after the name that was probably meant."""
    close = difflib.get_close_matches(name, there, n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""
