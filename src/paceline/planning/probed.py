"""A few forwards of a target, timed before its first text: the curve that planners begin with.

The cost of rows differs between machines: on one processor 16 rows take as long as one, on another five times as long.
A planner that learnt this from its rounds would spend a short text on sizes that cannot pay. So sizes are timed once
for a machine and a model, within `LIMIT` seconds, and kept in the cache directory. This is less than a calibration,
which times rounds of several sequences behind texts of several lengths; real rounds correct it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from weakref import WeakKeyDictionary

import numpy as np

from paceline.files import cached, cached_path
from paceline.planning.timing import Timing
from paceline.targets.base import Request, Rows, Target
from paceline.targets.setup import Setup, kernels, setup_of, versions
from paceline.tree import EMPTY, ROOT, DraftTree, Ints

SIZES = (1, 8, 16, 32, 4, 2)
"""Row counts, in the order in which they are timed: a slow model may have time for the first ones only."""
PASSES = 3
"""Of the times of a size the shortest counts."""
LIMIT = 2.0
"""Seconds for all of it. A size that is expected not to fit is left out."""
GROWTH = 2.0
"""The factor by which an untimed size is expected to take longer than the next smaller timed one."""
FOLDER = "probes"
"""In the cache directory."""
CONTEXT = 16
"""Tokens before the root."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """The stored timings, and the setup that they hold for."""

    setup: Setup
    kernels: str
    versions: Mapping[str, str]
    timings: tuple[Timing, ...]

    def usable(self, setup: Setup) -> bool:
        """Whether it holds for this setup with the same instructions and libraries."""
        same = self.setup.digest == setup.digest and self.kernels == kernels() and dict(self.versions) == versions()
        return same and len(self.timings) > 0


_KNOWN: WeakKeyDictionary[Target, tuple[Timing, ...]] = WeakKeyDictionary()
_MEASURING = Lock()


def probed(target: Target) -> tuple[Timing, ...]:
    """Seconds of forwards of one sequence by their rows; none of a target that shall not be probed."""
    if not target.probing:
        return ()
    with _MEASURING:
        if target not in _KNOWN:
            _KNOWN[target] = _stored_or_measured(target)
        return _KNOWN[target]


def _stored_or_measured(target: Target) -> tuple[Timing, ...]:
    setup = setup_of(target)

    def made() -> Probe:
        return Probe(setup=setup, kernels=kernels(), versions=versions(), timings=measure(target))

    return cached(FOLDER, _key(setup), Probe, made, lambda probe: probe.usable(setup)).timings


def path_of(setup: Setup) -> Path | None:
    """The file of a setup under the instructions that are used here; None where no cache directory is known."""
    return cached_path(FOLDER, _key(setup))


def _key(setup: Setup) -> str:
    return f"{setup.digest} {kernels()}"


def measure(target: Target) -> tuple[Timing, ...]:
    """Time the sizes that fit into the limit; none if fewer than two do. Leaves nothing behind but the time it took."""
    began = time.perf_counter()
    depth = target.reach(CONTEXT).depth
    sizes = [size for size in SIZES if depth is None or size <= depth + 1]
    if target.context_length is not None and target.context_length <= CONTEXT + max(sizes):
        return ()
    tokens = np.random.default_rng(0).integers(0, target.vocab_size, CONTEXT + max(sizes))
    rows = target.open(len(tokens))
    best: dict[int, float] = {}
    try:
        target.score([Request.of_prompt(rows, tokens[:CONTEXT])])
        rows.keep(range(CONTEXT))
        first = time.perf_counter() - began
        for size in sizes * PASSES:
            if time.perf_counter() - began + _expected(best, size, first) > LIMIT:
                continue
            best[size] = min(_seconds(target, rows, tokens[-size:]), best.get(size, LIMIT))
    finally:
        rows.close()
    return tuple(Timing(rows=size, seconds=best[size]) for size in sorted(best)) if len(best) > 1 else ()


def _expected(best: Mapping[int, float], size: int, first: float) -> float:
    """Seconds that a forward of this size is expected to take; one row at most as long as the ``first`` forward."""
    if size in best:
        return best[size]
    smaller = [known for known in best if known < size]
    return GROWTH * best[max(smaller)] if smaller else first


def _seconds(target: Target, rows: Rows, tokens: Ints) -> float:
    """Of one forward over a root and a chain; its rows are dropped."""
    draft = DraftTree.chain(tokens[1:]) if len(tokens) > 1 else EMPTY
    began = time.perf_counter()
    target.score([Request.of_tree(rows, int(tokens[0]), draft)])[0].choice(ROOT)
    took = time.perf_counter() - began
    rows.keep([])
    return max(took, 1e-9)
