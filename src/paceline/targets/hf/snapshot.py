"""A snapshot of a model, which is compared when a text begins: has the owner changed the model since?

Paths depend on properties of a model that were read when they were made: its modules, the addresses of its weights.
Modules of torch and transformers decide by their own attributes, which can be compared. A hook or a module of the
owner's may depend on anything (an adapter that a flag switches off), so models with such parts are never recorded.

Values of weights are not compared. Paths read them in every forward, so a change in place takes effect; rows of earlier
texts were made before it, and `paceline.LanguageModel.forget` drops those.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from operator import is_, itemgetter
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as module_base

KNOWN = frozenset({"torch", "transformers", "paceline"})
"""Packages whose modules are recorded."""
OF_TORCH = frozenset(vars(nn.Module())) - {"_modules", "_forward_hooks", "_forward_pre_hooks"}
"""Attributes that torch keeps in every module and that a forward does not read, or that are compared one by one."""


def origin(defined: Any) -> str:
    """The package that a class or a function is from."""
    return str(defined.__module__).partition(".")[0]


def is_altered(module: nn.Module) -> bool:
    """Whether a module has hooks, or another forward than its class's."""
    return bool("forward" in vars(module) or module._forward_hooks or module._forward_pre_hooks)


class DefinitionSnapshot:
    """The forward functions of classes, and the functions and classes in transformers' files that define them."""

    def __init__(self, classes: Iterable[type[nn.Module]]) -> None:
        known = list(dict.fromkeys(classes))
        self._forwards = [(of_class, of_class.forward) for of_class in known]
        homes = dict.fromkeys(of_class.__module__ for of_class in known if origin(of_class) == "transformers")
        self._files = [_functions(vars(sys.modules[home])) for home in homes]

    def unchanged(self) -> bool:
        try:
            same = all(get(names) == before for names, get, before in self._files)
        except KeyError:
            return False
        return same and all(of_class.forward is forward for of_class, forward in self._forwards)


def _functions(names: dict[str, Any]) -> tuple[dict[str, Any], itemgetter[Any], Any]:
    kept = [name for name, value in names.items() if isinstance(value, FunctionType | type)]
    get = itemgetter(*kept)
    return names, get, get(names)


class ModelSnapshot:
    """The properties of a model on which paths depend, besides values: modules, classes, attributes and the addresses
    of weights.

    The memory of the weights is held as long as the snapshot lives: texts that are being written read the old addresses
    where the owner replaces weights. What is compared lies in lists of one kind, which are compared in loops that run
    in C.
    """

    def __init__(self, model: nn.Module) -> None:
        modules = list(model.modules())
        self.obstacle: str | None = next(_obstacles(modules), None)
        """Why the model must not be recorded as it is."""
        self._modules, self._classes = modules, [type(module) for module in modules]
        self._definitions = DefinitionSnapshot(self._classes)
        self._hooked = bool(module_base._has_any_global_hook())
        configs = {id(config): config for module in modules if (config := vars(module).get("config")) is not None}
        self._states = [vars(one) for one in (*modules, *configs.values())]
        self._attributes = [state.copy() for state in self._states]
        containers = [inside for module in modules for inside in _containers(vars(module))]
        self._empty = [inside for inside in containers if not inside]
        """Nearly all: dictionaries of hooks, and of the children of modules that have none."""
        self._full = [inside for inside in containers if inside]
        self._contents = [inside.copy() for inside in self._full]
        weights = [weight for module in modules for weight in _tensors(vars(module))]
        self._places = [place for place, _, _ in weights]
        self._names = [name for _, name, _ in weights]
        self._held = [held for _, _, held in weights]
        aliased = [(held, alias) for held in self._held if held is not None and (alias := _alias(held)) is not None]
        self._strided, self._aliases = [held for held, _ in aliased], [alias for _, alias in aliased]

    def unchanged(self) -> bool:
        """Asked for every text, so it compares what it knows and does not walk the model again."""
        try:
            return (
                list(map(type, self._modules)) == self._classes
                and bool(module_base._has_any_global_hook()) == self._hooked
                and self._definitions.unchanged()
                and self._states == self._attributes
                and not any(self._empty)
                and self._full == self._contents
                and all(map(is_, map(dict.get, self._places, self._names), self._held))
                and all(map(torch.Tensor.is_set_to, self._strided, self._aliases))
            )
        except (RuntimeError, TypeError, ValueError):  # tensors and arrays that were replaced do not compare
            return False


def _obstacles(modules: list[nn.Module]) -> Iterator[str]:
    if module_base._has_any_global_hook():
        yield "all modules are hooked"
    for module in modules:
        state, name = vars(module), type(module).__name__
        if origin(type(module)) not in KNOWN or origin(type(module).forward) not in KNOWN:
            yield f"{name} is not a module of transformers or torch"
        if state["_forward_hooks"] or state["_forward_pre_hooks"]:
            yield f"a {name} is hooked"
        if "forward" in state:
            yield f"a {name} was given another forward"


def _containers(state: dict[str, Any]) -> Iterator[Any]:
    """Containers in a module, which may change in place: torch's dictionaries of hooks are there before any hook is."""
    for name, value in state.items():
        if name not in OF_TORCH and isinstance(value, dict | list | set):
            yield value


def _tensors(state: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str, torch.Tensor | None]]:
    """Parameters and buffers, absent ones too, and tensors that are plain attributes."""
    for place in (state["_parameters"], state["_buffers"]):
        yield from ((place, name, held) for name, held in place.items())
    yield from ((state, name, value) for name, value in state.items() if isinstance(value, torch.Tensor))


def _alias(tensor: torch.Tensor) -> torch.Tensor | None:
    """Another tensor over the same memory; None where torch cannot compare memory."""
    if tensor.layout is not torch.strided:
        return None
    try:
        alias = tensor.detach()
        return alias if tensor.is_set_to(alias) else None
    except (RuntimeError, TypeError, NotImplementedError):
        return None
