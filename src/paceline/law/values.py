"""Checks of a setting's type, whose messages name the mend, and a short repr."""

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from numbers import Integral, Real
from typing import Any

from paceline.errors import InputError, name_of, shown

LEAVE = "; leave it out for the default"


def number(holds: Callable[[Any], bool], wants: str) -> Callable[[str, Any], None]:
    """The check of a number, with what to write instead of one that does not hold."""

    def check(name: str, value: Any) -> None:
        require_number(name, value)
        require(holds(value), f"{name} is {value}: {wants}")

    return check


def whole(holds: Callable[[Any], bool], wants: str) -> Callable[[str, Any], None]:
    """The same of a whole number."""

    def check(name: str, value: Any) -> None:
        require_whole(name, value)
        require(holds(value), f"{name} is {value}: {wants}")

    return check


def require_whole(name: str, value: object) -> None:
    """Refuse a setting that is no whole number; True and False are none."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    require(whole, f"{name} is a whole number, not {shown(value)}{_mend(value, int)}")


def require_number(name: str, value: object) -> None:
    """Refuse a setting that is no number; True and False are none."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise InputError(f"{name} is a number, not {shown(value)}{_mend(value, float)}")
    try:
        float(value)
    except OverflowError:
        raise InputError(f"{name} has too many digits: use a number of at most 1.8e308") from None


def is_listed(value: object) -> bool:
    """Whether a value is a list, or what is as good as one."""
    return isinstance(value, Collection) and not isinstance(value, (str, bytes, Mapping))


def require_callables(name: str, one: str, value: object, arguments: Sequence[str]) -> None:
    """Refuse a setting that is no list of functions of these ``arguments``. A list may be callable itself, as those of
    transformers are."""
    require(is_listed(value) or not callable(value), f"{name} is a list: put the one {one} into a list")
    require(is_listed(value), f"{name} is a list of functions, not {shown(value)}" + (LEAVE if value is None else ""))
    for member in value if isinstance(value, Collection) else ():
        require(callable(member), f"{name} is a list of functions; it holds {shown(member)}")
        _require_arguments(f"a {one}", member, arguments)


def require_callable(name: str, value: object, arguments: Sequence[str]) -> None:
    """Refuse a setting that is no function of these ``arguments``."""
    require(callable(value), f"{name} is a function, not {shown(value)}")
    _require_arguments(name, value, arguments)


def _require_arguments(one: str, function: Any, arguments: Sequence[str]) -> None:
    """Refuse a function that cannot be called with these arguments, if its signature is known."""
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        return
    try:
        signature.bind(*arguments)
    except TypeError:
        named = [each.name for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        takes = f"{name_of(function)} takes ({', '.join(named)})"
        raise InputError(f"{one} is called with {' and '.join(arguments)}, and {takes}") from None


def _mend(value: object, kind: type[int] | type[float]) -> str:
    """The right value, if it is obvious."""
    if value is None:
        return LEAVE
    if isinstance(value, (str, float)):
        with suppress(ValueError, OverflowError):
            number = float(value)
            return f"; write {kind(number)}" if kind(number) == number else ""
    return ""


def short_repr(settings: Any) -> str:
    """A dataclass by the fields that are not as they are by default."""
    usual = type(settings)()
    given = ((one.name, getattr(settings, one.name)) for one in fields(settings))
    shown = (f"{name}={value!r}" for name, value in given if value != getattr(usual, name))
    return f"{type(settings).__name__}({', '.join(shown)})"


def require(holds: bool, sentence: str) -> None:
    if not holds:
        raise InputError(sentence)
