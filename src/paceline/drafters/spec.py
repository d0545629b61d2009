"""Method specs: parsing, and the built-in methods. `plugin` has those of others."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from paceline.drafters.auto import Auto
from paceline.drafters.base import Drafter, Plain
from paceline.drafters.compose import Fallback, Union
from paceline.drafters.dictionary import DictSpec, Hybrid
from paceline.drafters.forced import Forced
from paceline.drafters.foresight import Foresight
from paceline.drafters.lookahead import Lookahead
from paceline.drafters.lookup import Lookup
from paceline.drafters.networks.assistant import Assistant
from paceline.drafters.networks.block import BlockDrafter
from paceline.drafters.networks.eagle import Eagle
from paceline.drafters.networks.hydra import Hydra
from paceline.drafters.networks.medusa import Medusa
from paceline.drafters.networks.mirror import Mirror
from paceline.drafters.networks.redrafter import ReDrafter
from paceline.drafters.networks.streaming import Streaming
from paceline.drafters.plugin import IN_FILE, Factory, InFile, PlugIn, installed
from paceline.drafters.recycling import Recycling
from paceline.drafters.rest import Rest
from paceline.drafters.spectra import Spectra
from paceline.drafters.suffix import Suffix
from paceline.drafters.unispec import UniSpec
from paceline.errors import InputError

BUILT_IN: dict[str, Factory] = {
    method.name: method
    for method in (
        Auto,
        Plain,
        DictSpec,
        Hybrid,
        Lookup,
        Suffix,
        Lookahead,
        Spectra,
        Rest,
        Recycling,
        UniSpec,
        Foresight,
        Forced,
        Assistant,
        Streaming,
        ReDrafter,
        BlockDrafter,
        Medusa,
        Hydra,
        Eagle,
        Mirror,
    )
}
MODEL = "model"
"""The option of every method that drafts with a model: what `make_drafter` is given, where the spec names none."""
PLACE = "device"
"""The option of every method whose draft model has a separate device."""

_NAME = re.compile(r"[A-Za-z][\w.-]*")
_QUOTES = "\"'"
_PLANNED = re.compile(r"(.*)@(fixed:\d+|adaptive|calibrated|default)\s*", re.DOTALL)
"""A method with a planner behind it."""
_FILES = re.compile(
    r"(?<=[:,])\s*(?P<key>file|corpus|memory)\s*=\s*(?:(?P<mark>['\"])(?P<quoted>.*?)(?P=mark)|(?P<bare>[^,+'\"]+))"
)
"""The options that name files."""


@cache
def available() -> dict[str, Factory]:
    """All methods by name: the built-in ones and the installed plug-ins, which cannot replace them."""
    return {**installed(BUILT_IN), **BUILT_IN}


def plug_ins() -> list[str]:
    """Names of the methods that other packages bring."""
    return sorted(set(available()) - set(BUILT_IN))


def make_drafter(spec: str, model: Any = None, *, device: str | None = None, must_use: bool = True) -> Drafter:
    """The drafter a spec names. Its methods that draft with a model take ``model`` unless they name one, and ``device``
    likewise; if there is no such method that is a mistake, or with ``must_use=False`` none.

    >>> make_drafter("lookup:max_ngram=4").sizes
    range(1, 5)
    """
    given = {key: value for key, value in ((MODEL, model), (PLACE, device)) if value is not None}
    taken: list[str] = []
    unions = [_union(part, spec, given, taken) for part in _split(spec)]
    if must_use and MODEL in given and MODEL not in taken:
        raise InputError(f"a draft model is given, and method {spec!r} uses none; write 'assistant' or leave it out")
    if must_use and PLACE in given and PLACE not in taken:
        raise InputError(f"a place for the draft model is given, and method {spec!r} has none; 'mirror' has")
    drafter = unions[0] if len(unions) == 1 else Fallback(unions)
    drafter.spec = (
        spec.strip() if any(mark in spec for mark in _QUOTES) else re.sub(r"\s*([,+:=])\s*", r"\1", spec.strip())
    )
    return drafter


def methods_in(spec: str) -> dict[str, Factory]:
    """The methods that a spec names, in order, without their options."""
    parts = (part for union in _split(spec) for part in _parted(union, "+"))
    return {name: factory for name, factory, _ in (method_of(part.strip(), spec) for part in parts)}


def only_method(spec: str) -> Factory | None:
    """The method of a spec that names a single one, without its options."""
    unions = _split(spec)
    parts = _parted(unions[0], "+")
    return method_of(parts[0].strip(), spec)[1] if len(unions) == len(parts) == 1 else None


def absolute(spec: str) -> str:
    """The same spec with files by their absolute paths, which hold wherever a process of a server starts."""
    return _FILES.sub(lambda found: f"{found['key']}={file_names(found['quoted'] or found['bare'])}", spec)


def file_names(files: str) -> str:
    """The absolute paths of files, named with commas between them, as the value of an option."""
    value = ",".join(str(Path(file.strip()).absolute()) for file in files.split(","))
    if "'" in value and '"' in value:
        raise InputError(f"{value} holds both kinds of quotes, and a method's spec has no way to write it; rename it")
    return f'"{value}"' if "'" in value else f"'{value}'"


def _parted(text: str, mark: str) -> list[str]:
    """``text`` split at ``mark``, but not inside quotes, which a value needs that holds a comma or a plus."""
    pieces, open_quote = [""], ""
    for letter in text:
        if letter == mark and not open_quote:
            pieces.append("")
            continue
        if letter == open_quote:
            open_quote = ""
        elif letter in _QUOTES and not open_quote:
            open_quote = letter
        pieces[-1] += letter
    if open_quote:
        raise InputError(f"cannot read {text!r}: the quote {open_quote} is opened and not closed")
    return pieces


def _split(spec: str) -> list[str]:
    """Pieces of a fallback list; ``key=value`` after a comma still belongs to the method before it."""
    if found := _PLANNED.fullmatch(spec):
        raise InputError(
            f"{spec!r} names a planner, which only 'paceline bench run' takes in a method; write --method {found[1]} "
            f"--planner {found[2]}, and in Python planner={found[2]!r}"
        )
    pieces: list[str] = []
    for piece in _parted(spec, ","):
        if pieces and re.match(r"\s*\w+\s*=", piece):
            pieces[-1] += "," + piece
        else:
            pieces.append(piece)
    return pieces


def _union(text: str, spec: str, given: dict[str, Any], taken: list[str]) -> Drafter:
    parts = [_single(part, spec, given, taken) for part in _parted(text, "+")]
    return parts[0] if len(parts) == 1 else Union(parts)


def _single(text: str, spec: str, given: dict[str, Any], taken: list[str]) -> Drafter:
    name, factory, rest = method_of(text.strip(), spec)
    options = _options(name, factory, rest, given)
    taken += given.keys() & options.keys()
    made = factory(**options)
    if rest and "=" not in _parted(rest, ",")[0]:  # as its authors have it, size included
        made.planner = "fixed"
    defaults = {key: parameter.default for key, parameter in (_parameters(factory) or {}).items()}
    made.spec_options = MappingProxyType({**defaults, **options})
    return made


def method_of(text: str, spec: str) -> tuple[str, Factory, str]:
    """A method's name, what makes its drafter, and its options as written, of a part of a spec."""
    if found := IN_FILE.fullmatch(text):
        factory = InFile(found["path"], found["kind"])
        return factory.name, factory, found["options"] or ""
    name, colon, rest = text.partition(":")
    if not _NAME.fullmatch(name) or (colon and not rest):
        raise InputError(
            f"cannot read method {spec!r}: write name, name:key=value, ./file.py:Class, 'a,b' (fallback) or "
            "'a+b' (union)"
        )
    made = available().get(name)
    if made is None:
        close = difflib.get_close_matches(name, available(), n=1)
        hint = f"did you mean {close[0]}?" if close else f"'paceline methods' lists {', '.join(sorted(available()))}"
        if "=" in spec.partition(text)[0]:
            hint += "; put a value that holds + or , in quotes, and a preset first"
        raise InputError(f"unknown method {name!r}; {hint}")
    return name, made, rest


