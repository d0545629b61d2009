"""Method specs: parsing, the built-in methods, and those that other packages bring.

A package adds a method by an entry point of the group ``paceline.drafters``: its name is the method's name, its value
a `Drafter` class (or any callable that returns a drafter) whose keyword arguments are the method's options.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from paceline.drafters.base import Drafter, Plain
from paceline.drafters.compose import Fallback, Union
from paceline.drafters.lookup import Lookup

Factory = Callable[..., Drafter]

BUILT_IN: dict[str, Factory] = {method.name: method for method in (Plain, Lookup)}
GROUP = "paceline.drafters"

_NAME = re.compile(r"[A-Za-z][\w.-]*")


@cache
def available() -> dict[str, Factory]:
    """All methods by name: the built-in ones and the installed plug-ins, which cannot replace them."""
    plugins = {entry.name: _lazy(entry.load) for entry in entry_points(group=GROUP)}
    return {**plugins, **BUILT_IN}


def _lazy(load: Callable[[], Any]) -> Factory:
    """A plug-in is imported when its method is used, so a broken one breaks nothing else."""

    def factory(**options: Any) -> Drafter:
        made = load()(**options)
        if not isinstance(made, Drafter):
            raise ValueError(f"a plug-in's drafter must derive from paceline.Drafter, not be a {type(made).__name__}")
        return made

    factory.__wrapped__ = load  # type: ignore[attr-defined]
    return factory


def make_drafter(spec: str) -> Drafter:
    """The drafter a spec names.

    >>> make_drafter("lookup:max_ngram=4").sizes
    range(1, 5)
    """
    unions = [_union(part, spec) for part in _split(spec)]
    return unions[0] if len(unions) == 1 else Fallback(unions)


def _split(spec: str) -> list[str]:
    """Pieces of a fallback list; ``key=value`` after a comma still belongs to the method before it."""
    pieces: list[str] = []
    for piece in spec.split(","):
        if pieces and re.match(r"\s*\w+\s*=", piece):
            pieces[-1] += "," + piece
        else:
            pieces.append(piece)
    return pieces


def _union(text: str, spec: str) -> Drafter:
    parts = [_single(part, spec) for part in text.split("+")]
    return parts[0] if len(parts) == 1 else Union(parts)


def _single(text: str, spec: str) -> Drafter:
    name, colon, rest = text.strip().partition(":")
    if not _NAME.fullmatch(name) or (colon and not rest):
        raise ValueError(f"cannot read method {spec!r}: write name, name:key=value, 'a,b' (fallback) or 'a+b' (union)")
    factory = available().get(name)
    if factory is None:
        raise ValueError(f"unknown method {name!r}; 'paceline methods' lists {', '.join(sorted(available()))}")
    return factory(**_options(name, factory, rest))


def _options(name: str, factory: Factory, text: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if not text:
        return options
    known = _parameters(factory)
    for pair in text.split(","):
        key, equals, value = (piece.strip() for piece in pair.partition("="))
        if not equals or not key or not value:
            raise ValueError(f"cannot read {pair!r} in method {name!r}: write key=value")
        if known is not None and key not in known:
            takes = ", ".join(known) or "no options"
            raise ValueError(f"method {name!r} has no option {key!r}; it takes {takes}")
        options[key] = _convert(name, key, value, known[key] if known else None)
    return options


def _parameters(factory: Factory) -> dict[str, inspect.Parameter] | None:
    """Options of a method by name; None for a plug-in that was not imported to ask."""
    target = getattr(factory, "__wrapped__", None)
    if target is not None:
        factory = target()
    own = dict(inspect.signature(factory).parameters)
    return None if any(p.kind is p.VAR_KEYWORD for p in own.values()) else own


def _convert(name: str, key: str, value: str, parameter: inspect.Parameter | None) -> Any:
    default = parameter.default if parameter is not None else None
    if isinstance(default, bool):
        if value.lower() not in ("true", "false"):
            raise ValueError(f"option {key!r} of method {name!r} is true or false, not {value!r}")
        return value.lower() == "true"
    for kind in (int, float):
        if isinstance(default, kind):
            try:
                return kind(value)
            except ValueError:
                noun = "a whole number" if kind is int else "a number"
                raise ValueError(f"option {key!r} of method {name!r} takes {noun}, not {value!r}") from None
    return value
