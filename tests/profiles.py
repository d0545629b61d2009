"""A method and a machine that are made up: what profiles hold, without measuring anything."""

import dataclasses
import math
from pathlib import Path

from paceline.planning.acceptance import Acceptance, Point, Spot
from paceline.planning.stored import Profile, update
from paceline.planning.timing import Timing

SIZES = [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128]


def save(profile: Profile) -> Path:
    """Store a profile in place of any other of its setup."""
    return update(profile.setup, lambda _: profile)[1]


def full(nodes: int, tokens: float) -> Point:
    """Every round sends as many nodes as it may."""
    return Point(nodes=nodes, tokens=tokens, sent={nodes: 1.0})


def method(spec: str = "some", **changes: object) -> Acceptance:
    told = [full(size, 1 + 2 * (1 - math.exp(-size / 12))) for size in SIZES]
    made = Acceptance(
        method=spec,
        draft="",
        points=tuple(told),
        drafting=((4, 0.001), (128, 0.002)),
        top=8,
        spot=Spot(nodes=4, foretold=1.6, found=1.5),
        temperature=0.8,
        prompts=("one", "two"),
        rounds=100,
        emitted=300,
    )
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


def timings(sequences: int = 1, length: int = 256) -> tuple[Timing, ...]:
    return tuple(
        Timing(
            rows=sequences * (size + 1), seconds=0.05 + 0.0005 * sequences * size, length=length, sequences=sequences
        )
        for size in SIZES
    )
