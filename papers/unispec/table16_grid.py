"""Table 16: a grid of draft sizes beside the calibrated one.

    python -m papers.unispec.table16_grid [--sizes 1 2 4 8 16 32 64 128]

Grid search and the paper's calibration have the same queries: a run of the calibration prompts for each size of the
grid. Grid search takes the fastest of these runs, the calibration the best size by curves through them. Then all sizes
race on other prompts. A method that is not calibrated by runs (`--method unispec`) is held against the size of the grid
that is fastest in the race itself, which flatters the grid.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline_lab import Calibration, Summary
from papers.common import Report, Way, script
from papers.unispec.calibration import Runs
from papers.unispec.common import HEAD, Lab, at, faster, fastest, parser, rows, size_notes
from papers.unispec.tables import beside, conditions

SIZES = tuple(range(25, 126, 25))


def searched(found: Runs) -> int:
    """What grid search takes: the run of most tokens per second, drafting included."""
    return max(found.sizes, key=lambda g: found.tokens[found.sizes.index(g)] / found.whole[found.sizes.index(g)])


def report(
    run: Summary, method: str, found: Calibration, sizes: Sequence[int] = SIZES, notes: Sequence[str] = ()
) -> Report:
    best = found.nodes
    grid = at(method, searched(found)) if isinstance(found, Runs) else fastest(run, [at(method, g) for g in sizes])
    whole, size = at(method, best), grid.rpartition(":")[2]
    claim = "the calibrated size is faster than that of grid search"
    paper = "90.53 (111 nodes) against 89.49 tokens/s (100 and 125 nodes)"
    claims = [faster(run, whole, grid, claim, paper, Way.ABOVE, f", {best} nodes against {size}")]
    top = fastest(run, [whole, *(at(method, g) for g in sizes)])
    speeds = [(figures.tokens_per_second or 0.0) if (figures := run.figures(e)) else 0.0 for e in (whole, top)]
    lost = f"{best} nodes lose {1 - speeds[0] / speeds[1]:.1%} to the fastest size, {top.rpartition(':')[2]} nodes"
    names = {at(method, g): f"g = {g}" + (" (calibrated)" if g == best else "") for g in (*sizes, best)}
    head = [f"calibrating took {found.took:.0f} s", lost]
    return Report("UniSpec, Table 16: grid of sizes", [(HEAD, rows(run, names))], claims, [*head, *notes])


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="N", help="the grid (25 50 75 100 125)")
    lab = Lab(given := options.parse_args())
    grid = sorted(set(given.sizes))
    made = lab.calibrate(lab.method, sizes=grid)
    found = lab.needed({lab.method: made})[lab.method]
    methods = [*(at(lab.method, size) for size in sorted({*grid, found.nodes})), *beside(lab)]
    runs = lab.races({"run": {"methods": methods}})
    lab.show(report(runs["run"], lab.method, found, grid, [*size_notes(found), *conditions(lab)]))


if __name__ == "__main__":
    script(main)
