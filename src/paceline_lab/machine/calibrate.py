"""A calibration: the seconds of rounds of this model on this machine, and for each method the tokens of its drafts.

Seconds come first, since they bound the size of useful drafts. Then each method has a run with drafts of the largest
size, and a run with drafts of a small size, chosen from the first run. The second run shows how much less the method
learns from smaller drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

import numpy as np

from paceline.context import Ints
from paceline.drafters.asking import fit
from paceline.drafters.base import Drafter
from paceline.errors import InputError
from paceline.law import Sampling
from paceline.planning.acceptance import Acceptance, Spot
from paceline.planning.calibrated import draft_of, identity
from paceline.planning.curve import CurveReading
from paceline.planning.stored import Profile
from paceline.planning.timing import Timing
from paceline.targets.base import Target
from paceline.targets.setup import setup_of
from paceline.vocabulary import Vocabulary
from paceline_lab.bench.race import Progress, silent
from paceline_lab.machine.measuring import EXPENSIVE, LEAST_REPEATS, ROWS, SPARSE, Measuring, Walk
from paceline_lab.machine.trails import corrected, point_at, sizes_to

NODES, LENGTHS, SEQUENCES = 128, (256, 1024), (1, 4)
SECONDS = 36.0
"""Seconds to measure a method and the rounds, without loading the model."""
SHARES = {"first": 0.25, "others": 0.1, "deep": 0.4, "spot": 0.2}
"""Shares of these seconds: rounds of the first batch size and length, of all others, the first run, the second run."""
YIELD = 0.5
"""The share of their seconds that texts give up at most where rounds took more than theirs: machines differ, and every
size of rounds has to be measured a few times."""
HIGHEST_SPOT, LEAST_SPOT = 16, 2
FEW = 2
"""Repeats of batch sizes and lengths beyond the first."""
NEAR = 1.1
"""Sizes within this factor of the largest are not measured beside it."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """One to calibrate: its drafter fits the target already."""

    spec: str
    drafter: Drafter
    draft: str = ""
    """The fingerprints of its draft models."""

    @classmethod
    def of(cls, drafter: Drafter) -> Self:
        """A drafter under the name that planners will look for."""
        spec, models = identity(drafter)
        if not drafter.nested:
            raise InputError(
                f"{spec} cannot be calibrated: its window is part of the draft, so rounds with large drafts do not "
                "show what small ones would bring; name a size with --planner fixed:N"
            )
        return cls(spec=spec, drafter=drafter, draft=draft_of(models))

    @classmethod
    def fitted(cls, drafter: Drafter, target: Target, vocabulary: Vocabulary | None) -> Self:
        """A drafter that is made to fit a target first."""
        fit(drafter, target, vocabulary)
        return cls.of(drafter)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The sizes and lengths to measure."""

    max_nodes: int | None = None
    """None for `NODES`, or fewer where larger drafts are too expensive to be worth it."""
    lengths: tuple[int, ...] = LENGTHS
    sequences: tuple[int, ...] = SEQUENCES
    sampling: Sampling = field(default_factory=lambda: Sampling(temperature=0.8))
    max_new_tokens: int = 128
    seconds: float = SECONDS
    """Seconds for a method. If infinite, the work is fixed: every size is timed equally often and every text is
    generated in full, twice."""

    def __post_init__(self) -> None:
        if self.max_nodes is not None and self.max_nodes < 1:
            raise ValueError(f"the largest draft must be at least 1 node, not {self.max_nodes}")
        if not self.lengths or min(self.lengths) < 2:
            raise ValueError(
                f"a text to time rounds behind is at least 2 tokens, not {min(self.lengths, default='none')}"
            )
        if not self.sequences or min(self.sequences) < 1:
            raise ValueError(f"a batch holds at least 1 text, not {min(self.sequences, default='none')}")
        if self.max_new_tokens < 2:
            raise ValueError(
                f"a text to write is at least 2 tokens, for the first comes with its prompt, not {self.max_new_tokens}"
            )
        if not self.seconds > 0:
            raise ValueError(f"the seconds to measure for must be at least a little, not {self.seconds:g}")


