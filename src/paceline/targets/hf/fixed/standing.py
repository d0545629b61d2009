"""Whether a model is still the one that was recorded: a recording knows addresses, not modules."""

from __future__ import annotations

from typing import Any

from torch import nn


class Standing:
    """What a recording took from a model besides values: which modules it is made of, where their weights are, and
    whether somebody listens or has put a forward of his own in place."""

    def __init__(self, model: nn.Module) -> None:
        self._modules = [
            (vars(module), dict(module._modules), _around(vars(module)), _places(vars(module)))
            for module in model.modules()
        ]

    def holds(self) -> bool:
        """Asked for every replay, so it walks what is known instead of asking torch for all modules anew."""
        return all(
            state["_modules"] == children and _around(state) == around and _places(state) == places
            for state, children, around, places in self._modules
        )


def _around(state: dict[str, Any]) -> tuple[int, int, bool, Any]:
    return len(state["_forward_hooks"]), len(state["_forward_pre_hooks"]), state["training"], state.get("forward")


def _places(state: dict[str, Any]) -> list[int]:
    held = (*state["_parameters"].values(), *state["_buffers"].values())
    return [tensor.data_ptr() for tensor in held if tensor is not None]
