"""Tables and figures of the UniSpec paper.

    python -m papers.unispec table13 --limit 4 --repeat 2 --json
    python -m papers.unispec figure2 --runs A100=DIR A40=DIR --svg curves.svg
    python -m papers.unispec main S1/Llama=DIR S1/Qwen=DIR S2/Llama=DIR --svg languages.svg

The same command goes on where it was interrupted. By default an item runs on `pocket+ballast:500M` in bfloat16 with two
prompts of each of the paper's tasks, or a few short texts in two languages: the direction at best.
"""

from papers.driver import OPTIONS, Item, Option, asked, count, run
from papers.lab import STAND_IN
from papers.unispec.calibrated import FIGURE2, figure2, figure5, figure6, table14
from papers.unispec.confidence import figure3
from papers.unispec.context import table11
from papers.unispec.lab import options
from papers.unispec.machines import main
from papers.unispec.methods import BATCHES, RIVALS, TWO_TASKS, table1, table2, table6, table8, table12, table17
from papers.unispec.precision import TASKS, table10
from papers.unispec.sizes import GRID, table13, table15, table16
from papers.unispec.trained import TRAINED, table3

CHAT = "spec-bench"
PLANNER = Option("P", "one planner for all methods, --method included")
JOINED = OPTIONS["runs"]
ITEMS = (
    Item("table1", table1, options(suite=CHAT, rivals=RIVALS, planner=PLANNER)),
    Item("table2", table2, options(suite=CHAT, tasks=TWO_TASKS)),
    Item("table3", table3, options(suite=STAND_IN, rivals=TRAINED)),
    Item("table6", table6, options(suite=CHAT)),
    Item("table8", table8, options(suite=CHAT, tasks=("mt_bench",), batch=BATCHES, rivals=(), draft_model=None)),
    Item("table10", table10, options(suite=CHAT, tasks=(*TASKS,))),
    Item("table11", table11, options(suite=CHAT)),
    Item("table12", table12, options(suite=CHAT)),
    Item("table13", table13, options(suite=CHAT)),
    Item("table14", table14, options()),
    Item("table15", table15, options()),
    Item("table16", table16, options(sizes=count("N", "the grid", GRID))),
    Item("table17", table17, options(suite=CHAT, tasks=TWO_TASKS, temperature=0.0)),
    Item("figure2", figure2, options(sizes=count("N", "draft sizes", FIGURE2), runs=JOINED)),
    Item("figure3", figure3, options()),
    Item("figure5", figure5, options(runs=JOINED)),
    Item("figure6", figure6, options()),
    Item("main", main, asked(RUNS=Option("[NAME=]DIR", "folders of runs", default=()))),
)

if __name__ == "__main__":
    run("unispec", __doc__, ITEMS)
