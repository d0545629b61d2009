"""Who sizes the drafts of a check: every planner there is, for every method, without trying everything with everything.

Sizes are planners, too (``fixed:n``). Where nobody says which planners to check, adversaries try every size in every
setting, and a method takes the sizes in turn from setting to setting; planners that choose sizes themselves plan for
every method and adversary in one greedy and in one sampled setting (`CHOSEN_FOR`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from zlib import crc32

from paceline.drafters.base import Drafter
from paceline.planning.acceptance import Acceptance, Point
from paceline.planning.base import Planner
from paceline.planning.calibrated import Calibrated
from paceline.planning.curve import Curves
from paceline.planning.specs import make_planner
from paceline.planning.timing import Timing
from paceline.targets.base import Target

SIZES = (4, 12)
CHOOSING = ("adaptive", "calibrated")
"""Planners that choose sizes themselves."""
CHOSEN_FOR = ("greedy presence 0.6 frequency 0.4", "t=1")
"""The settings in which they do so by default."""
NO_DRAFT = "fixed:0"


def fixed(sizes: Sequence[int]) -> tuple[str, ...]:
    """The planners that stand for draft sizes."""
    return tuple(f"fixed:{size}" for size in sizes)


def by_default(method: str, setting: str, *, adversary: bool) -> tuple[str, ...]:
    """The planners of a method in a setting, where nobody says which."""
    sizes = fixed(SIZES)
    if not adversary:
        turn = crc32(f"{method} in {setting}".encode()) % len(sizes)
        sizes = sizes[turn : turn + 1]
    return (*sizes, *CHOOSING) if setting in CHOSEN_FOR else sizes


def planner_of(spec: str, drafter: Drafter, target: Target) -> Planner:
    """The planner as hosts make it; a calibrated one from measurements made up here, since none need be stored."""
    return _made_up(drafter) if spec == "calibrated" else make_planner(spec, drafter, target)


def _made_up(drafter: Drafter) -> Calibrated:
    """A machine on which rows cost a little, and drafts that bring some tokens the larger they are. No real machine
    keeps to it, so sizes are tried and changed on the way."""
    sizes = (0, 2, 4, 8, 12, 16)
    curves = Curves(
        Timing(rows=rows, seconds=1e-3 * (1 + 0.004 * rows), length=0, sequences=texts)
        for texts in (1, 8)
        for rows in (1, 4, 16, 64, 160)
    )
    known = Acceptance(
        method=drafter.name,
        draft="",
        points=tuple(Point(nodes=size, tokens=1 + 0.4 * size**0.5, sent={size: 1.0}) for size in sizes),
        drafting=(),
        top=0,
        spot=None,
        temperature=1.0,
        prompts=(),
        rounds=0,
        emitted=0,
    )
    choices = tuple(known.choose(curves, texts) for texts in (1, 8))
    return Calibrated(replace(known, choices=choices), curves)
