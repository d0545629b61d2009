"""Calls of a drafter's methods: what fails is named."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakMethod

from paceline.errors import DrafterError, InputError, PacelineError, is_own, reason
from paceline.tree import DraftTree

if TYPE_CHECKING:
    from paceline.drafters.base import Drafter
    from paceline.targets.base import Target
    from paceline.vocabulary import Vocabulary

T = TypeVar("T")

FAR_BEYOND = 4096
"""A draft of more nodes than this, and than 16 times its budget, is a mistake, and checking it would take time."""


def asked(part: Any, verb: str, *given: Any) -> Any:
    """The return value of a method. Its exception becomes a `DrafterError` that names the drafter, or the planner."""
    try:
        return getattr(part, verb)(*given)
    except Exception as error:
        if isinstance(error, DrafterError) and error.part:
            raise  # of a part of this one, which is named already
        raise failure(part, f"failed in {verb}: {reason(error)}{_place(part, error)}") from error


def fit(drafter: Drafter, target: Target, vocabulary: Vocabulary | None) -> None:
    """Prepare a drafter for a model. Its ValueError is a refusal; another exception of it is a `DrafterError`."""
    try:
        drafter.fit(target, vocabulary)
        drafter.surroundings = _beside(target) if drafter.light else nullcontext
    except PacelineError:
        raise
    except ValueError as error:
        raise InputError(f"{_called(drafter)} cannot draft for {target.name}: {error}") from error
    except Exception as error:
        raise failure(drafter, f"failed in fit: {reason(error)}{_place(drafter, error)}") from error


def _beside(target: Target) -> Callable[[], AbstractContextManager[None]]:
    """What the target's method gives, without holding the target."""
    known = WeakMethod(target.beside)

    def surroundings() -> AbstractContextManager[None]:
        beside = known()
        return nullcontext() if beside is None else beside()

    return surroundings


def answered(part: Any, verb: str, payloads: Sequence[Any], kind: type[T]) -> list[T]:
    """The answers of a method of many, one object of this type for each payload; else a `DrafterError`."""
    found = asked(part, verb, payloads)
    if not isinstance(found, (list, tuple)):
        raise failure(part, f"returned {_a(found)} in {verb}, not a list with {_a(kind)} for each text")
    if len(found) != len(payloads):
        raise failure(part, f"was asked to {verb} for {len(payloads)} texts and answered for {len(found)}")
    for one in found:
        if not isinstance(one, kind):
            raise failure(part, f"returned {_a(one)} in {verb}, where {_a(kind)} belongs")
    return list(found)


def counted(drafter: Drafter, state: Any) -> Mapping[str, float]:
    """The counts of a drafter for a text, by the names that it declares; else a `DrafterError`."""
    counts: Mapping[str, float] = asked(drafter, "counts", state)
    if not counts:
        return counts
    declared = [counter.name for counter in drafter.counters]
    for name, count in counts.items():
        if name not in declared:
            raise failure(drafter, f"counted {name!r}, which is none of its counters: {', '.join(declared) or 'none'}")
        if not isinstance(count, (int, float)):
            raise failure(drafter, f"counted {_a(count)} of {name}, where a number belongs")
    return counts


def failure(part: Any, what: str) -> DrafterError:
    """The error that says what a drafter, or a planner, did wrong."""
    error = DrafterError(f"{_called(part)} {what}")
    error.part, error.own = _called(part), is_own(part)
    return error


def _place(part: Any, error: Exception) -> str:
    """The last line of the plug-in's own file that the error went through."""
    own = getattr(sys.modules.get(part.__class__.__module__), "__file__", None)
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == own]
    return f" ({Path(own).name}, line {lines[-1]})" if own and lines and not is_own(part) else ""


def _called(part: Any) -> str:
    kind = "planner" if hasattr(type(part), "plan") else "drafter"
    return f"{kind} {getattr(part, 'spec', '') or getattr(part, 'name', '') or type(part).__name__!r}"


def _a(thing: object) -> str:
    """An object or a type by its type's name."""
    name = "None" if thing is None else (thing if isinstance(thing, type) else type(thing)).__name__
    return name if name == "None" else f"an {name}" if name[0].lower() in "aeiou" else f"a {name}"


def admitted(part: Any, tree: DraftTree, nodes: int, vocab_size: int | None = None) -> DraftTree:
    """The first nodes of a draft, as many as its budget has, which are checked. The others are dropped unseen."""
    try:
        if (count := len(tree)) > FAR_BEYOND and count > 16 * nodes:
            raise DrafterError(f"a draft of {count} nodes was made for a budget of {nodes}")
        tree = tree.head(nodes)
        tree.check(vocab_size)
    except Exception as error:
        what = str(error) if isinstance(error, DrafterError) else reason(error)  # of the draft's own check
        raise failure(part, f"gave no valid draft: {what}") from error
    return tree
