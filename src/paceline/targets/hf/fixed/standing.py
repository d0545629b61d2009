"""Whether a model may be recorded, and is still the one that was: a recording knows addresses, not modules.

What a replay repeats was decided by Python while it was recorded. Modules of torch and of transformers decide by what
they are made of, which can be looked up; a hook, or a module of its owner's, may decide by anything (an adapter that a
flag switches off), so models with such parts are never recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as module_base

from paceline.targets.hf.definitions import Definitions, origin

KNOWN = frozenset({"torch", "transformers", "paceline"})
"""Whose modules are recorded."""
OF_TORCH = frozenset(vars(nn.Module())) - {"_modules", "_forward_hooks", "_forward_pre_hooks"}
"""What torch keeps in every module and a forward does not look at, or is looked at here one by one."""


class Standing:
    """What a recording took from a model besides values: its modules and their classes, their attributes, where their
    weights are, and that nobody listens. The memory of the weights is held as long as this lives: a replay may be under
    way when the owner replaces them, and reads where they were."""

    def __init__(self, model: nn.Module) -> None:
        modules = list(model.modules())
        self.hindrance: str | None = next(_hindrances(modules), None)
        """Why the model is not to be recorded, as long as this holds."""
        self._modules, self._classes = modules, [type(module) for module in modules]
        self._definitions = Definitions(self._classes)
        self._listening = module_base._has_any_global_hook()
        self._attributes = [(vars(module), dict(vars(module))) for module in modules]
        configs = {id(config): config for module in modules if (config := vars(module).get("config")) is not None}
        self._attributes += [(vars(config), dict(vars(config))) for config in configs.values()]
        self._contents = [(inside, inside.copy()) for module in modules for inside in _containers(vars(module))]
        self._weights = [(place, name, held, _alias(held)) for m in modules for place, name, held in _tensors(vars(m))]

    def holds(self) -> bool:
        """Asked for every replay, so it walks what is known instead of asking torch for all modules anew."""
        try:
            return (
                list(map(type, self._modules)) == self._classes
                and module_base._has_any_global_hook() == self._listening
                and self._definitions.stand()
                and all(now == before for now, before in self._attributes)
                and all(now == before for now, before in self._contents)
                and all(_is_there(*weight) for weight in self._weights)
            )
        except (RuntimeError, TypeError, ValueError):  # tensors and arrays that were replaced do not compare
            return False


def _hindrances(modules: list[nn.Module]) -> Iterator[str]:
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
    """What is inside a module may change in place; hooks come into dictionaries that are empty as long as there are
    none. Weights are looked at one by one."""
    for name, value in state.items():
        if name not in OF_TORCH and isinstance(value, dict | list | set):
            yield value


def _tensors(state: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str, torch.Tensor | None]]:
    """Parameters and buffers, absent ones too, and tensors that are plain attributes."""
    for place in (state["_parameters"], state["_buffers"]):
        yield from ((place, name, held) for name, held in place.items())
    yield from ((state, name, value) for name, value in state.items() if isinstance(value, torch.Tensor))


def _alias(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """The same memory, whatever becomes of the tensor; None where it cannot be told from others."""
    if tensor is None or tensor.layout is not torch.strided:
        return None
    try:
        alias = tensor.detach()
        return alias if tensor.is_set_to(alias) else None
    except (RuntimeError, TypeError, NotImplementedError):
        return None


def _is_there(place: dict[str, Any], name: str, held: torch.Tensor | None, alias: torch.Tensor | None) -> bool:
    return place.get(name) is held and (held is None or alias is None or held.is_set_to(alias))
