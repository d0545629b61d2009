"""Figure 2: tokens and forward seconds of a round by draft size, of one device or several.

    python -m papers.unispec.figure2_curves --svg curves.svg
    python -m papers.unispec.figure2_curves --runs A100=DIR A40=DIR --svg curves.svg

The first measures here. The second draws what was kept in folders of this script, or of others that calibrate the
method as the paper does. A forward is a round without its drafting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from paceline_lab import Calibration, Estimate, Summary, difference
from papers.common import Claim, Curve, Panel, Report, Way, script
from papers.unispec.calibration import Runs, calibration_of, named
from papers.unispec.common import Lab, at, number, parser, rounds_ratio, speed_up, tokens_per_round, with_interval
from papers.unispec.tables import conditions

SIZES = 1, 2, 4, 8, 16, 32, 64
HERE = "this device"
RISE = "larger drafts bring more tokens a round", "they rise over the whole range"
SLOWER = "larger drafts take more forward seconds", "they rise, on each device in its own way"


def seconds_ratio(run: Summary, entry: str, other: str) -> Estimate:
    """The mean forward of an entry's texts over that of another's, pair by pair."""
    means, pairs = run.rounds.groupby("text").scoring.mean(), run.pairs(entry, other)
    return difference(pairs.text.map(means) / pairs.text_base.map(means), pairs.unit).ratio


def rises(name: str, found: Calibration, run: Summary | None, method: str) -> list[Claim]:
    """Claims on the curves of one device; with intervals where its ``run`` is there."""
    first, last, half = found.sizes[0], found.sizes[-1], len(found.sizes) // 2
    tokens, seconds = found.tokens, [1000 * took for took in found.seconds]
    if run is None:
        more, slower = Estimate(tokens[-1] / tokens[0]), Estimate(seconds[-1] / seconds[0])
    else:
        more, slower = (of(run, at(method, last), at(method, first)) for of in (rounds_ratio, seconds_ratio))
    gain = (tokens[-1] - tokens[half]) / max(tokens[half] - 1, 1e-9)
    saturates = "the larger half of the sizes adds fewer tokens than the smaller half", "the curve saturates quickly"
    return [
        Claim.of(f"{words}, {name}", paper, ours, way, ratio)
        for (words, paper), ours, way, ratio in (
            (RISE, f"from {tokens[0]:.2f} to {tokens[-1]:.2f}", Way.ABOVE, more),
            (SLOWER, f"from {seconds[0]:.1f} to {seconds[-1]:.1f} ms", Way.ABOVE, slower),
            (saturates, f"{gain:.2f} times as many", Way.BELOW, Estimate(gain)),
        )
    ]


def apart(devices: Mapping[str, Calibration]) -> list[Claim]:
    """Claims on several devices: how far they lie apart, at the sizes that all have."""
    common = sorted(set.intersection(*(set(one.sizes) for one in devices.values())))
    if len(devices) < 2 or not common:
        return []

    def spread(of: Callable[[Calibration], Sequence[float]]) -> float:
        places = ([of(one)[one.sizes.index(size)] for one in devices.values()] for size in common)
        ratios = [max(found) / min(found) for found in places]
        return sum(ratios) / len(ratios)

    tokens, seconds = spread(lambda one: one.tokens), spread(lambda one: one.seconds)
    return [
        Claim.of(
            "forward seconds differ more between devices than tokens do",
            "tokens are relatively stable, seconds vary substantially",
            f"the largest over the smallest is {seconds:.2f} of seconds and {tokens:.2f} of tokens",
            Way.ABOVE,
            Estimate(seconds / tokens),
        )
    ]


def report(devices: Mapping[str, Runs], method: str, run: Summary | None = None, notes: Sequence[str] = ()) -> Report:
    """``run`` is that of the one device where it was measured just now."""
    rows = [] if run is None else [(run.base, number(tokens_per_round(run, run.base)), "", "", "1.00")]
    for name, found in devices.items():
        for size, tokens, took, all_in_all in zip(found.sizes, found.tokens, found.seconds, found.whole, strict=True):
            speed = "" if run is None else with_interval(speed_up(run, at(method, size)))
            cells = f"{tokens:.2f}", f"{1000 * took:.1f} ms", f"{1000 * all_in_all:.1f} ms", speed
            rows.append((f"{name}, g = {size}" if len(devices) > 1 else f"g = {size}", *cells))
    claims = [claim for name, found in devices.items() for claim in rises(name, found, run, method)]
    pictures: tuple[tuple[str, str, Callable[[Calibration], Sequence[float]]], ...] = (
        ("Tokens per round by draft size", "tokens/round", lambda one: one.tokens),
        ("Forward time by draft size", "ms", lambda one: [1000 * took for took in one.seconds]),
    )
    panels = [
        Panel(title, "nodes", up, [line(name, one, of(one), n) for n, (name, one) in enumerate(devices.items(), 1)])
        for title, up, of in pictures
    ]
    head = ("", "tokens/round", "forward", "whole round", "x plain [95%]")
    title = f"UniSpec, Figure 2: tokens and forward time by draft size, {method}"
    return Report(title, [(head, rows)], [*claims, *apart(devices)], notes, panels)


def raced(method: str) -> str:
    """The label of what this script keeps: a race, which calibrates nothing that races on the same prompts."""
    return f"{method} in a race"


def by_runs(name: str, found: Calibration) -> Runs:
    if not isinstance(found, Runs):
        raise ValueError(f"{name} was not calibrated by runs, so its forward seconds are not known")
    return found


def line(name: str, found: Calibration, heights: Sequence[float], number: int) -> Curve:
    return Curve(name, list(zip(map(float, found.sizes), heights, strict=True)), number)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="N", help="draft sizes (1 2 4 ... 64)")
    options.add_argument("--runs", nargs="+", metavar="[NAME=]DIR", help="measure nothing, and join what was kept")
    given = options.parse_args()
    if given.runs:
        kept = named(given.runs, raced(given.method), given.method)
        report({name: by_runs(name, one) for name, (_, one) in kept.items()}, given.method).show(given)
        return
    lab = Lab(given)
    entries = {size: at(lab.method, size) for size in sorted(set(given.sizes))}
    run = lab.races({"run": {"methods": [*entries.values()]}})["run"]
    found = calibration_of(run, entries)
    lab.keep(raced(lab.method), found)
    lab.show(report({HERE: found}, lab.method, run, conditions(lab)))


if __name__ == "__main__":
    script(main)
