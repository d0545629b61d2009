"""Whether to draft, and how much: asked before a drafter runs, since a draft may cost more than it saves."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from paceline.context import Context


class Planner(Protocol):
    """Sizes drafts. Under the rejection rule not by live timings, which the text would then depend on."""

    def nodes(self, contexts: Sequence[Context]) -> list[int]:
        """How many nodes the next draft of each sequence may hold, 0 for none. They will be scored together."""
        ...


class Fixed:
    """The same number of nodes in every round."""

    def __init__(self, nodes: int) -> None:
        if nodes < 0:
            raise ValueError(f"a draft cannot hold {nodes} tokens; choose 0 (no draft) or more")
        self._nodes = nodes

    def nodes(self, contexts: Sequence[Context]) -> list[int]:
        return [self._nodes] * len(contexts)


def make_planner(spec: str, nodes: int) -> Planner:
    """The planner a spec names: ``fixed:n``, or ``fixed`` for drafts of ``nodes`` nodes."""
    kind, _, count = spec.partition(":")
    if kind != "fixed" or not re.fullmatch(r"(-?\d+)?", count):
        raise ValueError(f"cannot read planner {spec!r}: write fixed:N with N draft tokens per round")
    return Fixed(int(count) if count else nodes)
