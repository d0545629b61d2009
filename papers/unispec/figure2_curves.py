"""Figure 2: tokens and seconds of a round by draft size.

python -m papers.unispec.figure2_curves --svg curves.svg
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline.bench import Estimate, Summary, difference
from papers.common import Claim, Curve, Panel, Report, Way, script
from papers.unispec.common import Lab, at, parser, rounds_ratio, speed_up, tokens_per_round, told

SIZES = 1, 2, 4, 8, 16, 32, 64


def seconds_per_round(run: Summary, entry: str) -> float:
    """The median, for machines stall."""
    return float(run.rounds[run.rounds.entry == entry].seconds.median())


def seconds_ratio(run: Summary, entry: str, other: str) -> Estimate:
    """The median round of an entry's texts over that of another's, pair by pair."""
    medians, pairs = run.rounds.groupby("text").seconds.median(), run.pairs(entry, other)
    return difference(pairs.text.map(medians) / pairs.text_base.map(medians), pairs.unit).ratio


def report(run: Summary, method: str, sizes: Sequence[int]) -> Report:
    entries, places = [run.base, *(at(method, g) for g in sizes)], [0, *sizes]
    tokens = [tokens_per_round(run, entry) for entry in entries]
    seconds = [1000 * seconds_per_round(run, entry) for entry in entries]
    rows = [
        (f"g = {g}", f"{count:.2f}", f"{took:.1f} ms", told(speed_up(run, entry)))
        for g, count, took, entry in zip(places, tokens, seconds, entries, strict=True)
    ]
    half, first, last = len(places) // 2, entries[1], entries[-1]
    gain = (tokens[-1] - tokens[half]) / max(tokens[half] - tokens[0], 1e-9)
    rise = f"from {tokens[1]:.2f} to {tokens[-1]:.2f}"
    slow = f"from {seconds[1]:.1f} to {seconds[-1]:.1f} ms"
    claims = [
        Claim.of(
            "larger drafts bring more tokens a round",
            "they rise over the whole range",
            rise,
            Way.ABOVE,
            rounds_ratio(run, last, first),
        ),
        Claim.of(
            "larger drafts take more seconds a round",
            "they rise, on each device in its own way",
            slow,
            Way.ABOVE,
            seconds_ratio(run, last, first),
        ),
        Claim.of(
            "the larger half of the sizes adds fewer tokens than the smaller half",
            "the curve saturates quickly",
            f"{gain:.2f} times as many",
            Way.BELOW,
            Estimate(gain),
        ),
    ]
    panels = [
        Panel(title, "nodes", up, [Curve(method, list(zip(map(float, places), values, strict=True)))])
        for title, up, values in (
            ("Tokens per round by draft size", "tokens/round", tokens),
            ("Seconds per round by draft size", "ms/round", seconds),
        )
    ]
    head = ("", "tokens/round", "median round", "x plain [95%]")
    return Report("UniSpec, Figure 2: tokens and seconds by draft size", [(head, rows)], claims, panels=panels)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="N", help="draft sizes (1 2 4 ... 64)")
    lab = Lab(given := options.parse_args())
    sizes = sorted(set(given.sizes))
    runs = lab.races({"run": {"methods": [at(lab.method, size) for size in sizes]}})
    lab.show(report(runs["run"], lab.method, sizes))


if __name__ == "__main__":
    script(main)
