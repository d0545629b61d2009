"""Replaces transformers' functions of convolutions and recurrences in a model's file.

What replaces them computes our forwards by our rows, and leaves every other call to the function that was there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Any

from paceline.targets.hf.recurrent.kinds import CONVOLUTION, Function, Recurrence, functions

if TYPE_CHECKING:
    from paceline.targets.hf.recurrent.forward import RecurrentForward

current: ContextVar[RecurrentForward | None] = ContextVar("paceline_recurrent", default=None)
"""The forward that the functions belong to; None outside of ours."""
OURS = "_paceline_replaces"


def knows(home: str) -> bool:
    """Whether a model file, by its module's name, computes states by functions that are known here."""
    return CONVOLUTION in vars(sys.modules[home])


def install(homes: Iterable[str]) -> None:
    """Replace the functions in these files; once."""
    for home in homes:
        names = vars(sys.modules[home])
        for name, (kind, single) in functions().items():
            if name in names and single in names and not hasattr(names[name], OURS):
                setattr(sys.modules[home], name, _recurrence(kind(names[name], names[single])))
        if CONVOLUTION in names and not hasattr(names[CONVOLUTION], OURS):
            setattr(sys.modules[home], CONVOLUTION, _convolution(names[CONVOLUTION]))


def _recurrence(kind: Recurrence) -> Function:
    @wraps(kind.whole)
    def recurrence(*args: Any, **kwargs: Any) -> Any:
        forward = current.get()
        return kind.whole(*args, **kwargs) if forward is None else forward.recurred(kind, args, kwargs)

    setattr(recurrence, OURS, kind.whole)
    return recurrence


def _convolution(whole: Function) -> Function:
    @wraps(whole)
    def convolution(
        hidden_states: Any, weight: Any, bias: Any = None, activation: str | None = None, **others: Any
    ) -> Any:
        forward = current.get()
        if forward is None:
            return whole(hidden_states, weight, bias, activation=activation, **others)
        return forward.convolved(whole, hidden_states, weight, bias, activation, **others)

    setattr(convolution, OURS, whole)
    return convolution
