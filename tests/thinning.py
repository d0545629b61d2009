"""Large tables of cases: some of every kind in each run of the tests, the others with `-m slow`."""

from collections.abc import Collection, Iterable
from itertools import product
from typing import Any

import pytest


def thinned(values: Iterable[Any], every: int = 3) -> list[Any]:
    """Cases of `parametrize`: the first value and each n-th after it by default, the others with `-m slow`."""
    return [
        case(value if isinstance(value, tuple) else (value,), by_default=number % every == 0)
        for number, value in enumerate(values)
    ]


def crossed(*axes: Collection[Any]) -> list[Any]:
    """Cases of `parametrize` for as many arguments as there are axes: all combinations of the axes' values.

    By default they run along the diagonal, (a1, b1), (a2, b2), (a3, b1), ..., so that each value comes once or more.
    The other combinations come with `-m slow`.
    """
    longest = max(map(len, axes))
    diagonal = {tuple(number % len(axis) for axis in axes) for number in range(longest)}
    numbered = (enumerate(axis) for axis in axes)
    return [
        case(tuple(value for _, value in values), by_default=tuple(place for place, _ in values) in diagonal)
        for values in product(*numbered)
    ]


def case(values: tuple[Any, ...], by_default: bool) -> Any:
    return pytest.param(*values, marks=() if by_default else pytest.mark.slow)
