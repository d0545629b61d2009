"""Planners by their specs."""

from __future__ import annotations

import re
from dataclasses import replace

from paceline.drafters.base import Drafter, Overlaps
from paceline.errors import InputError
from paceline.planning.adaptive import Adaptive, costs_of
from paceline.planning.base import Planner
from paceline.planning.calibrated import calibrated
from paceline.planning.costs import Costs
from paceline.planning.effort import Effort, effort_of
from paceline.planning.fixed import Fixed
from paceline.planning.overlap import TurnsOrOverlap
from paceline.targets.base import Target

LARGEST_DRAFT = 4096
"""Tokens. No draft this long is ever accepted, and scoring takes memory in proportion."""
DEFAULT = "default"
FORMS = "fixed:N with N draft tokens per round, adaptive, or calibrated"


def make_planner(spec: str | None, drafter: Drafter, target: Target | None = None) -> Planner:
    """The planner that a spec names: ``fixed:n``, or ``fixed`` for drafts of the drafter's size; ``adaptive``;
    ``calibrated``, which needs a target that was calibrated with this drafter. Without a spec, or for ``default``, the
    drafter's own.

    Without a ``target`` only the spec is judged. Where the drafter can draft while its target works, there are two such
    planners, and one that chooses (`overlap`).
    """
    if target is None or drafter.overlaps is not Overlaps.CHOICE:
        overlapped = drafter.overlaps is Overlaps.ALWAYS
        return _planner(spec, drafter, target, overlapped=overlapped)
    turns, beside = (_planner(spec, drafter, target, overlapped=overlapped) for overlapped in (False, True))
    return TurnsOrOverlap(drafter, target, turns=turns, overlapped=beside)


def _planner(spec: str | None, drafter: Drafter, target: Target | None, *, overlapped: bool) -> Planner:
    """The planner of drafts that are made in one way."""
    kind, colon, rest = (drafter.planner if spec in (None, DEFAULT) else spec).partition(":")
    if kind == "fixed" and re.fullmatch(r"(-?\d{1,18})?", rest):
        size = int(rest) if rest else drafter.nodes
        if size > LARGEST_DRAFT:
            raise InputError(f"a draft has at most {LARGEST_DRAFT} tokens, not {size}; choose a smaller fixed:N")
        return Fixed(size)
    if kind == "adaptive" and not colon:
        if target is None:
            return Adaptive(drafter, Costs(), Effort())
        exits = overlapped or drafter.overlaps is Overlaps.NEVER
        needs = drafter.needs if exits else replace(drafter.needs, early_exit=None)
        effort = effort_of(target, drafter, overlapped=overlapped)
        return Adaptive(drafter, costs_of(target, needs), effort, overlapped=overlapped)
    if kind == "calibrated" and not colon:
        return Fixed(drafter.nodes) if target is None else calibrated(drafter, target)
    raise InputError(f"cannot read planner {spec!r}: write {FORMS}")
