"""Replaces transformers' functions of convolutions and recurrences in a model's file.

What replaces them computes our forwards by our rows, and leaves every other call to the function that was there.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Iterable
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch

from paceline.targets.hf.recurrent.kinds import CONVOLUTION, Function, Recurrence, functions

if TYPE_CHECKING:
    from paceline.targets.hf.recurrent.forward import RecurrentForward

current: ContextVar[RecurrentForward | None] = ContextVar("paceline_recurrent", default=None)
"""The forward that the functions belong to; None outside of ours."""
OURS = "_paceline_replaces"
_installing = threading.Lock()


def knows(home: str) -> bool:
    """Whether a model file, by its module's name, computes states by functions that are known here."""
    return _function(home, CONVOLUTION) is not None


def install(homes: Iterable[str]) -> None:
    """Replace the functions in these files; once."""
    with _installing:
        for home in homes:
            for name, (kind, single) in functions().items():
                whole, one = _function(home, name), _function(home, single)
                if whole is not None and one is not None and not hasattr(whole, OURS):
                    setattr(sys.modules[home], name, _recurrence(kind(whole, one)))
            convolution = _function(home, CONVOLUTION)
            if convolution is not None and not hasattr(convolution, OURS):
                setattr(sys.modules[home], CONVOLUTION, _convolution(convolution))


def _function(home: str, name: str) -> Function | None:
    """A function that a model file of transformers defines. Files that come with a model may mean something else by the
    name."""
    found = vars(sys.modules[home]).get(name) if home.startswith("transformers.models.") else None
    return found if callable(found) and getattr(found, "__module__", None) == home else None


def ours() -> RecurrentForward | None:
    """The forward that a call belongs to. A model that its owner compiles is traced as it is."""
    return None if torch.compiler.is_compiling() else current.get()


def _recurrence(kind: Recurrence) -> Function:
    @wraps(kind.whole)
    def recurrence(*args: Any, **kwargs: Any) -> Any:
        forward = ours()
        return kind.whole(*args, **kwargs) if forward is None else forward.recurred(kind, args, kwargs)

    setattr(recurrence, OURS, kind.whole)
    return recurrence


def _convolution(whole: Function) -> Function:
    signature = inspect.signature(whole)

    @wraps(whole)
    def convolution(*args: Any, **kwargs: Any) -> Any:
        forward = ours()
        if forward is None:
            return whole(*args, **kwargs)
        given = signature.bind(*args, **kwargs).arguments
        others = given.pop("kwargs", {})
        rows, weight = given.pop("hidden_states"), given.pop("weight")
        return forward.convolved(
            whole, rows, weight, given.pop("bias", None), given.pop("activation", None), **given, **others
        )

    setattr(convolution, OURS, whole)
    return convolution
