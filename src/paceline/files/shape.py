"""JSON values checked against a type and converted to it: a dataclass, a tuple of numbers, a mapping.

A value that does not fit is a ValueError that names the field, as in ``'timings[3].seconds' is 'x'``. So a damaged file
is refused where it is read, and later code never gets a text in place of a number, a NaN, or a number so large that
sums of it overflow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Required, TypeVar, Union, cast, get_args, get_origin, get_type_hints, is_typeddict

T = TypeVar("T")

LARGEST_EXACT_INTEGER = 2**53
"""Larger whole numbers are not exact as floats."""
DEEPEST = 32
"""Levels of nesting."""
SHOWN = 40
"""Characters of a wrong value that are shown."""
PLAIN: dict[Any, frozenset[type]] = {
    int: frozenset({int, bool}),
    float: frozenset({int, float, bool}),
    str: frozenset({str}),
    bool: frozenset({bool}),
    NoneType: frozenset({NoneType}),
}
"""A type -> the types of values that fit it: a whole number of seconds is written without a decimal point."""


@dataclass(frozen=True)
class Bounds:
    """Bounds of a number."""

    least: float
    most: float = LARGEST_EXACT_INTEGER


Count = Annotated[int, Bounds(0)]
Amount = Annotated[float, Bounds(0)]
LogProbability = Annotated[float, Bounds(-math.inf)]
ANY = Bounds(-LARGEST_EXACT_INTEGER)


def shaped(kind: type[T], value: Any) -> T:
    """The value as a ``kind``; ValueError where it does not fit."""
    return cast("T", _made(kind, value, ""))


def _made(hint: Any, value: Any, where: str) -> Any:
    if hint is Any:
        _check_opaque(value, where, 0)
        return value
    extra = None
    if get_origin(hint) is Annotated:
        hint, extra = get_args(hint)
    if hint in PLAIN:
        if type(value) not in PLAIN[hint]:
            raise _wrong(where, value)
        _check_plain(hint, [value], extra or ANY, lambda _: where)
        return value
    if is_typeddict(extra):
        _made(dict[str, Any], value, where)
        _check_known(extra, value, where)
        return value
    if is_dataclass(hint):
        return _made_dataclass(hint, value, where)
    if isinstance(hint, type) and issubclass(hint, Enum):
        if not any(value == one.value for one in hint):
            raise _wrong(where, value)
        return hint(value)
    if hasattr(hint, "_fields"):
        return hint(*_made_row(_hints(hint).values(), value, where))
    return _made_container(hint, value, where)


def _made_container(hint: Any, value: Any, where: str) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (UnionType, Union):
        return _made_union(inner, value, where)
    if origin is list or (origin is tuple and inner[-1] is Ellipsis):
        if not isinstance(value, list):
            raise _wrong(where, value)
        return origin(_all_made(inner[0], value, lambda place: f"{where}[{place}]"))
    if origin is tuple:
        return _made_row(inner, value, where)
    assert isinstance(origin, type) and issubclass(origin, Mapping), f"{hint} is no type of a JSON value"
    if not isinstance(value, dict):
        raise _wrong(where, value)
    names = list(value)
    keys = [_made_key(inner[0], name, where) for name in names]
    values = _all_made(inner[1], list(value.values()), lambda place: _inside(where, names[place]))
    return dict(zip(keys, values, strict=True))


def _made_row(kinds: Collection[Any], value: Any, where: str) -> tuple[Any, ...]:
    """A list with a type for each item."""
    if not isinstance(value, list) or len(value) != len(kinds):
        raise _wrong(where, value)
    return tuple(_made(*each, f"{where}[{place}]") for place, each in enumerate(zip(kinds, value, strict=True)))


def _made_union(kinds: Iterable[Any], value: Any, where: str) -> Any:
    """None, or the first type that fits; the error is that of the last one."""
    if value is None and NoneType in kinds:
        return None
    *others, last = [kind for kind in kinds if kind is not NoneType]
    for kind in others:
        try:
            return _made(kind, value, where)
        except ValueError:
            continue
    return _made(last, value, where)


def _made_dataclass(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"{repr(where) if where else 'it'} is {_shown(value)} and no object")
    hints = _hints(kind)
    _check_texts(value, where)
    if unknown := set(value) - set(hints):
        raise ValueError(f"nothing is called {_inside(where, min(unknown))!r}")
    found = {}
    for field in fields(kind):
        if field.name in value:
            found[field.name] = _made(hints[field.name], value[field.name], _inside(where, field.name))
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"it lacks {_inside(where, field.name)!r}")
    return kind(**found)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _check_known(kind: Any, value: Mapping[str, Any], where: str) -> None:
    """Check the declared fields of an object that may have more."""
    for name, hint in _hints(kind).items():
        required = get_origin(hint) is Required
        if name in value:
            _made(get_args(hint)[0] if required else hint, value[name], _inside(where, name))
        elif required:
            raise ValueError(f"it lacks {_inside(where, name)!r}")


def _made_key(hint: Any, name: str, where: str) -> Any:
    _check_texts([name], where)
    if hint is str:
        return name
    number = name.removeprefix("-")
    if not (number.isascii() and number.isdecimal() and len(number) < 20):
        raise ValueError(f"{where!r} has the name {_shown(name)}, which is no number")
    return _made(hint, int(name), _inside(where, name))


def _all_made(hint: Any, values: list[Any], name: Callable[[int], str]) -> list[Any]:
    """All items of one type. Lists of thousands of numbers are checked at once, not one by one."""
    kind, bounds = get_args(hint) if get_origin(hint) is Annotated else (hint, ANY)
    if kind not in PLAIN or not isinstance(bounds, Bounds):
        return [_made(hint, value, name(place)) for place, value in enumerate(values)]
    if not set(map(type, values)) <= PLAIN[kind]:
        place = next(place for place, value in enumerate(values) if type(value) not in PLAIN[kind])
        raise _wrong(name(place), values[place])
    _check_plain(kind, values, bounds, name)
    return values


def _check_plain(kind: Any, values: list[Any], bounds: Bounds, name: Callable[[int], str]) -> None:
    """Numbers must be within their bounds, texts must be writable."""
    if kind is str and values:
        _check_texts(values, name(0))
    elif kind in (int, float) and values:
        ends = bounds.least <= min(values) and max(values) <= bounds.most
        if not ends or math.isnan(sum(values)):  # min and max may pass over a NaN
            place = next(place for place, value in enumerate(values) if not bounds.least <= value <= bounds.most)
            raise _wrong(name(place), values[place])


def _check_texts(texts: Iterable[str], where: str) -> None:
    """JSON can escape half of a character, which no file and no terminal takes."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        raise ValueError(f"{where!r} has half of a surrogate pair, which is no character") from None


def _check_opaque(value: Any, where: str, depth: int) -> None:
    """Check a value of any type, which is only shown: it is not nested too deep, and its texts are writable."""
    if depth > DEEPEST:
        raise ValueError(f"{where!r} is nested too deep")
    if isinstance(value, dict):
        _check_texts(value, where)
        for name, inner in value.items():
            _check_opaque(inner, _inside(where, name), depth + 1)
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            _check_opaque(inner, f"{where}[{place}]", depth + 1)
    else:
        _made(type(value), value, where)


def _inside(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _wrong(where: str, value: Any) -> ValueError:
    return ValueError(f"{where!r} is {_shown(value)}" if where else f"it is {_shown(value)}")


def _shown(value: Any) -> str:
    if isinstance(value, int) and value.bit_length() > 4 * SHOWN:
        return f"a number of {value.bit_length()} bits"
    shown = repr(value)
    return shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}..."
