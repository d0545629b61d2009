"""Table 15: tokens per second by draft size, expected of a round's tokens and forward seconds, and real.

python -m papers.unispec.table15_throughput
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paceline_lab import Summary
from papers.common import UNBOUNDED, Claim, Report, Way, script
from papers.unispec.calibration import forward_seconds
from papers.unispec.common import Lab, at, faster, parser, size_notes
from papers.unispec.tables import OWN, conditions

SOMEWHAT = 0.8
"""The least share of the expected tokens per second that counts as somewhat less; the paper's are 0.87 and 0.88."""


def sizes_beside(best: int) -> list[int]:
    """Two thirds of it, as in the paper, and the double."""
    return sorted({max(1, best * 2 // 3), max(1, best), max(1, 2 * best)})


def report(run: Summary, best: Mapping[str, int], notes: Sequence[str] = ()) -> Report:
    """``best`` has the calibrated size of each method."""
    rows, claims = list[tuple[str, ...]](), list[Claim]()
    for method, g in best.items():
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
        mean = sum(shares) / len(shares) if shares else float("nan")
        claim = f"somewhat less is written than tokens a round over its forward promise, {method}"
        paper = "90.53 of 104.65 and 87.68 of 99.66 tokens/s"
        agrees = None if mean != mean else SOMEWHAT <= mean < 1
        claims.append(Claim(claim, paper, "" if agrees is None else f"{mean:.0%} of it", agrees, UNBOUNDED))
        claim, paper = f"the calibrated size is faster than two thirds of it, {method}", "90.53 against 87.68 tokens/s"
        claims.append(faster(run, at(method, max(1, g)), at(method, sizes[0]), claim, paper, Way.ABOVE))
    head = ("", "tokens/round", "forward", "expected tokens/s", "real tokens/s")
    return Report("UniSpec, Table 15: expected and real throughput", [(head, rows)], claims, notes)


def main() -> None:
    lab = Lab(parser(__doc__).parse_args())
    found = {method: lab.size(method) for method in dict.fromkeys((lab.method, OWN))}
    methods = [at(method, size) for method, one in found.items() for size in sizes_beside(one.nodes)]
    runs = lab.races({"run": {"methods": methods}})
    notes = [f"{method}: {note}" for method, one in found.items() for note in size_notes(one)]
    lab.show(report(runs["run"], {name: one.nodes for name, one in found.items()}, [*notes, *conditions(lab)]))


if __name__ == "__main__":
    script(main)
