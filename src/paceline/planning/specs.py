"""Planners by their specs."""

from __future__ import annotations

import re

from paceline.drafters.base import Drafter
from paceline.errors import InputError
from paceline.planning.adaptive import Adaptive, costs_of
from paceline.planning.base import Planner
from paceline.planning.calibrated import calibrated
from paceline.planning.costs import Costs
from paceline.planning.fixed import Fixed
from paceline.targets.base import Target

LARGEST_DRAFT = 4096
"""Tokens. No draft of so many is ever accepted, and to score them takes memory with their number."""
FORMS = "fixed:N with N draft tokens per round, adaptive, or calibrated"


def make_planner(spec: str | None, drafter: Drafter, target: Target | None = None) -> Planner:
    """The planner that a spec names, or without one the drafter's own: ``fixed:n``, or ``fixed`` for drafts of the
    drafter's size; ``adaptive``; ``calibrated``, which needs a target that was calibrated with this drafter.

    Without a ``target`` only the spec is judged.
    """
    kind, colon, rest = (spec or drafter.planner).partition(":")
    if kind == "fixed" and re.fullmatch(r"(-?\d{1,18})?", rest):
        size = int(rest) if rest else drafter.nodes
        if size > LARGEST_DRAFT:
            raise InputError(f"a draft has at most {LARGEST_DRAFT} tokens, not {size}; choose a smaller fixed:N")
        return Fixed(size)
    if kind == "adaptive" and not colon:
        return Adaptive(drafter, Costs() if target is None else costs_of(target, drafter.needs))
    if kind == "calibrated" and not colon:
        return Fixed(drafter.nodes) if target is None else calibrated(drafter, target)
    raise InputError(f"cannot read planner {spec!r}: write {FORMS}")
