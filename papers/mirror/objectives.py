"""Figure 3a: draft length, accepted tokens and the time of drafting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from paceline_lab import Summary
from papers.charts import Panel, curves
from papers.driver import Given
from papers.lab import Lab, folder_of
from papers.mirror.drafts import Two, accepted, by_text, doubt_of, estimate, milliseconds, ms, ratio_of, shown, two
from papers.report import Claim, Report, Table, Way
from papers.speeds import brings, pairwise, speed_up, with_interval, written

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


def table(runs: Runs, cells: Cells) -> Table:
    head = ("draft model, tokens, method", "E[A]", "ms of drafting", "ms of a round", "x plain [95%]")
    rows = list[Sequence[str]]()
    for draft, gamma, way, run, entry in entries(runs, cells):
        took = ms(run, entry), ms(run, entry, "seconds")
        mean, _ = accepted(run, entry)
        rows.append((f"{draft}, {gamma}, {way}", written(mean), *took, with_interval(speed_up(run, entry))))
    return head, rows


def claims(runs: Runs, cells: Cells) -> Iterator[Claim]:
    for draft, run in runs.items():
        few, many = min(cells[draft]), max(cells[draft])
        if few < many:
            yield from of_lengths(run, draft, few, many, cells[draft])
    yield frontier(runs, cells)


def of_lengths(run: Summary, draft: str, few: int, many: int, cells: Mapping[int, Two]) -> Iterator[Claim]:
    """The tokens and seconds of a model's longest drafts, beside the shortest."""
    for way in Two._fields:
        claim = f"{draft}, {way}: drafts of {many} tokens bring more tokens a round (1 + E[A]) than drafts of {few}"
        long, short = getattr(cells[many], way), getattr(cells[few], way)
        yield brings(run, long, short, claim, "the more the longer", Way.ABOVE)
    long, short = cells[many].vanilla, cells[few].vanilla
    ratio = ratio_of(run, long, short)
    ours = f"{ms(run, long)} against {ms(run, short)} ms{pairwise(ratio)}"
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
    ends = {way: [ms(run, getattr(one, way)) for one in (few, many)] for way in Two._fields}
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
    lines = {f"{draft}, {way}": (draft, way) for draft in runs for way in Two._fields}
    places = {gamma: gamma for of in cells.values() for gamma in of}

    def of(gamma: int, line: tuple[str, str]) -> tuple[Summary, str]:
        return runs[line[0]], getattr(cells[line[0]][gamma], line[1])

    waited = curves(lines, places, lambda gamma, line: milliseconds(*of(gamma, line)))
    taken = curves(lines, places, lambda gamma, line: accepted(*of(gamma, line))[0])
    yield Panel("Drafting that a round waits for", "tokens of a draft", "milliseconds", waited)
    yield Panel("E[A]", "tokens of a draft", "accepted tokens of a round", taken)


def report(runs: Runs, cells: Cells) -> Report:
    notes = [SIZES]
    if len(runs) > 1 and all(BALLAST in draft for draft in runs):
        notes.append(
            "ballast changes no token: these draft models are accepted alike, so that larger ones are accepted more, "
            "as in the paper, cannot be seen here"
        )
    title = "Mirror-SD, Figure 3a: draft length, accepted tokens and latency"
    return Report(title, [table(runs, cells)], list(claims(runs, cells)), notes, list(panels(runs, cells)))


def objectives(given: Given) -> Report:
    """Figure 3a: draft length, accepted tokens and the time of drafting, for draft models of several sizes.

    MT-Bench of Spec-Bench, or beginnings of stories where it is not in the data folder. A race for each draft model, in
    which all lengths take part in both ways: beside the target (`mirror`) and in turns (`assistant`, the paper's
    vanilla speculative decoding). E[A] is the number of accepted drafted tokens of a round.
    """
    lab = Lab(given)
    cells = {draft: {n: two(given, draft, n) for n in sorted(set(given.gamma))} for draft in given.draft}
    stages = {folder_of(draft): {"methods": [e for both in its.values() for e in both]} for draft, its in cells.items()}
    made = lab.races(stages)
    runs = {draft: made[place] for draft in cells if (place := folder_of(draft)) in made}
    return shown(lab, report(runs, cells), "the paper does not say at which its Figure 3a is")
