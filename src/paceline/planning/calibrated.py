"""The planner that always drafts the size that calibration found best for a method on this machine (UniSpec's g*).

The size comes from a stored profile, for the current batch size and texts of about this length. Machines change: they
grow hot, they are shared. So if the seconds of rounds differ from the profile for a while, sizes around the present one
are tried in turn for some rounds. The curve of seconds is scaled by their results, and the best size under the new
curve is taken if it is better by more than `GAIN`. Every trial that changes nothing doubles the time until the next, so
the cost of trials is bounded.

None of this happens under the rejection rule, where the text may depend on the size of drafts: there every text has the
stored size of a single text, whatever else is in the batch.
"""

from __future__ import annotations

import shlex
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import RLock

import numpy as np

from paceline.context import Context
from paceline.drafters.base import Budget, Drafter
from paceline.errors import InputError
from paceline.planning.acceptance import ENOUGH, Acceptance
from paceline.planning.base import Outcome, Planner, Room
from paceline.planning.curve import Curves
from paceline.planning.fits import Floats
from paceline.planning.stored import Profile, Unreadable, load
from paceline.targets.base import Target
from paceline.targets.setup import setup_of

WATCHED = 32
"""Rounds that are judged together."""
DRIFT = 1.2
"""Rounds whose median is off by this factor, in either direction, have drifted."""
TRIED = 6
"""Rounds of each size in a trial."""
GAIN = 0.03
"""The share of throughput that another size must gain to be taken."""
PATIENCE = 64, 4096
"""Rounds between trials, at first and at most."""
AGAIN = 2048
"""Rounds after which a size that is not the stored one is tried against it: small drafts tell nothing of large ones, so
that those are worth it again would not be noticed."""
FARTHEST = 8.0
"""The most that a trial believes of how much slower or faster rounds have become."""

Key = tuple[int, int]
"""Sequences and length, as they were measured."""


@dataclass
class SizeTrial:
    """Sizes that take turns."""

    sizes: tuple[int, ...]
    left: int
    ratios: dict[int, list[float]] = field(default_factory=dict)
    """Rows -> how many times as long as stored, of each round."""

    @property
    def size(self) -> int:
        return self.sizes[self.left % len(self.sizes)]

    def scale(self) -> tuple[Floats, Floats]:
        """Logarithms of row counts, and of how many times as long rounds of each take."""
        rows = sorted(self.ratios)
        medians = [statistics.median(self.ratios[size]) for size in rows]
        bound = np.log(FARTHEST)
        return np.log(np.array(rows, np.float64)), np.clip(np.log(np.array(medians)), -bound, bound)


