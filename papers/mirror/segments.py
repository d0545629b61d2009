"""Section 3.3: what a draft model costs that is divided over processes, in tracks and as tensor parallelism divides."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import paceline
from paceline_lab import launched
from papers.driver import Given
from papers.report import Claim, Report, Table

PROMPT = "The old house stood at the end of the lane, and"
TRACKS, CUT = "in tracks", "cut"


@dataclass(frozen=True)
class Step:
    """A draft model's forwards of one row."""

    layers: int
    milliseconds: float
    """Of the median forward."""
    collectives: float
    """Of a forward: sums and gatherings."""


def measured(name: str, given: Given) -> Step | None:
    """The forwards of a model over all processes; None on all but the first."""
    try:
        lm = paceline.load(name, dtype=given.dtype, tensor_parallel=launched())
    except SystemExit as end:  # of a process that computed its part
        if end.code:
            raise
        return None
    group = getattr(lm.target, "group", None)
    before = 0 if group is None else group.sums + group.gatherings
    text = lm.generate(PROMPT, method="plain", max_new_tokens=given.max_new_tokens, ignore_eos=True)
    after = 0 if group is None else group.sums + group.gatherings
    forwards = text.totals.rounds + 1  # the one of the prompt scores the first token
    seconds = [each.seconds_score for each in text.rounds]
    layers = lm.target.layers
    del lm, group
    gc.collect()  # with the model the other processes are let go, and can open the next one
    return Step(layers, 1000 * median(seconds), (after - before) / forwards)


def rows(found: Mapping[str, Step]) -> Table:
    head = ("draft model", "layers", "ms of a forward", "collectives of a forward")
    return head, [
        (name, str(each.layers), f"{each.milliseconds:.2f}", f"{each.collectives:g}") for name, each in found.items()
    ]


def claims(found: Mapping[str, Step]) -> list[Claim]:
    tracks, cut = found[TRACKS], found[CUT]
    fewer = f"{tracks.collectives:g} against {cut.collectives:g}"
    faster = f"{tracks.milliseconds:.2f} against {cut.milliseconds:.2f} ms"
    return [
        Claim("a forward in tracks has two collectives", "2, whatever the depth", fewer, tracks.collectives == 2),
        Claim("and is faster than one that is cut", "faster", faster, tracks.milliseconds < cut.milliseconds),
    ]


def report(found: Mapping[str, Step], notes: Sequence[str]) -> Report:
    title = f"Mirror-SD, section 3.3: a draft model over {launched()} processes"
    return Report(title, [rows(found)], claims(found), notes)


def segments(given: Given) -> Report:
    """Section 3.3: forwards of a draft model over the processes that torchrun started, in tracks and cut.

    ``--tracks`` is a folder that 'paceline train segments' made, with as many tracks as there are processes.
    ``--plain`` is one of the same size with --tracks 1, which transformers' tensor plan cuts. Each is loaded in turn.
    """
    if launched() < 2:
        raise ValueError("start it by torchrun, with as many processes as the draft model has tracks")
    if given.tracks == given.plain:
        raise ValueError("--plain is another folder than --tracks: one that was made with --tracks 1")
    found = {TRACKS: measured(str(given.tracks), given), CUT: measured(str(given.plain), given)}
    known = {name: each for name, each in found.items() if each is not None}
    if len(known) < len(found):
        raise SystemExit(0)
    return report(known, ["a cut model gathers its logits, which is one more collective"])