def _options(name: str, factory: Factory, text: str, given: dict[str, Any]) -> dict[str, Any]:
    """The options in a method's spec, and those ``given`` options that the method takes and its spec leaves out."""
    known = _parameters(factory)
    pairs, preset = _parted(text, ",") if text else [], dict[str, Any]()
    if pairs and "=" not in pairs[0]:
        preset = _preset(name, factory, pairs.pop(0).strip())
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = (piece.strip() for piece in pair.partition("="))
        if len(value) > 1 and value[0] in _QUOTES and value[0] == value[-1]:
            value = value[1:-1]
        if not equals or not key or not value:
            raise InputError(f"cannot read {pair!r} in method {name!r}: write key=value")
        if key in options:
            raise InputError(f"method {name!r} is given option {key!r} twice; keep one of them")
        if known is not None and key not in known:
            takes = ", ".join(known) or "no options"
            raise InputError(f"method {name!r} has no option {key!r}; it takes {takes}")
        options[key] = _convert(name, key, value, _kind(known[key]) if known else str)
    options = preset | options
    options.update({key: value for key, value in given.items() if key in (known or {}) and key not in options})
    implied = getattr(factory, "implied", None)
    options = {**(implied(options) if implied else {}), **options}
    for key, parameter in (known or {}).items():
        if parameter.default is parameter.empty and key not in options:
            if key == MODEL:
                give = "give draft_model=NAME (--draft-model NAME on the command line)"
                raise InputError(f"method {name!r} needs a draft model: write {name}:model=NAME or {give}")
            raise InputError(f"method {name!r} needs option {key!r}: write {name}:{key}=value")
    return options


