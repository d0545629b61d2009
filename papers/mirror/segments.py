"""Section 3.3: what a draft model costs that is divided over processes, in tracks and as tensor parallelism divides."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import paceline
from paceline import LanguageModel
from paceline_lab import launched
from papers.driver import Given
from papers.report import Claim, Report, Table

PROMPT = "The old house stood at the end of the lane, and"
TRACKS, CUT, STREAMED = "in tracks", "cut", "in tracks, with streams"
WARM_UP, PLANNER = "Once upon a time", "fixed:7"


@dataclass(frozen=True)
class Step:
    """A draft model's forwards of one row."""

    layers: int
    milliseconds: float
    """Of the median forward."""
    collectives: float
    """Of a forward: sums and gatherings."""


def opened(name: str, given: Given) -> LanguageModel | None:
    """A model over all processes; None on all but the first."""
    try:
        return paceline.load(name, dtype=given.dtype, tensor_parallel=launched())
    except SystemExit as end:  # of a process that computed its part
        if end.code:
            raise
        return None


def collectives(lm: LanguageModel) -> int:
    """Sums and gatherings so far."""
    group: Any = lm.target
    return int(group.group.sums + group.group.gatherings)


def measured(name: str, given: Given) -> Step | None:
    """The forwards of a model over all processes; None on all but the first."""
    if (lm := opened(name, given)) is None:
        return None
    before = collectives(lm)
    text = lm.generate(PROMPT, method="plain", max_new_tokens=given.max_new_tokens, ignore_eos=True)
    forwards = text.totals.rounds + 1  # the one of the prompt scores the first token
    seconds = [each.seconds_score for each in text.rounds]
    found = Step(lm.target.layers, 1000 * median(seconds), (collectives(lm) - before) / forwards)
    del lm
    gc.collect()  # with the model the other processes are let go, and can open the next one
    return found


def with_streams(name: str, head: str, given: Given) -> Step | None:
    """The same of forwards that draft for the model itself, with streams beside their rows."""
    if (lm := opened(name, given)) is None:
        return None
    how: dict[str, Any] = {
        "method": f"streaming:model='{name}',head='{head}',streams=3",
        "planner": PLANNER,
        "ignore_eos": True,
    }
    lm.generate(WARM_UP, max_new_tokens=1, **how)  # opens the draft model, which is the same folder
    before = collectives(lm)
    text = lm.generate(PROMPT, max_new_tokens=given.max_new_tokens, **how)
    drafting = [each for each in text.rounds if each.counts["draft_forwards"]]
    forwards = sum(each.counts["draft_forwards"] for each in drafting)
    seconds = [each.seconds_draft / each.counts["draft_forwards"] for each in drafting]
    of_target = 2 * (text.totals.rounds + 1)
    found = Step(lm.target.layers, 1000 * median(seconds), (collectives(lm) - before - of_target) / forwards)
    del lm
    gc.collect()
    return found


def rows(found: Mapping[str, Step]) -> Table:
    head = ("draft model", "layers", "ms of a forward", "collectives of a forward")
    return head, [
        (name, str(each.layers), f"{each.milliseconds:.2f}", f"{each.collectives:g}") for name, each in found.items()
    ]


def claims(found: Mapping[str, Step]) -> list[Claim]:
    tracks, cut = found[TRACKS], found[CUT]
    fewer = f"{tracks.collectives:g} against {cut.collectives:g}"
    faster = f"{tracks.milliseconds:.2f} against {cut.milliseconds:.2f} ms"
    made = [
        Claim("a forward in tracks has two collectives", "2, whatever the depth", fewer, tracks.collectives == 2),
        Claim("and is faster than one that is cut", "faster", faster, tracks.milliseconds < cut.milliseconds),
    ]
    if (streamed := found.get(STREAMED)) is not None:
        count = f"{streamed.collectives:g}"
        made.append(Claim("and has two with streams", "2 for rows and streams", count, streamed.collectives == 2))
    return made


def report(found: Mapping[str, Step], notes: Sequence[str]) -> Report:
    title = f"Mirror-SD, section 3.3: a draft model over {launched()} processes"
    return Report(title, [rows(found)], claims(found), notes)


def segments(given: Given) -> Report:
    """Section 3.3: forwards of a draft model over the processes that torchrun started, in tracks and cut.

    ``--tracks`` is a folder that 'paceline train segments' made, with as many tracks as there are processes.
    ``--plain`` is one of the same size with --tracks 1, which transformers' tensor plan cuts. Each is loaded in turn.
    ``--head`` is an adapter of streams for the one in tracks, which then drafts for itself with them.
    """
    if launched() < 2:
        raise ValueError("start it by torchrun, with as many processes as the draft model has tracks")
    if given.tracks == given.plain:
        raise ValueError("--plain is another folder than --tracks: one that was made with --tracks 1")
    found = {TRACKS: measured(str(given.tracks), given), CUT: measured(str(given.plain), given)}
    if given.head is not None:
        found[STREAMED] = with_streams(str(given.tracks), given.head, given)
    known = {name: each for name, each in found.items() if each is not None}
    if len(known) < len(found):
        raise SystemExit(0)
    notes = ["a cut model gathers its logits, which is one more collective"]
    if STREAMED in known:
        notes.append(
            "a forward with streams reads up to 5 rows with 3 streams each; its milliseconds include the choice"
        )
    return report(known, notes)
