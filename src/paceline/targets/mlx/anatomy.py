"""The parts of an mlx-lm model: the stack of layers inside it, its embedding, its final norm and its head.

The head is whatever the model does behind its stack, so it is computed by the model itself, with given states in place
of the stack's output. States are tapped by objects that stand for the stack and for its layers during a forward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from paceline.targets.base import Want
from paceline.tree import Ints

Then = Callable[[Any, Any], Any]
"""Gets the first argument of a module and its result, and returns what takes the place of the result."""

NORMS = ("norm", "norm_f", "ln_f", "final_layernorm", "final_layer_norm", "final_norm", "layer_norm", "ln_out")
"""Names of the norm behind the last layer."""


class Tap:
    """Stands for a module and changes or notes what it returns."""

    def __init__(self, module: Any, then: Then) -> None:
        self._module, self._then = module, then

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._then(args[0] if args else None, self._module(*args, **kwargs))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class GivenStates:
    """Stands for a module and returns what was given."""

    def __init__(self, module: Any, result: mx.array) -> None:
        self._module, self._result = module, result

    def __call__(self, *args: Any, **kwargs: Any) -> mx.array:
        return self._result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


@dataclass(frozen=True)
class LazyOutputs:
    """The results of a forward, in float32, which are not computed yet: of all rows, but logits of the wanted ones."""

    logits: mx.array | None
    hidden: dict[int, mx.array]
    early: mx.array | None


class ModelParts:
    """Where a model's parts are; those of models of another structure are not found, and not used."""

    def __init__(self, model: nn.Module) -> None:
        self.model: Any = model
        self.layers: list[Any] = list(getattr(model, "layers", None) or ())
        self._holder: Any = None
        self.stack: Any = None
        self._name = self._list = ""
        if self.layers and (found := _stack(model, self.layers[0])) is not None:
            self._holder, self._name, self.stack, self._list = found
        self.embedding: Any = next(filter(_embeds, self._children()), None)
        self.norm: Any = next(
            (self.stack[name] for name in NORMS if self.stack is not None and name in self.stack), None
        )

    def _children(self) -> list[Any]:
        return [] if self.stack is None else list(self.stack.children().values())

    def run(self, tokens: Ints, caches: Sequence[Any], want: Want, logit_rows: Ints) -> LazyOutputs:
        """Build a forward over rows that lie behind one another."""
        count, last = len(tokens), len(self.layers)
        chosen = None if len(logit_rows) in (0, count) else mx.array(logit_rows)
        states: dict[int, mx.array] = {}

        def finished(_: Any, found: mx.array) -> mx.array:
            states[last] = found[0]
            return found if chosen is None else found[:, chosen]

        with self._tapped(finished, wanted_states(want) - {last}, states):
            logits: mx.array = self.model(mx.array(tokens.astype(np.int32))[None], cache=caches)
        if chosen is not None and logits.shape[1] == count:  # the stack was not found
            logits = logits[:, chosen]
        return LazyOutputs(
            logits[0].astype(mx.float32) if len(logit_rows) else None,
            {layer: states[layer].astype(mx.float32) for layer in want.hidden},
            None if want.early_exit is None else self._early(states[want.early_exit], want.early_exit == last),
        )

    def _early(self, state: mx.array, normed: bool) -> mx.array:
        return self.head(state if normed or self.norm is None else self.norm(state)).astype(mx.float32)

    @contextmanager
    def _tapped(self, finished: Then, asked: frozenset[int], states: dict[int, mx.array]) -> Iterator[None]:
        """A forward inside notes the asked states, and ``finished`` changes the output of the stack."""
        if self.stack is None:
            yield
            return

        def note(layer: int, given: Any, found: Any) -> Any:
            if layer == 0:
                states[0] = given[0]
            states.setdefault(layer + 1, (found[0] if isinstance(found, tuple) else found)[0])
            return found

        before = self.stack[self._list]
        tapped = {max(each - 1, 0) for each in asked}
        try:
            self.stack[self._list] = [
                Tap(each, partial(note, number)) if number in tapped else each for number, each in enumerate(before)
            ]
            self._holder[self._name] = Tap(self.stack, finished)
            yield
        finally:
            self.stack[self._list] = before
            self._holder[self._name] = self.stack

    def head(self, states: mx.array) -> mx.array:
        """The logits ``[n, vocabulary]`` of states ``[n, width]`` behind the final norm."""
        assert self.stack is not None, "the stack was found"
        self._holder[self._name] = GivenStates(self.stack, states[None])
        try:
            logits: mx.array = self.model(mx.zeros((1, len(states)), mx.int32))
        finally:
            self._holder[self._name] = self.stack
        return logits[0]


def wanted_states(want: Want) -> frozenset[int]:
    """The numbers of the states that a forward notes."""
    return want.hidden if want.early_exit is None else want.hidden | {want.early_exit}


def _embeds(module: Any) -> bool:
    return isinstance(module, nn.Embedding | nn.QuantizedEmbedding)


def _stack(model: nn.Module, layer: Any) -> tuple[Any, str, Any, str] | None:
    """The module whose list begins with this layer: who holds it and under which name, itself, and the list's name."""
    for holder in model.modules():
        for name, child in holder.children().items():
            if isinstance(child, nn.Module):
                for inside, held in child.items():
                    if isinstance(held, list) and held and held[0] is layer:
                        return holder, name, child, inside
    return None
