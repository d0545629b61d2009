"""The one way to watch a text being written: its observer, a function that is called after each round.

An observer is shown the round and changes nothing. It sees every record of `Session.rounds` once, in order, before the
tokens of the round are handed out; the first of a text may be that of its prompt, where the first token came with it.
Its seconds count for no round. An observer that raises ends its own text with a `CallbackError`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from paceline.context import Context
from paceline.engine.counters import Round
from paceline.errors import CallbackError, called
from paceline.targets.scores import Scores
from paceline.tree import DraftTree
from paceline.verify import Verdict


class Observed(NamedTuple):
    """One round of a text."""

    context: Context
    """The text, with the tokens of the round."""
    round: Round
    """Its record."""
    draft: DraftTree
    """The draft that was scored; of what the drafter proposed, the part that the planner chose."""
    verdict: Verdict
    """The accepted path, and the emitted tokens."""
    scores: Scores
    """Of the root and the draft. They are read lazily, and only until the next round begins."""


Observer: TypeAlias = Callable[[Observed], None]


class Showing(NamedTuple):
    """One sequence whose observer must be called."""

    observer: Observer
    observed: Observed


class Audience:
    """Calls observers. It answers calls of the loop as a drafter or a target does, so a driver times it apart."""

    def show(self, showings: Sequence[Showing]) -> list[CallbackError | None]:
        """None for each sequence, or what went wrong with its observer."""
        return [_shown(*showing) for showing in showings]


AUDIENCE = Audience()


def _shown(observer: Observer, observed: Observed) -> CallbackError | None:
    try:
        called("observer", observer, observed)
    except CallbackError as error:
        return error
    return None
