"""Figure 5: speed-up by batch size, and the share of drafting that is not hidden.

    python -m papers.mirror.batch --svg batch.svg
    python -m papers.mirror.batch --model M --draft D --draft-device cuda:1 --batch 1 8 16 32 64 --limit 64

The relative draft overhead is the time of drafting that a round waits for, over that of `assistant` (the paper's
vanilla speculative decoding), so it is 1 for `assistant`. All sizes take the same prompts, as many as fill the largest
batch, and go on behind the end of a text, so that no batch is ever smaller.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from paceline_lab import Estimate, Summary
from papers.common import Claim, Curve, Panel, Report, Way, script
from papers.mirror.common import (
    Lab,
    Two,
    conditions,
    milliseconds,
    ms,
    parser,
    ratio_of,
    two,
    with_draft,
    with_temperature,
)
from papers.redrafter.common import in_all, written
from papers.unispec.common import (
    against,
    between,
    number,
    over,
    pairwise,
    ratio,
    speed_up,
    tokens_per_round,
    with_interval,
)
from papers.unispec.table8_batch import filling
from papers.unispec.tables import remarks

BATCHES = 1, 2, 4, 8, 16
FALLS = "it falls steadily"
Runs = Mapping[int, Summary]
"""By batch size."""


def overhead(run: Summary, both: Two) -> Estimate:
    """Of mirror: drafting seconds of a round that are not hidden, over vanilla's, text by text."""
    return ratio_of(run, both.mirror, both.vanilla)


def table(runs: Runs, both: Two) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    head = (
        *("texts at a time", "x plain [95%]", "tokens/s in all", "tokens/round", "ms of drafting", "ms of a round"),
        "relative draft overhead",
    )
    rows = list[Sequence[str]]()
    for batch, run in runs.items():
        for way, entry in both._asdict().items():
            took = ms(milliseconds(run, entry)), ms(milliseconds(run, entry, "seconds"))
            exposed = "1" if way == "vanilla" else with_interval(overhead(run, both))
            speed = with_interval(speed_up(run, entry)), written(in_all(run, entry))
            rows.append((f"{batch}  {way}", *speed, number(tokens_per_round(run, entry)), *took, exposed))
        rows.append((f"{batch}  plain", "", written(in_all(run, run.base)), "", "", "", ""))
    return head, rows


def claims(runs: Runs, both: Two) -> Iterator[Claim]:
    small, large = min(runs), max(runs)
    if small < large:
        for way, entry in both._asdict().items():
            one, other = speed_up(runs[large], entry), speed_up(runs[small], entry)
            claim = f"the speed-up of {way} falls from {small} to {large} at a time"
            yield Claim.of(claim, FALLS, between(one, other), Way.BELOW, over(one, other))
    yield least_gain(runs, both)
    yield most_exposed(runs, both)
    if small < large:
        one, other = overhead(runs[large], both), overhead(runs[small], both)
        claim = f"mirror's relative draft overhead rises from {small} to {large} at a time"
        yield Claim.of(claim, "it rises", between(one, other), Way.ABOVE, over(one, other))


def least_gain(runs: Runs, both: Two) -> Claim:
    """The batch size at which mirror gains least over vanilla decides whether it is faster at all of them."""
    gains = {batch: ratio(run, both.mirror, both.vanilla) for batch, run in runs.items()}
    worst = min(gains, key=lambda batch: _or(gains[batch].value, float("inf")))
    ours = f"at {worst}, where it gains least, {against(runs[worst], *both)}{pairwise(gains[worst])}"
    claim = "mirror is faster than vanilla at every batch size"
    return Claim.of(claim, "at every size", ours, Way.ABOVE, gains[worst])


def most_exposed(runs: Runs, both: Two) -> Claim:
    """The batch size at which most drafting is exposed decides whether some is hidden at all of them."""
    found = {batch: overhead(run, both) for batch, run in runs.items()}
    worst = max(found, key=lambda batch: _or(found[batch].value, 0.0))
    ours = f"at {worst}, where it is largest, {with_interval(found[worst])}"
    claim = "mirror's relative draft overhead is below 1 at every batch size"
    return Claim.of(claim, "at every size, some drafting stays hidden", ours, Way.BELOW, found[worst])


def _or(value: float, other: float) -> float:
    return value if value == value else other


def panels(runs: Runs, both: Two) -> list[Panel]:
    names = both._asdict()
    speeds = {way: {n: speed_up(run, entry).value for n, run in runs.items()} for way, entry in names.items()}
    shares = {"mirror": {n: overhead(run, both).value for n, run in runs.items()}, "vanilla": dict.fromkeys(runs, 1.0)}
    return [
        Panel("Speed-up", "texts at a time", "x plain", _curves(speeds), level=1.0),
        Panel("Relative draft overhead", "texts at a time", "over vanilla's", _curves(shares)),
    ]


def _curves(found: Mapping[str, Mapping[int, float]]) -> list[Curve]:
    """A line of every method by batch size; what is not known is left out."""
    return [
        Curve(way, [(float(n), value) for n, value in values.items() if value == value], place)
        for place, (way, values) in enumerate(found.items(), start=1)
    ]


def report(runs: Runs, both: Two, notes: Sequence[str] = ()) -> Report:
    notes = [*notes, "texts go on behind their end, so that batches stay full", *remarks(runs.values())]
    title = "Mirror-SD, Figure 5: batch size"
    return Report(title, [table(runs, both)], list(claims(runs, both)), notes, panels(runs, both))


def main() -> None:
    options = with_temperature(with_draft(parser(__doc__)))
    options.add_argument(
        "--batch", type=int, nargs="+", default=BATCHES, metavar="N", help="texts at a time (1 2 4 8 16)"
    )
    lab = Lab(given := options.parse_args())
    both, batches = two(given, given.draft, given.gamma), sorted(set(given.batch))
    how = {"methods": both, "limit": filling(given.limit, max(batches)), "ignore_eos": True}
    made = lab.races({f"batch {n}": {**how, "batch": n} for n in batches})
    runs = {int(name.split()[1]): run for name, run in made.items()}
    paper = "the paper does not say at which its Figure 5 is"
    scaled = (
        "with more texts at a time mirror takes fewer proxies (4 from 16 on, 2 from 32, 1 from 64), as in the paper"
    )
    lab.show(report(runs, both, [*conditions(lab, [lab.temperature], paper), scaled]))


if __name__ == "__main__":
    script(main)
