"""Figure 5: batch size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from paceline_lab import Estimate, Summary
from papers.charts import Panel, curves
from papers.driver import Given
from papers.lab import Lab
from papers.mirror.drafts import Two, ms, ratio_of, shown, two
from papers.report import Claim, Report, Table, Way
from papers.speeds import (
    against,
    best,
    compared,
    in_all,
    pairwise,
    ratio,
    speed_up,
    tokens_per_round,
    with_interval,
    written,
)
from papers.unispec.methods import filling

BATCHES = 1, 2, 4, 8, 16
Runs = Mapping[int, Summary]
"""By batch size."""


def overhead(run: Summary, both: Two) -> Estimate:
    """Of mirror: drafting seconds of a round that are not hidden, over vanilla's, text by text."""
    return ratio_of(run, both.mirror, both.vanilla)


def table(runs: Runs, both: Two) -> Table:
    head = (
        *("texts at a time", "x plain [95%]", "tokens/s in all", "tokens/round", "ms of drafting", "ms of a round"),
        "relative draft overhead",
    )
    rows = list[Sequence[str]]()
    for batch, run in runs.items():
        for way, entry in both._asdict().items():
            took = ms(run, entry), ms(run, entry, "seconds")
            exposed = "1" if way == "vanilla" else with_interval(overhead(run, both))
            speed = with_interval(speed_up(run, entry)), written(in_all(run, entry), ".1f")
            rows.append((f"{batch}  {way}", *speed, written(tokens_per_round(run, entry)), *took, exposed))
        rows.append((f"{batch}  plain", "", written(in_all(run, run.base), ".1f"), "", "", "", ""))
    return head, rows


def claims(runs: Runs, both: Two) -> Iterator[Claim]:
    small, large = min(runs), max(runs)
    if small < large:
        for way, entry in both._asdict().items():
            claim = f"the speed-up of {way} falls from {small} to {large} at a time"
            ends = speed_up(runs[large], entry), speed_up(runs[small], entry)
            yield compared(claim, "it falls steadily", *ends, Way.BELOW)
    yield least_gain(runs, both)
    yield most_exposed(runs, both)
    if small < large:
        claim = f"mirror's relative draft overhead rises from {small} to {large} at a time"
        yield compared(claim, "it rises", overhead(runs[large], both), overhead(runs[small], both), Way.ABOVE)


def least_gain(runs: Runs, both: Two) -> Claim:
    """The batch size at which mirror gains least over vanilla decides whether it is faster at all of them."""
    gains = {batch: ratio(run, both.mirror, both.vanilla) for batch, run in runs.items()}
    worst = best({batch: -one.value for batch, one in gains.items()})
    ours = f"at {worst}, where it gains least, {against(runs[worst], *both)}{pairwise(gains[worst])}"
    claim = "mirror is faster than vanilla at every batch size"
    return Claim.of(claim, "at every size", ours, Way.ABOVE, gains[worst])


def most_exposed(runs: Runs, both: Two) -> Claim:
    """The batch size at which most drafting is exposed decides whether some is hidden at all of them."""
    found = {batch: overhead(run, both) for batch, run in runs.items()}
    worst = best({batch: one.value for batch, one in found.items()})
    ours = f"at {worst}, where it is largest, {with_interval(found[worst])}"
    claim = "mirror's relative draft overhead is below 1 at every batch size"
    return Claim.of(claim, "at every size, some drafting stays hidden", ours, Way.BELOW, found[worst])


def panels(runs: Runs, both: Two) -> list[Panel]:
    ways = both._asdict()
    speeds = curves(ways, runs, lambda run, entry: speed_up(run, entry).value)
    one = {entry: 1.0 for way, entry in ways.items() if way == "vanilla"}
    shares = curves(ways, runs, lambda run, entry: one.get(entry, overhead(run, both).value))
    return [
        Panel("Speed-up", "texts at a time", "x plain", speeds, level=1.0),
        Panel("Relative draft overhead", "texts at a time", "over vanilla's", shares),
    ]


def report(runs: Runs, both: Two) -> Report:
    notes = ["texts go on behind their end, so that batches stay full"]
    tables, said = [table(runs, both)], list(claims(runs, both))
    return Report("Mirror-SD, Figure 5: batch size", tables, said, notes, panels(runs, both))


def batch(given: Given) -> Report:
    """Figure 5: speed-up by batch size, and the share of drafting that is not hidden.

    The relative draft overhead is the time of drafting that a round waits for, over that of `assistant` (the paper's
    vanilla speculative decoding), so it is 1 for `assistant`. All sizes take the same prompts, as many as fill the
    largest batch, and go on behind the end of a text, so that no batch is ever smaller.
    """
    lab, both, batches = Lab(given), two(given, given.draft, given.gamma), sorted(set(given.batch))
    how = {"methods": both, "limit": filling(given.limit, max(batches)), "ignore_eos": True}
    runs = lab.races({n: {**how, "batch": n} for n in batches}, "batch {}")
    scaled = (
        "with more texts at a time mirror takes fewer proxies (4 from 16 on, 2 from 32, 1 from 64), as in the paper"
    )
    lab.notes.append(scaled)
    return shown(lab, report(runs, both), "the paper does not say at which its Figure 5 is")
