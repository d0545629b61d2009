"""Figure 3a: draft length, accepted tokens and the time of drafting, for draft models of several sizes.

    python -m papers.mirror.objectives --svg objectives.svg
    python -m papers.mirror.objectives --model M --draft D1 D2 --draft-device cuda:1 --gamma 2 4 8 16 --limit 80

MT-Bench of Spec-Bench, or beginnings of stories where it is not in the data folder. A race for each draft model, in
which all lengths take part in both ways: beside the target (`mirror`) and in turns (`assistant`, the paper's vanilla
speculative decoding). E[A] is the number of accepted drafted tokens of a round.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from paceline_lab import Summary
from papers.common import Claim, Curve, Panel, Report, Way, script
from papers.mirror.common import (
    Lab,
    Two,
    accepted,
    by_text,
    conditions,
    doubt_of,
    estimate,
    milliseconds,
    ms,
    parser,
    ratio_of,
    two,
    with_temperature,
)
from papers.unispec.common import brings, number, pairwise, speed_up, with_interval
from papers.unispec.tables import remarks

DRAFTS = "pocket-draft+ballast:6M", "pocket-draft+ballast:15M", "pocket-draft+ballast:30M"
"""About 2, 5 and 10% of the target."""
GAMMAS = 1, 2, 4, 6, 8
BALLAST = "+ballast"
NEAR = 0.02
"""Two values of E[A] this near count as equal: both methods draft the same tokens but where rounding decides."""
SIZES = (
    "in the paper vanilla drafts with models of 12M to 1.7B parameters and mirror with one of 0.6B; here both draft "
    "with each model"
)
Cells = Mapping[str, Mapping[int, Two]]
"""Entries by draft model and length."""
Runs = Mapping[str, Summary]
"""By draft model."""
Found = Iterator[tuple[str, int, str, Summary, str]]


def entries(runs: Runs, cells: Cells) -> Found:
    """Draft model, length, way to draft, run and entry of every cell."""
    for draft, run in runs.items():
        for gamma, both in cells[draft].items():
            for way in Two._fields:
                yield draft, gamma, way, run, getattr(both, way)


def table(runs: Runs, cells: Cells) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    head = ("draft model, tokens, method", "E[A]", "ms of drafting", "ms of a round", "x plain [95%]")
    rows = list[Sequence[str]]()
    for draft, gamma, way, run, entry in entries(runs, cells):
        took = ms(milliseconds(run, entry)), ms(milliseconds(run, entry, "seconds"))
        mean, _ = accepted(run, entry)
        rows.append((f"{draft}, {gamma}, {way}", number(mean), *took, with_interval(speed_up(run, entry))))
    return head, rows


def claims(runs: Runs, cells: Cells) -> Iterator[Claim]:
    for draft, run in runs.items():
        few, many = min(cells[draft]), max(cells[draft])
        if few < many:
            yield from of_lengths(run, draft, few, many, cells[draft])
    yield frontier(runs, cells)


def of_lengths(run: Summary, draft: str, few: int, many: int, cells: Mapping[int, Two]) -> Iterator[Claim]:
    """What the longest drafts of a model bring and take, beside the shortest."""
    for way in Two._fields:
        claim = f"{draft}, {way}: drafts of {many} tokens bring more tokens a round (1 + E[A]) than drafts of {few}"
        long, short = getattr(cells[many], way), getattr(cells[few], way)
        yield brings(run, long, short, claim, "the more the longer", Way.ABOVE)
    long, short = cells[many].vanilla, cells[few].vanilla
    ratio = ratio_of(run, long, short)
    ours = f"{ms(milliseconds(run, long))} against {ms(milliseconds(run, short))} ms{pairwise(ratio)}"
    claim = f"{draft}, vanilla: drafting {many} tokens takes longer than drafting {few}"
    yield Claim.of(claim, "it rises with the length", ours, Way.ABOVE, ratio)
    yield rises_less(run, draft, cells[few], cells[many])


def rises_less(run: Summary, draft: str, few: Two, many: Two) -> Claim:
    """Whether the time that rounds wait for drafts grows by fewer milliseconds beside the target than in turns.

    The test takes ratios of texts, so differences in seconds enter as their exponentials.
    """
    claim = f"{draft}: with the length, the time of drafting rises less for mirror than for vanilla"
    paper = "hardly at all, while drafts fit beside the target"
    grown = {way: by_text(run, getattr(many, way)) - by_text(run, getattr(few, way)) for way in Two._fields}
    found = estimate(np.exp((grown["mirror"] - grown["vanilla"]).dropna()))
    if np.isnan(found.value):
        return Claim(claim, paper, "", None)
    ends = {way: [ms(milliseconds(run, getattr(one, way))) for one in (few, many)] for way in Two._fields}
    ours = ", ".join(f"{way} from {first} to {last} ms" for way, (first, last) in ends.items())
    return Claim(claim, paper, ours, found.value < 1, doubt_of(found))


def frontier(runs: Runs, cells: Cells) -> Claim:
    """Whether mirror has a cell for every cell of vanilla whose rounds take no longer and accept no less."""
    points: dict[str, list[tuple[float, float]]] = {way: [] for way in Two._fields}
    for _, _, way, run, entry in entries(runs, cells):
        points[way].append((milliseconds(run, entry, "seconds"), accepted(run, entry)[0]))
    reached = sum(
        any(took <= latency and tokens >= (1 - NEAR) * wanted for took, tokens in points["mirror"])
        for latency, wanted in points["vanilla"]
    )
    claim = "at the same step latency mirror accepts as many tokens as vanilla, or more"
    ours = f"at {reached} of vanilla's {len(points['vanilla'])} latencies"
    return Claim(claim, "at every latency (Pareto frontier)", ours, reached == len(points["vanilla"]))


def panels(runs: Runs, cells: Cells) -> Iterator[Panel]:
    """A curve of every draft model and method, in the same colour in both pictures."""
    titles = {"Drafting that a round waits for": "milliseconds", "E[A]": "accepted tokens of a round"}
    for title, up in titles.items():
        points: dict[str, list[tuple[float, float]]] = {}
        for draft, gamma, way, run, entry in entries(runs, cells):
            value = accepted(run, entry)[0] if title == "E[A]" else milliseconds(run, entry)
            points.setdefault(f"{draft}, {way}", []).append((float(gamma), value))
        lines = [Curve(name, found, place) for place, (name, found) in enumerate(points.items(), start=1)]
        yield Panel(title, "tokens of a draft", up, lines)


def report(runs: Runs, cells: Cells, notes: Sequence[str] = ()) -> Report:
    notes = [*notes, SIZES, *remarks(runs.values())]
    if len(runs) > 1 and all(BALLAST in draft for draft in runs):
        notes.append(
            "ballast changes no token: these draft models are accepted alike, so that larger ones are accepted more, "
            "as in the paper, cannot be seen here"
        )
    title = "Mirror-SD, Figure 3a: draft length, accepted tokens and latency"
    return Report(title, [table(runs, cells)], list(claims(runs, cells)), notes, list(panels(runs, cells)))


def main() -> None:
    options = with_temperature(parser(__doc__))
    add = options.add_argument
    add("--draft", nargs="+", default=DRAFTS, metavar="NAME", help="draft models (pocket-draft with 6, 15, 30M more)")
    add("--gamma", type=int, nargs="+", default=GAMMAS, metavar="N", help="tokens of a draft (1 2 4 6 8)")
    lab = Lab(given := options.parse_args())
    cells = {draft: {n: two(given, draft, n) for n in sorted(set(given.gamma))} for draft in given.draft}
    places = {draft: draft.replace("/", "-").replace(":", "-") for draft in cells}
    stages = {
        places[draft]: {"methods": [entry for both in found.values() for entry in both]}
        for draft, found in cells.items()
    }
    made = lab.races(stages)
    runs = {draft: made[place] for draft, place in places.items() if place in made}
    paper = "the paper does not say at which its Figure 3a is"
    lab.show(report(runs, cells, conditions(lab, [lab.temperature], paper)))


if __name__ == "__main__":
    script(main)
