"""Planners by their specs."""

from __future__ import annotations

import re

from paceline.drafters.base import Drafter
from paceline.errors import InputError
from paceline.planning.adaptive import Adaptive, costs_of
from paceline.planning.base import Planner
from paceline.planning.calibrated import calibrated
from paceline.planning.costs import Costs
from paceline.planning.effort import Effort, effort_of
from paceline.planning.fixed import Fixed
from paceline.targets.base import Target

LARGEST_DRAFT = 4096
"""Tokens. No draft this long is ever accepted, and scoring takes memory in proportion."""
DEFAULT = "default"
FORMS = "fixed:N with N draft tokens per round, adaptive, or calibrated"


def make_planner(spec: str | None, drafter: Drafter, target: Target | None = None) -> Planner:
    """The planner that a spec names: ``fixed:n``, or ``fixed`` for drafts of the drafter's size; ``adaptive``;
    ``calibrated``, which needs a target that was calibrated with this drafter. Without a spec, or for ``default``, the
    drafter's own.

    Without a ``target`` only the spec is judged.
    """
    kind, colon, rest = (drafter.planner if spec in (None, DEFAULT) else spec).partition(":")
    if kind == "fixed" and re.fullmatch(r"(-?\d{1,18})?", rest):
        size = int(rest) if rest else drafter.nodes
        if size > LARGEST_DRAFT:
            raise InputError(f"a draft has at most {LARGEST_DRAFT} tokens, not {size}; choose a smaller fixed:N")
        return Fixed(size)
    if kind == "adaptive" and not colon:
        if target is None:
            return Adaptive(drafter, Costs(), Effort())
        return Adaptive(drafter, costs_of(target, drafter.needs), effort_of(target, drafter))
    if kind == "calibrated" and not colon:
        return Fixed(drafter.nodes) if target is None else calibrated(drafter, target)
    raise InputError(f"cannot read planner {spec!r}: write {FORMS}")
