"""Whether what was read from JSON is of the types that a dataclass declares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from enum import Enum
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

PLAIN: dict[Any, set[type]] = {
    int: {int, bool},
    float: {int, float, bool},
    str: {str},
    bool: {bool},
    NoneType: {NoneType},
}
"""A type -> what may stand for it: a whole number of seconds is written without its point, and yes and no count."""
SHOWN = 40
"""Characters of a wrong value that are told."""


def misfit(row: Any, kind: type) -> str | None:
    """In a few words, what keeps a JSON value from being a ``kind``; None where nothing does."""
    if not isinstance(row, Mapping):
        return f"it is {_shown(row)} and no object"
    hints = get_type_hints(kind)
    if unknown := set(row) - set(hints):
        return f"nothing is called {min(unknown)!r}"
    for field in fields(kind):
        if field.name not in row:
            if field.default is MISSING and field.default_factory is MISSING:
                return f"it lacks {field.name!r}"
        elif not _fits(row[field.name], hints[field.name]):
            return f"{field.name!r} is {_shown(row[field.name])}"
    return None


def _fits(value: Any, hint: Any) -> bool:
    if hint is Any:
        return True
    if hint in PLAIN:
        return type(value) in PLAIN[hint]
    origin, inner = get_origin(hint), get_args(hint)
    if origin is UnionType:
        return any(_fits(value, each) for each in inner)
    if origin is dict:
        return isinstance(value, dict) and _all_fit(value.values(), inner[1])
    if origin is list:
        return isinstance(value, list) and _all_fit(value, inner[0])
    assert issubclass(hint, Enum), f"a kept field of the type {hint} must be read from JSON somehow"
    return any(value == each.value for each in hint)


def _all_fit(values: Any, hint: Any) -> bool:
    """Lists of thousands of numbers are looked at once, not one by one."""
    return set(map(type, values)) <= PLAIN[hint] if hint in PLAIN else all(_fits(each, hint) for each in values)


def _shown(value: Any) -> str:
    told = repr(value)
    return told if len(told) <= SHOWN else f"{told[:SHOWN]}..."
