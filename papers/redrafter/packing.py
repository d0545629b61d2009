"""Figure 6: tokens of a draft before and after packing by beam width; speed with and without packing by batch size.

    python -m papers.redrafter.packing --svg packing.svg
    python -m papers.redrafter.packing --batch --model pocket
    python -m papers.redrafter.packing --model M --head FOLDER --width 5 10 20 30 40 50 60 70 --length 5 --wide 45

Beams of a draft share beginnings, which packing sends once. The left picture counts the tokens of whole drafts, which
needs no speeds; with no value after `--batch` nothing else is measured. The right one times both forms of the same
beams; `unpacked` says how beams that repeat their beginnings are scored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from paceline import DraftTree, Observed
from paceline_lab import Summary
from papers.common import Claim, Curve, Panel, Report, Way, script, write
from papers.redrafter.common import METHOD, Lab, conditions, in_all, parser, per_request, spec, with_suite, written
from papers.redrafter.unpacked import unpacked
from papers.unispec.common import number, pairwise, ratio
from papers.unispec.table8_batch import filling
from papers.unispec.tables import remarks

WIDTHS, LENGTH, WIDE, BATCHES = (2, 5, 20, 70), 5, 8, (1, 2, 4)
PAPER_SAVED, PAPER_WIDTHS = (0.3, 0.6), (5, 70)
"""What packing leaves out in the paper, with the narrowest and the widest beams that it counts."""
Counts = tuple[list[int], list[int]]
"""Of every draft its tokens before packing and after."""


def note(counts: Counts, tree: DraftTree, length: int) -> None:
    """A draft; those that the end of the text cut short are left out."""
    if tree.depth == length:
        counts[0].append(len(unpacked(tree)))
        counts[1].append(len(tree))


def counted(lab: Lab, widths: Sequence[int], length: int) -> dict[int, Counts]:
    """What packing saves at every width, counted once and kept."""
    kept, name = lab.out / "drafts.json", "widths"
    if not kept.exists():
        if (lab.out / name).exists():
            raise ValueError(f"{lab.out} was interrupted, and its drafts are not all known; remove it, or give --out")
        entries = {spec(lab.given, width, length, method=METHOD): width for width in widths}
        found: dict[int, Counts] = {width: ([], []) for width in widths}

        def watch(entry: str, seen: Observed) -> None:
            if entry in entries:
                note(found[entries[entry]], seen.draft, length)

        lab.races({name: {"methods": entries, "watch": watch}})
        write(kept, json.dumps(found))
    known = {int(width): (before, after) for width, (before, after) in json.loads(kept.read_text("utf8")).items()}
    return {width: known[width] for width in widths if known.get(width, ([],))[0]}


def saved(counts: Counts) -> float:
    """The share of tokens that packing leaves out."""
    return 1 - sum(counts[1]) / sum(counts[0])


def left(drafts: Mapping[int, Counts]) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    rows = list[Sequence[str]]()
    for width, (before, after) in drafts.items():
        low, high = np.percentile(after, [1, 99])
        cells = f"{np.mean(before):.1f}", f"{np.mean(after):.1f}", f"{low:.0f}", f"{high:.0f}"
        rows.append((str(width), *cells, f"{saved((before, after)):.0%}", str(len(after))))
    return ("beam width", "tokens before", "after", "1st percentile", "99th", "left out", "drafts"), rows


def right(runs: Mapping[int, Summary], forms: Mapping[str, str]) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    head = ("texts at a time", "tokens/s of one", "tokens/s in all", "tokens/round", "rows/round")
    rows = list[Sequence[str]]()
    for batch, run in runs.items():
        for name, entry in forms.items():
            figures, rounds = run.figures(entry), run.rounds[run.rounds.entry == entry]
            per_round = number(figures.tokens_per_round) if figures is not None else ""
            speeds = written(per_request(run, entry)), written(in_all(run, entry))
            rows.append((f"{batch}  {name}", *speeds, per_round, written(float(rounds.rows.mean()))))
    return head, rows


def claims(drafts: Mapping[int, Counts], runs: Mapping[int, Summary], forms: Mapping[str, str]) -> list[Claim]:
    found = list[Claim]()
    (narrow, wide), (low, high) = PAPER_WIDTHS, PAPER_SAVED
    if shares := {width: saved(counts) for width, counts in drafts.items() if narrow <= width <= wide}:
        least, most = min(shares.values()), max(shares.values())
        ours = f"{least:.0%} to {most:.0%} with {', '.join(map(str, shares))}"
        paper = f"{low:.0%} to {high:.0%} with beams {narrow} to {wide} wide"
        found.append(Claim("packing leaves out tokens of every width", paper, ours, low <= least and most <= high))
    if runs:
        (small, first), (large, last) = min(runs.items()), max(runs.items())
        packed, whole = forms.values()
        for batch, run in {small: first, large: last}.items():
            one = ratio(run, packed, whole)
            ours = f"{written(in_all(run, packed))} against {written(in_all(run, whole))} tokens/s{pairwise(one)}"
            few = batch == small
            claim = f"{batch} at a time: drafts with packing are {'as fast as' if few else 'faster than'} those without"
            paper = "no difference below 4 at a time" if few else "much faster above 4"
            found.append(Claim.of(claim, paper, ours, Way.LEVEL if few else Way.ABOVE, one))
    return found


def panels(drafts: Mapping[int, Counts], runs: Mapping[int, Summary], forms: Mapping[str, str]) -> list[Panel]:
    kinds: Mapping[str, Callable[[Counts], float]] = {
        "before packing": lambda counts: float(np.mean(counts[0])),
        "after": lambda counts: float(np.mean(counts[1])),
        "1st percentile": lambda counts: float(np.percentile(counts[1], 1)),
        "99th percentile": lambda counts: float(np.percentile(counts[1], 99)),
    }
    lines = [
        Curve(name, [(float(width), of(counts)) for width, counts in drafts.items()], place)
        for place, (name, of) in enumerate(kinds.items())
    ]
    found = [Panel("Tokens of a draft", "beam width", "tokens", lines)]
    for title, of in {"Tokens/s of a request": per_request, "Tokens/s in all": in_all}.items() if runs else ():
        speeds = [
            Curve(name, [(float(batch), of(run, entry)) for batch, run in runs.items()], place)
            for place, (name, entry) in enumerate(forms.items(), start=1)
        ]
        found.append(Panel(title, "texts at a time", "tokens/s", speeds, log=True))
    return found


def report(
    drafts: Mapping[int, Counts], runs: Mapping[int, Summary], forms: Mapping[str, str], notes: Sequence[str] = ()
) -> Report:
    """``runs`` by batch size; ``forms`` are the entries with packing and without."""
    tables = [left(drafts), *([right(runs, forms)] if runs else [])]
    notes = [
        *notes,
        "drafts that the end of a text cuts short are not counted, and those of the warm-up are; a beam that ends "
        "early has fewer tokens before packing",
        *remarks(runs.values()),
    ]
    if runs:
        notes.append("without packing the shared beginnings are scored again beside the tree, and never verified")
    title = "ReDrafter, Figure 6: packing of beams"
    return Report(title, tables, claims(drafts, runs, forms), notes, panels(drafts, runs, forms))


def main() -> None:
    options = with_suite(parser(__doc__))
    add = options.add_argument
    add("--width", type=int, nargs="+", default=WIDTHS, metavar="W", help="beam widths to count (2 5 20 70)")
    add("--length", type=int, default=LENGTH, metavar="L", help=f"tokens of a beam ({LENGTH})")
    add("--wide", type=int, default=WIDE, metavar="W", help=f"the width to time ({WIDE}; the paper: 45)")
    add(
        "--batch", type=int, nargs="*", default=BATCHES, metavar="N", help="texts at a time (1 2 4; none to count only)"
    )
    lab = Lab(given := options.parse_args())
    lab.need_head()
    drafts = counted(lab, sorted(set(given.width)), given.length)
    head = "" if given.head is None else f",head='{given.head}'"
    apart = f"'{Path(__file__).with_name('unpacked.py')}':Unpacked:width={given.wide},length={given.length}{head}"
    forms = {"with packing": spec(given, given.wide, given.length, method=METHOD), "without": apart}
    stages = {
        f"batch {n}": {"methods": forms.values(), "batch": n, "limit": filling(given.limit, n), "ignore_eos": True}
        for n in sorted(set(given.batch))
    }
    made = lab.races(stages) if stages else {}
    runs = {int(name.split()[1]): run for name, run in made.items()}
    paper = "the paper does not say at which its are"
    lab.show(report(drafts, runs, forms, conditions(lab, [lab.temperature], paper)))


if __name__ == "__main__":
    script(main)
