"""Figure 6: what packing of beams saves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from paceline import DraftTree, Observed
from paceline_lab import Summary
from papers.charts import Panel, curves
from papers.driver import Given
from papers.lab import Lab
from papers.redrafter.heads import METHOD, rates, shown, spec, with_head
from papers.redrafter.unpacked import unpacked
from papers.report import Claim, Report, Table, Way
from papers.speeds import in_all, pairwise, per_request, per_round, ratio, written
from papers.unispec.methods import filling

WIDTHS, LENGTH, WIDE, BATCHES = (2, 5, 20, 70), 5, 8, (1, 2, 4)
PAPER_SAVED, PAPER_WIDTHS = (0.3, 0.6), (5, 70)
"""The share saved by packing in the paper, with the narrowest and the widest beams that it counts."""
Counts = tuple[list[int], list[int]]
"""Of every draft its tokens before packing and after."""


def note(counts: Counts, tree: DraftTree, length: int) -> None:
    """A draft; those that the end of the text cut short are left out."""
    if tree.depth == length:
        counts[0].append(len(unpacked(tree)))
        counts[1].append(len(tree))


def counted(lab: Lab, widths: Sequence[int], length: int) -> dict[int, Counts]:
    """The tokens saved by packing at every width, counted once and kept."""
    entries = {spec(lab.given, width, length, method=METHOD): width for width in widths}
    found: dict[int, Counts] = {width: ([], []) for width in widths}

    def watch(entry: str, seen: Observed) -> None:
        if entry in entries:
            note(found[entries[entry]], seen.draft, length)

    kept = lab.watched("widths", entries, "drafts.json", found, watch)
    known = {int(width): (before, after) for width, (before, after) in kept.items()}
    return {width: known[width] for width in widths if known.get(width, ([],))[0]}


def saved(counts: Counts) -> float:
    """The share of tokens that packing leaves out."""
    return 1 - sum(counts[1]) / sum(counts[0])


def left(drafts: Mapping[int, Counts]) -> Table:
    rows = list[Sequence[str]]()
    for width, (before, after) in drafts.items():
        low, high = np.percentile(after, [1, 99])
        cells = f"{np.mean(before):.1f}", f"{np.mean(after):.1f}", f"{low:.0f}", f"{high:.0f}"
        rows.append((str(width), *cells, f"{saved((before, after)):.0%}", str(len(after))))
    return ("beam width", "tokens before", "after", "1st percentile", "99th", "left out", "drafts"), rows


def right(runs: Mapping[int, Summary], forms: Mapping[str, str]) -> Table:
    head = ("texts at a time", "tokens/s of one", "tokens/s in all", "tokens/round", "rows/round")
    rows = list[Sequence[str]]()
    for batch, run in runs.items():
        for name, entry in forms.items():
            scored = float(run.rounds[run.rounds.entry == entry].rows.mean())
            speeds = written(per_request(run, entry), ".1f"), written(in_all(run, entry), ".1f")
            rows.append((f"{batch}  {name}", *speeds, written(per_round(run, entry)), written(scored, ".1f")))
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
            speeds = [written(in_all(run, form), ".1f") for form in (packed, whole)]
            ours = f"{speeds[0]} against {speeds[1]} tokens/s{pairwise(one)}"
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
    lines = curves(kinds, drafts, lambda counts, of: of(counts), first=0)
    return [Panel("Tokens of a draft", "beam width", "tokens", lines), *(rates(runs, forms, 1) if runs else ())]


def report(drafts: Mapping[int, Counts], runs: Mapping[int, Summary], forms: Mapping[str, str]) -> Report:
    """``runs`` by batch size; ``forms`` are the entries with packing and without."""
    notes = [
        "drafts that the end of a text cuts short are not counted, and those of the warm-up are; a beam that ends "
        "early has fewer tokens before packing",
    ]
    if runs:
        notes.append("without packing the shared beginnings are scored again beside the tree, and never verified")
    tables, title = [left(drafts), *([right(runs, forms)] if runs else [])], "ReDrafter, Figure 6: packing of beams"
    return Report(title, tables, claims(drafts, runs, forms), notes, panels(drafts, runs, forms))


def packing(given: Given) -> Report:
    """Figure 6: tokens of a draft before and after packing by beam width; speed with and without packing by batch size.

    Beams of a draft share beginnings, which packing sends once. The left picture counts the tokens of whole drafts,
    which needs no speeds; with no value after ``--batch`` nothing else is measured. The right one times both forms of
    the same beams; `unpacked` says how beams that repeat their beginnings are scored.
    """
    lab = with_head(given)
    drafts = counted(lab, sorted(set(given.width)), given.length)
    head = "" if given.head is None else f",head='{given.head}'"
    apart = f"'{Path(__file__).with_name('unpacked.py')}':Unpacked:width={given.wide},length={given.length}{head}"
    forms = {"with packing": spec(given, given.wide, given.length, method=METHOD), "without": apart}
    stages = {
        n: {"methods": forms.values(), "batch": n, "limit": filling(given.limit, n), "ignore_eos": True}
        for n in sorted(set(given.batch))
    }
    runs = lab.races(stages, "batch {}") if stages else {}
    return shown(lab, report(drafts, runs, forms), "the paper does not say at which its are")