class Calibrated(Planner):
    """Drafts of the calibrated size."""

    def __init__(self, method: Acceptance, curves: Curves) -> None:
        self._method, self._stored, self._live = method, curves, curves
        self._sizes = {(choice.sequences, choice.length): choice.nodes for choice in method.choices}
        self._now = dict(self._sizes)
        self._seen: deque[float] = deque(maxlen=WATCHED)
        self._trial: SizeTrial | None = None
        self._patience, self._rounds = PATIENCE[0], 0
        self._lock = RLock()

    def plan(self, rooms: Sequence[Room]) -> list[Budget]:
        key = self._key([len(room.context) for room in rooms])
        with self._lock:
            trial = self._trial if self._counts(key, [room.context for room in rooms]) else None
            nodes = self._now[key] if trial is None else trial.size
        return [Budget(nodes if room.context.foreseeable else self._alone(room), room.depth) for room in rooms]

    @staticmethod
    def _counts(key: Key, contexts: Sequence[Context]) -> bool:
        """Whether such a round measures the machine. Others take no part in a trial, which they could not end."""
        return key[0] == len(contexts) and all(context.foreseeable for context in contexts)

    def _alone(self, room: Room) -> int:
        """The stored size for a text that is written alone: other texts of the batch must not change this one."""
        return self._sizes[self._key([len(room.context)])]

    def review(self, outcomes: Sequence[Outcome]) -> None:
        key = self._key([len(outcome.context) for outcome in outcomes])
        if not self._counts(key, [outcome.context for outcome in outcomes]):
            return
        rows = sum(1 + len(outcome.sent) for outcome in outcomes)
        took = max(outcome.seconds for outcome in outcomes)
        with self._lock:
            self._note(key, rows, took)

    def _note(self, key: Key, rows: int, took: float) -> None:
        self._rounds += 1
        if self._trial is not None:
            stored = float(self._stored.seconds(np.array([rows]), *key)[0])
            self._trial.ratios.setdefault(rows, []).append(max(took, 1e-9) / stored)
            self._trial.left -= 1
            if self._trial.left == 0:
                self._conclude(self._trial, key)
            return
        self._seen.append(took / float(self._live.seconds(np.array([rows]), *key)[0]))
        if len(self._seen) < WATCHED or self._rounds < self._patience:
            return
        drifted = not 1 / DRIFT <= statistics.median(self._seen) <= DRIFT
        if drifted or (self._now[key] != self._sizes[key] and self._rounds >= AGAIN):
            sizes = self._around(self._now[key], self._sizes[key])
            self._trial = SizeTrial(sizes, TRIED * len(sizes))

    def _around(self, nodes: int, stored: int) -> tuple[int, ...]:
        """Sizes to try: none, half, the present one, twice as many, and the one that was found when all was well."""
        most = self._method.points[-1].nodes
        return tuple(sorted({0, nodes // 2, nodes, min(most, max(2 * nodes, 4)), stored}))

    def _conclude(self, trial: SizeTrial, key: Key) -> None:
        """The curve as it is now, and the best size under it."""
        rows, ratios = trial.scale()
        self._live = self._stored.scaled(lambda sizes: np.exp(np.interp(np.log(sizes), rows, ratios)))
        before = self._now[key]
        for known, size in self._now.items():
            speeds = self._method.speeds(self._live, *known)
            best = int(speeds.argmax())
            if speeds[best] > (1 + GAIN) * speeds[size]:
                self._now[known] = best
        changed = self._now[key] != before
        self._patience = PATIENCE[0] if changed else min(2 * self._patience, PATIENCE[1])
        self._trial, self._rounds = None, 0
        self._seen.clear()

    def _key(self, lengths: Sequence[int]) -> Key:
        return self._stored.nearest(max(1, len(lengths)), sum(lengths) // max(1, len(lengths)))


def calibrated(drafter: Drafter, target: Target) -> Calibrated:
    """The planner from the stored profile of this drafter on this target, which must be there."""
    setup = setup_of(target)
    spec, models = identity(drafter)
    why = ""
    try:
        profile: Profile | None = load(setup)
    except Unreadable as unreadable:
        profile, why = None, f" ({unreadable})"
    method = None if profile is None else profile.method(spec, draft_of(models))
    if profile is None or method is None or not method.enough:
        others = [] if profile is None else list(dict.fromkeys(one.method for one in profile.methods))
        known = f"; measured are {', '.join(others)}" if others else ""
        known = "; it was measured with another draft model, or with none" if spec in others else known
        absent = f"there are no measurements of {spec!r} for {setup.summary}{known}{why}; make them"
        if method is not None:
            few = f"only {method.rounds} rounds of {spec!r} were measured for {setup.summary}"
            absent = f"{few}, and a size is chosen from {ENOUGH} or more; measure with more --samples or --seconds"
        command = ["paceline", "calibrate", "--model", setup.model, "--method", spec]
        command += ["--dtype", setup.dtype] if setup.dtype else []
        command += ["--device", setup.device, *(["--threads", str(setup.threads)] if setup.device == "cpu" else [])]
        command += ["--draft-model", models[0].name] if models else []
        raise InputError(f"{absent}: {shlex.join(command)}")
    return Calibrated(method, profile.curves(method.top))


def identity(drafter: Drafter) -> tuple[str, list[Target]]:
    """The key of a drafter's measurements: its spec, and the models that it drafts with."""
    return drafter.spec or drafter.name, list(drafter.models)


def draft_of(models: Sequence[Target]) -> str:
    """The fingerprints of draft models, in one word."""
    return "+".join(model.fingerprint() for model in models)