@dataclass(kw_only=True)
class Calibrator:
    """Measures by a plan, and stores nothing."""

    target: Target
    methods: Sequence[Method]
    prompts: Sequence[tuple[str, Ints]]
    """The prompts, by name."""
    plan: Plan
    progress: Progress = silent
    _texts: float = field(default=1.0, init=False)
    """The share of their seconds that texts have."""

    @cached_property
    def _measuring(self) -> Measuring:
        shares = SHARES["first"] + SHARES["others"] + len(self.methods) * (SHARES["deep"] + SHARES["spot"])
        return Measuring(
            target=self.target,
            sampling=self.plan.sampling,
            max_new_tokens=self.plan.max_new_tokens,
            seconds=shares * self.plan.seconds,
            progress=self.progress,
        )

    def run(self, known: Profile | None = None) -> Profile:
        """A new profile. The ``known`` measurements of other methods stay, and their sizes are chosen again."""
        kept = known.methods if known else ()
        timings, readings = self._seconds(max((method.top for method in kept), default=0))
        self._texts = self._left_to_texts(self._measuring.passed)
        profile = Profile.now(setup_of(self.target), tuple(timings), tuple(readings))
        most = max(t.rows for t in timings if (t.sequences, t.length) == _first(timings)) - 1
        found = tuple(self._method(method, profile, most) for method in self.methods)
        return _sized(replace(profile, methods=kept).with_methods(found))

    def joined(self, profile: Profile, by_now: Profile | None) -> Profile:
        """The profile of `run`, and other methods from ``by_now``, which another process may have stored since."""
        own = [profile.method(method.spec, method.draft) for method in self.methods]
        others = by_now.methods if by_now else ()
        known = {reading.top for reading in profile.readings}
        more = tuple(reading for reading in (by_now.readings if by_now else ()) if reading.top not in known)
        profile = replace(profile, readings=(*profile.readings, *more))
        return _sized(profile.with_methods(others).with_methods(tuple(one for one in own if one is not None)))

    def _seconds(self, top: int) -> tuple[list[Timing], list[CurveReading]]:
        """Of every batch size and length; best tokens are read in the first of them: as many as any method reads, the
        ``top`` of those that are known already among them."""
        timings, readings = list[Timing](), list[CurveReading]()
        text = np.concatenate([prompt for _, prompt in self.prompts])
        top = max([top, *(method.drafter.needs.top for method in self.methods)])
        limit, cells = self.plan.max_nodes, self._cells()
        for number, (sequences, length) in enumerate(cells):
            first = number == 0
            share = SHARES["first"] if first else SHARES["others"] / (len(cells) - 1)
            texts = "text" if sequences == 1 else "texts"
            took, read = self._measuring.timings(
                text,
                _rows(ROWS if first else SPARSE, limit, sequences),
                length=length,
                sequences=sequences,
                top=top if first else 0,
                seconds=share * self.plan.seconds,
                cap=EXPENSIVE if limit is None else None,
                repeats=LEAST_REPEATS if first else FEW,
                doing=f"rounds of {sequences} {texts} of {length} tokens",
            )
            timings += took
            readings += read
        return timings, readings

    def _left_to_texts(self, spent: float) -> float:
        over = spent / self.plan.seconds - SHARES["first"] - SHARES["others"]
        planned = len(self.methods) * (SHARES["deep"] + SHARES["spot"])
        return min(1.0, max(YIELD, 1 - over / planned)) if planned else 1.0

    def _cells(self) -> list[tuple[int, int]]:
        """The first batch size at every length that the model's context has room for, the shortest in any case, and
        every other batch size at the first length."""
        (first, *others), limit = self.plan.sequences, self.target.context_length
        lengths = [length for length in self.plan.lengths if fits(length, limit)] or [min(self.plan.lengths)]
        return [*((first, length) for length in lengths), *((many, lengths[0]) for many in others)]

    def _method(self, method: Method, profile: Profile, most: int) -> Acceptance:
        names, prompts = zip(*self.prompts, strict=True)
        seconds, drafter = self._texts * self.plan.seconds, method.drafter
        doing = f"{method.spec}, drafts of {most} nodes"
        texts = self._measuring.walk(drafter, prompts, most, SHARES["deep"] * seconds, doing)
        walks = [walk for walk in texts if walk.trails]  # a text may end with its first token
        if not walks:
            raise ValueError(
                "the first token of every text ends it, so there is no round to measure; give other prompts"
            )
        acceptance = self._acceptance(method, names, walks, most)
        best = acceptance.choose(profile.curves(acceptance.top), *_first(profile.timings))
        small = min(max(best.nodes, LEAST_SPOT), HIGHEST_SPOT, most)
        doing = f"{method.spec}, drafts of {small} nodes"
        again = self._measuring.follow(drafter, walks, small, SHARES["spot"] * seconds, doing)
        simulated = point_at([trail for walk in walks[: len(again)] for trail in walk.trails], small).tokens
        found = sum(walk.emitted for walk in again) / sum(len(walk.trails) for walk in again)
        spot = Spot(nodes=small, foretold=simulated, found=found)
        return replace(
            acceptance,
            points=corrected(acceptance.points, spot),
            spot=spot,
            drafting=tuple(sorted({most: _drafting(walks), small: _drafting(again)}.items())),
        )

    def _acceptance(self, method: Method, names: Sequence[str], walks: Sequence[Walk], most: int) -> Acceptance:
        trails = [trail for walk in walks for trail in walk.trails]
        return Acceptance(
            method=method.spec,
            draft=method.draft,
            points=tuple(point_at(trails, size) for size in sizes_to(most)),
            drafting=((most, _drafting(walks)),),
            top=method.drafter.needs.top,
            spot=None,
            temperature=self.plan.sampling.temperature,
            prompts=tuple(names),
            rounds=len(trails),
            emitted=sum(walk.emitted for walk in walks),
        )


def _sized(profile: Profile) -> Profile:
    """A profile whose methods all have the sizes that are best by its timings, for every batch size and length."""

    def chosen(method: Acceptance) -> Acceptance:
        curves = profile.curves(method.top)
        return replace(method, choices=tuple(method.choose(curves, *key) for key in curves.keys))

    return replace(profile, methods=tuple(map(chosen, profile.methods)))


def fits(length: int, context_length: int | None) -> bool:
    """Whether there is room behind a text of that length for rounds that write as much again."""
    return context_length is None or 2 * length <= context_length


def _first(timings: Sequence[Timing]) -> tuple[int, int]:
    """The batch size and length that was measured first, and most closely."""
    return timings[0].sequences, timings[0].length


def _drafting(walks: Sequence[Walk]) -> float:
    return sum(walk.seconds_draft for walk in walks) / sum(len(walk.trails) for walk in walks)


def _rows(rows: Sequence[int], nodes: int | None, sequences: int) -> list[int]:
    """Rows of each sequence: of several together no more in all than of one, but always some draft."""
    most = 1 + (NODES if nodes is None else nodes)
    bound = max(2, most // sequences)
    return sorted({row for row in rows if row <= bound / NEAR} | {bound if sequences == 1 else 2, 1})
