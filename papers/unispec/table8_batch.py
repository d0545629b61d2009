"""Table 8: speed-up by batch size.

    python -m papers.unispec.table8_batch
    python -m papers.unispec.table8_batch --batch 1 2 4 8 16 --rival assistant@fixed:4 --draft-model pocket-draft

Decoding time is defined alike at all sizes: while every text of the batch has its first token, prompts apart. All sizes
take the same prompts, as many as fill the largest batches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

from paceline_lab import Summary
from papers.common import Claim, Panel, Report, Way, script
from papers.unispec.common import HEAD, Lab, between, curves, over, parser, row, size_notes, sized, speed_up
from papers.unispec.tables import beside, conditions, remarks

BATCHES = 1, 2, 3, 4, 5
PAPER = 2.10, 2.07, 2.03, 1.90, 1.73


def filling(limit: int, batch: int) -> int:
    """So many prompts, or a few more, that no batch of this size is smaller than the others."""
    return batch * math.ceil(limit / batch)


def report(runs: Mapping[str, Summary], notes: Sequence[str] = ()) -> Report:
    """A run for each batch size, ``batch 1`` and so on."""
    (_, first), *_, (_, last) = runs.items()
    entry = first.entries[1]
    one, two = speed_up(first, entry), speed_up(last, entry)
    claim = "the speed-up falls from single texts to the largest batch"
    paper = f"{PAPER[-1]:.2f}x against {PAPER[0]:.2f}x"
    claims = [Claim.of(claim, paper, between(two, one), Way.BELOW, over(two, one))]
    lines = curves(first.entries, [(float(name.split()[1]), partial(speed_up, run)) for name, run in runs.items()])
    rows = [row(run, entry, f"{name}  {entry}") for name, run in runs.items() for entry in run.entries]
    panels = [Panel("Speed-up by batch size", "texts at a time", "x plain", lines)]
    return Report("UniSpec, Table 8: batch size", [(HEAD, rows)], claims, [*notes, *remarks(runs.values())], panels)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--batch", type=int, nargs="+", default=BATCHES, metavar="N", help="texts at a time (1-5)")
    options.add_argument("--rival", dest="rivals", nargs="+", default=[], metavar="SPEC", help="further methods")
    options.add_argument("--draft-model", "-md", metavar="MODEL", help="a small model that drafts")
    options.set_defaults(suite="spec-bench", tasks=["mt_bench"])
    lab = Lab(given := options.parse_args())
    methods = [sized(lab.method, lab.size()), *beside(lab), *given.rivals]
    how = {"methods": methods, "draft_model": given.draft_model, "limit": filling(given.limit, max(given.batch))}
    runs = lab.races({f"batch {n}": {**how, "batch": n} for n in given.batch})
    lab.show(report(runs, [*size_notes(lab.size()), *conditions(lab)]))


if __name__ == "__main__":
    script(main)
