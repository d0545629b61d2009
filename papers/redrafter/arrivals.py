"""Table 2: requests that arrive at random."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paceline_lab import Estimate, Summary
from papers.charts import Panel, curves
from papers.driver import Given
from papers.redrafter.heads import METHOD, OWN, shown, spec, with_head
from papers.report import Claim, Report, Way
from papers.speeds import per_request, per_round, written

RATES = 0.1, 0.5, 1.0
Row = tuple[float, float]
PAPER: Mapping[str, Sequence[Row]] = {
    "Vicuna 7B": ((2.41, 2.09), (2.48, 2.11), (2.76, 1.57)),
    "Vicuna 13B": ((3.41, 2.31), (3.61, 1.71), (5.43, 1.22)),
    "Vicuna 33B": ((5.93, 2.56), (8.41, 1.49), (20.04, 1.37)),
}
"""Milliseconds per token of ReDrafter and its speed-up, by rate."""
HEAD = ("", "ms/token", "x plain", "first token: p50", "p90", "last token: p50", "p90", "tokens/round")


def speed_up(run: Summary, entry: str) -> float:
    """How many times as fast a text comes as plain decoding's, under the same arrivals."""
    return per_request(run, entry) / per_request(run, run.base)


def implied(rows: Sequence[Row]) -> list[float]:
    """Milliseconds per token of plain decoding that the paper's own numbers imply."""
    return [ms * ratio for ms, ratio in rows]


def row(run: Summary, entry: str, name: str) -> tuple[str, ...]:
    figures = run.figures(entry)
    latency = {} if figures is None else figures.latency
    times = [written(latency[of][p]) if latency else "" for of in ("first", "last") for p in ("p50", "p90")]
    ratio = "" if entry == run.base else written(speed_up(run, entry))
    return name, written(1000 / per_request(run, entry)), ratio, *times, written(per_round(run, entry))


def falling(runs: Mapping[float, Summary], entry: str) -> Claim:
    """The speed-up at the highest rate against that at the lowest."""
    low, high = min(runs), max(runs)
    one, two = speed_up(runs[high], entry), speed_up(runs[low], entry)
    paper = ", ".join(f"{rows[-1][1]:.2f}x against {rows[0][1]:.2f}x" for rows in PAPER.values())
    ours = f"{one:.2f}x at {high:g} a second against {two:.2f}x at {low:g}"
    return Claim.of("the speed-up falls as requests come faster", paper, ours, Way.BELOW, Estimate(one / two))


def report(runs: Mapping[float, Summary], names: Mapping[str, str]) -> Report:
    """``runs`` by rate; ``names`` of entries."""
    every = {"plain": "plain", **names}
    rows = [row(run, entry, f"{rate:g}/s  {name}") for rate, run in runs.items() for name, entry in every.items()]
    printed = [
        (f"{rate:g}/s  paper, {model}", f"{ms:.2f}", f"{ratio:.2f}")
        for place, rate in enumerate(RATES)
        for model, cells in PAPER.items()
        for ms, ratio in (cells[place],)
    ]
    claims = [falling(runs, names[METHOD])] if len(runs) > 1 else []
    plain = "; ".join(f"{model} {', '.join(f'{ms:.1f}' for ms in implied(cells))}" for model, cells in PAPER.items())
    notes = [
        f"plain decoding in the paper, ms per token x speed-up at 0.1, 0.5 and 1 a second: {plain}. So its plain "
        "decoding of 7B is fastest at the highest rate, and of 13B and 33B slower at 0.1 than at 0.5",
        "times to the first and last token are seconds from a request's arrival",
    ]
    lines = curves(every, runs, per_request, first=0)
    panels = [Panel("Tokens/s of a request", "requests a second", "tokens/s", lines)]
    title = "ReDrafter, Table 2: requests that arrive"
    return Report(title, [(HEAD, rows), (HEAD[:3], printed)], claims, notes, panels)


def arrivals(given: Given) -> Report:
    """Table 2: time per token and speed-up while requests arrive at random, 0.1 to 1 a second.

    All requests of a rate arrive at the same moments for every method, and join the texts that are being written. The
    time per token of a text runs from its first token to its last; prompts and waiting are apart, as times to the first
    token. The paper's numbers are of TensorRT-LLM on 8 GPUs, with beams 6 wide and 5 long; it does not say what it
    divides by what.
    """
    lab = with_head(given)
    names = {name: spec(given, given.width, given.length, method=name) for name in (METHOD, OWN)}
    stages = {rate: {"methods": names.values(), "qps": rate} for rate in sorted(set(given.qps))}
    runs = lab.races(stages, "{:g} a second")
    return shown(lab, report(runs, names), "the paper's at 1, with beams 6 wide and 5 long")
