"""Table 15: tokens per second by draft size, expected of a round's tokens and seconds, and real.

python -m papers.unispec.table15_throughput
"""

from __future__ import annotations

from paceline.bench import Estimate, Summary
from papers.common import Claim, Report, Way, script
from papers.unispec.common import Lab, at, parser, ratio, tokens_per_round


def sizes_beside(best: int) -> list[int]:
    return sorted({max(1, best * 2 // 3), best, 2 * best})


def scoring(run: Summary, entry: str) -> float:
    """Seconds of a round without its drafting, on average: the paper's s(g)."""
    return float(run.rounds[run.rounds.entry == entry].scoring.mean())


def report(run: Summary, method: str, best: int) -> Report:
    rows, shares, real = list[tuple[str, ...]](), list[float](), dict[int, float]()
    for size in sizes_beside(best):
        figures, seconds = run.figures(at(method, size)), scoring(run, at(method, size))
        if figures is None or not figures.tokens_per_second or not seconds > 0:
            continue
        tokens = tokens_per_round(run, at(method, size))
        expected, real[size] = tokens / seconds, figures.tokens_per_second
        shares.append(real[size] / expected)
        name = f"g = {size}" + (" (calibrated)" if size == best else "")
        rows.append((name, f"{tokens:.2f}", f"{1000 * seconds:.1f} ms", f"{expected:.1f}", f"{real[size]:.1f}"))
    mean = sum(shares) / len(shares) if shares else float("nan")
    claim = "somewhat less is written than tokens a round over its seconds promise"
    paper = "90.53 of 104.65 and 87.68 of 99.66 tokens/s"
    claims = [Claim.of(claim, paper, f"{mean:.0%} of it", Way.BELOW, Estimate(mean))]
    if best in real and (smaller := [size for size in real if size < best]):
        claim, ours = "the calibrated size is faster than two thirds of it", (real[best], real[smaller[0]])
        found = ratio(run, at(method, best), at(method, smaller[0]))
        told = "{:.1f} against {:.1f} tokens/s".format(*ours)
        claims.append(Claim.of(claim, "90.53 against 87.68 tokens/s", told, Way.ABOVE, found))
    head = ("", "tokens/round", "seconds/round", "expected tokens/s", "real tokens/s")
    return Report("UniSpec, Table 15: expected and real throughput", [(head, rows)], claims)


def main() -> None:
    lab = Lab(parser(__doc__).parse_args())
    best = lab.size().nodes
    runs = lab.races({"run": {"methods": [at(lab.method, size) for size in sizes_beside(best)]}})
    lab.show(report(runs["run"], lab.method, best))


if __name__ == "__main__":
    script(main)
