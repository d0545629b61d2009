"""Table 16: a grid of draft sizes beside the calibrated one.

    python -m papers.unispec.table16_grid [--sizes 1 2 4 8 16 32 64 128]

The best of the grid is picked after the fact from noisy figures, so it is flattered.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline.bench import Calibration, Summary
from papers.common import Report, Way, script
from papers.unispec.common import HEAD, Lab, at, faster, fastest, parser, rows

SIZES = tuple(range(25, 126, 25))


def report(run: Summary, method: str, found: Calibration, sizes: Sequence[int] = SIZES) -> Report:
    best, grid = found.nodes, fastest(run, [at(method, size) for size in sizes])
    whole, size = at(method, best), grid.rpartition(":")[2]
    claim = "the calibrated size is no slower than the best of the grid"
    paper = "90.53 (111 nodes) against 89.49 tokens/s (100 and 125 nodes)"
    way = Way.LEVEL if whole == grid else Way.ABOVE
    claims = [faster(run, whole, grid, claim, paper, way, f", {best} nodes against {size}")]
    top = fastest(run, [whole, grid])
    speeds = [(figures.tokens_per_second or 0.0) if (figures := run.figures(e)) else 0.0 for e in (whole, top)]
    lost = f"{best} nodes lose {1 - speeds[0] / speeds[1]:.1%} to the fastest size, {top.rpartition(':')[2]} nodes"
    notes = [f"calibrating took {found.took:.0f} s", lost]
    names = {at(method, g): f"g = {g}" + (" (calibrated)" if g == best else "") for g in (*sizes, best)}
    return Report("UniSpec, Table 16: grid of sizes", [(HEAD, rows(run, names))], claims, notes)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="N", help="the grid (25 50 75 100 125)")
    lab = Lab(given := options.parse_args())
    found = lab.size()
    runs = lab.races({"run": {"methods": [at(lab.method, size) for size in sorted({*given.sizes, found.nodes})]}})
    lab.show(report(runs["run"], lab.method, found, given.sizes))


if __name__ == "__main__":
    script(main)