def _preset(name: str, factory: Factory, wanted: str) -> dict[str, Any]:
    """The options that a name in a method's spec stands for."""
    presets: Mapping[str, Mapping[str, Any]] = getattr(
        factory.load() if isinstance(factory, PlugIn) else factory, "presets", {}
    )
    if wanted not in presets:
        takes = " or ".join(["key=value", *(f"{name}:{preset}" for preset in presets)])
        raise InputError(f"cannot read {wanted!r} in method {name!r}: write {takes}")
    if (known := _parameters(factory)) is not None and (unknown := presets[wanted].keys() - known):
        raise InputError(
            f"preset {wanted!r} of method {name!r} sets {', '.join(sorted(unknown))}, which it does not take"
        )
    return dict(presets[wanted])


def _parameters(factory: Factory) -> dict[str, inspect.Parameter] | None:
    """Options of a method by name; None where it takes any or cannot say."""
    own_factory = factory.load() if isinstance(factory, PlugIn) else factory
    try:
        signature = inspect.signature(own_factory)
    except ValueError:
        return None
    own = {n: p for n, p in signature.parameters.items() if p.kind is not p.VAR_POSITIONAL}
    return None if any(p.kind is p.VAR_KEYWORD for p in own.values()) else own


def _kind(parameter: inspect.Parameter) -> type:
    """The type that an option's text is read as: that of its annotation, or else of its default."""
    words = set(re.findall(r"\w+", inspect.formatannotation(parameter.annotation)))
    for kind in (bool, float, int, str):
        if kind.__name__ in words:
            return kind
    return type(parameter.default) if type(parameter.default) in (bool, int, float) else str


def _convert(name: str, key: str, value: str, kind: type) -> Any:
    if kind is bool:
        if value.lower() not in ("true", "false"):
            raise InputError(f"option {key!r} of method {name!r} is true or false, not {value!r}")
        return value.lower() == "true"
    try:
        return kind(value)
    except ValueError:
        noun = "a whole number" if kind is int else "a number"
        raise InputError(f"option {key!r} of method {name!r} takes {noun}, not {value!r}") from None
