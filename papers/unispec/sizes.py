"""Draft sizes beside the calibrated one: Tables 13, 15 and 16."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from paceline_lab import Calibration, Summary
from papers.charts import Panel, curves
from papers.driver import Given
from papers.report import UNBOUNDED, Claim, Report, Way
from papers.speeds import HEAD, best, by, faster, in_all, of_run, row, speed_up
from papers.unispec.calibration import Runs, forward_seconds
from papers.unispec.lab import OWN, SizesLab, at, sampled, size_notes

# --- Table 13

DEVIATIONS = -15, -10, -5, 0, 5, 10, 15


def table13(given: Given) -> Report:
    """Table 13: sizes up to 15 nodes beside the calibrated one, by task."""
    lab = SizesLab(given)
    size = lab.size().nodes
    run = lab.run([*(at(lab.method, near) for near in around(size)), *lab.beside()])
    return lab.whole(deviation(run, lab.method, size))


def around(size: int) -> list[int]:
    return sorted({size, *(size + moved for moved in DEVIATIONS if size + moved >= 1)})


def deviation(run: Summary, method: str, tuned: int) -> Report:
    sizes, claims = around(tuned), list[Claim]()
    for size, where, paper in ((sizes[0], "smallest", "1.95x at -15"), (sizes[-1], "largest", "1.95x at +15")):
        if size != tuned:
            claim = f"the {where} size of the window ({size - tuned:+d}) is slower than the calibrated one"
            claims.append(faster(run, at(method, size), at(method, tuned), claim, f"{paper} against 2.13x", Way.BELOW))
    left = len(DEVIATIONS) - len(sizes)
    notes = [f"{left} sizes of the window are below one node and left out"] if left > 0 else []
    names = {at(method, size): f"g = {size} ({size - tuned:+d})" for size in sizes}
    places = {size: size for size in sizes}
    line = curves({method: method}, places, lambda size, of: speed_up(run, at(of, size)).value)
    panels = [Panel("Speed-up by draft size", "nodes", "x plain", line)]
    return Report("UniSpec, Table 13: deviation of the size", [by("task", of_run(run, names))], claims, notes, panels)


# --- Table 15

SOMEWHAT = 0.8
"""The least share of the expected tokens per second that counts as somewhat less; the paper's are 0.87 and 0.88."""


def table15(given: Given) -> Report:
    """Table 15: tokens per second by draft size, expected of a round's tokens and forward seconds, and real."""
    lab = SizesLab(given)
    found = {method: lab.size(method) for method in dict.fromkeys((lab.method, OWN))}
    run = lab.run(at(method, size) for method, one in found.items() for size in sizes_beside(one.nodes))
    notes = [note for method, one in found.items() for note in size_notes(one, method)]
    shown = throughput(run, {name: one.nodes for name, one in found.items()})
    return lab.whole(shown, [*notes, *sampled(lab.temperature, given.model)])


def sizes_beside(size: int) -> list[int]:
    """Two thirds of it, as in the paper, and the double."""
    return sorted({max(1, size * 2 // 3), max(1, size), max(1, 2 * size)})


def throughput(run: Summary, tuned: Mapping[str, int]) -> Report:
    """``tuned`` has the calibrated size of each method."""
    rows, claims = list[tuple[str, ...]](), list[Claim]()
    for method, g in tuned.items():
        shares, sizes = list[float](), sizes_beside(g)
        for size in sizes:
            figures, seconds = run.figures(at(method, size)), forward_seconds(run, at(method, size))
            if figures is None or not figures.tokens_per_second or not figures.tokens_per_round or not seconds > 0:
                continue
            expected, real = figures.tokens_per_round / seconds, figures.tokens_per_second
            shares.append(real / expected)
            name = f"{method}, g = {size}" + (" (calibrated)" if size == g else "")
            tokens = f"{figures.tokens_per_round:.2f}"
            rows.append((name, tokens, f"{1000 * seconds:.1f} ms", f"{expected:.1f}", f"{real:.1f}"))
        mean = sum(shares) / len(shares) if shares else math.nan
        claim = f"somewhat less is written than tokens a round over its forward promise, {method}"
        paper = "90.53 of 104.65 and 87.68 of 99.66 tokens/s"
        agrees = None if math.isnan(mean) else SOMEWHAT <= mean < 1
        claims.append(Claim(claim, paper, "" if agrees is None else f"{mean:.0%} of it", agrees, UNBOUNDED))
        claim, paper = f"the calibrated size is faster than two thirds of it, {method}", "90.53 against 87.68 tokens/s"
        claims.append(faster(run, at(method, max(1, g)), at(method, sizes[0]), claim, paper, Way.ABOVE))
    head = ("", "tokens/round", "forward", "expected tokens/s", "real tokens/s")
    return Report("UniSpec, Table 15: expected and real throughput", [(head, rows)], claims)


# --- Table 16

GRID = tuple(range(25, 126, 25))


def table16(given: Given) -> Report:
    """Table 16: a grid of draft sizes beside the calibrated one.

    Grid search and the paper's calibration have the same queries: a run of the calibration prompts for each size of the
    grid. Grid search takes the fastest of these runs, the calibration the best size by curves through them. Then all
    sizes race on other prompts. A method that is not calibrated by runs (`--method unispec`) is held against the size
    of the grid that is fastest in the race itself, which flatters the grid.
    """
    lab = SizesLab(given)
    sizes = sorted(set(given.sizes))
    found = lab.needed({lab.method: lab.calibrate(lab.method, sizes=sizes)}, "calibrated")[lab.method]
    run = lab.run([*(at(lab.method, size) for size in sorted({*sizes, found.nodes})), *lab.beside()])
    conditions = [*size_notes(found), *sampled(lab.temperature, given.model)]
    return lab.whole(grid(run, lab.method, found, sizes), conditions)


def searched(found: Runs) -> int:
    """The choice of grid search: the run with most tokens per second, drafting included."""
    return best({g: tokens / took for g, tokens, took in zip(found.sizes, found.tokens, found.whole, strict=True)})


def grid(run: Summary, method: str, found: Calibration, sizes: Sequence[int] = GRID) -> Report:
    entries, whole = {at(method, g): g for g in sizes}, at(method, found.nodes)
    speeds = {entry: in_all(run, entry) for entry in (whole, *entries)}
    rival = at(method, searched(found)) if isinstance(found, Runs) else best({e: speeds[e] for e in entries})
    claim = "the calibrated size is faster than that of grid search"
    paper = "90.53 (111 nodes) against 89.49 tokens/s (100 and 125 nodes)"
    more = f", {found.nodes} nodes against {rival.rpartition(':')[2]}"
    claims, top = [faster(run, whole, rival, claim, paper, Way.ABOVE, more)], best(speeds)
    lost = f"{1 - speeds[whole] / speeds[top]:.1%} to the fastest size, {top.rpartition(':')[2]} nodes"
    names = {at(method, g): f"g = {g}" + (" (calibrated)" if g == found.nodes else "") for g in (*sizes, found.nodes)}
    rows = [row(run, entry, names.get(entry)) for entry in run.entries]
    notes = [f"calibrating took {found.took:.0f} s", f"{found.nodes} nodes lose {lost}"]
    return Report("UniSpec, Table 16: grid of sizes", [(HEAD, rows)], claims, notes)
