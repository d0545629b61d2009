"""Tables and figures of the paper on Recurrent Drafter.

    python -m papers.redrafter tasks --model M --head FOLDER --width 50 --limit 100 --max-new-tokens 512 --svg tasks.svg
    python -m papers.redrafter arrivals --model M --head FOLDER --width 6 --length 5 --temperature 1 --limit 80
    python -m papers.redrafter beams --model M --head FOLDER --width 1 2 4 8 16 32 64 --batch 1 2 4 8 10 20 40 80
    python -m papers.redrafter shape --model M --head FOLDER --width 1 2 3 4 --length 1 2 3 4 5 6
    python -m papers.redrafter packing --batch --model pocket
    torchrun --nproc-per-node 2 -m papers.redrafter parallel --model M --head FOLDER --limit 80
    python -m papers.redrafter labels --model M --heads truth=DIR greedy=DIR --width 1 2 4 16 64 --temperature 0

The same command goes on where it was interrupted, with the same head only. By default an item runs `pocket` with the
head that comes with paceline, with ballast where speed counts, on very few prompts: the direction at best.
"""

from dataclasses import replace

from papers.driver import Item, Option, count, named, run
from papers.lab import STAND_IN
from papers.redrafter import arrivals, beams, labels, packing, parallel, shape, tasks
from papers.redrafter.heads import CHOSEN, COUNTING, SUITE, WIDTH, options

QPS = Option("R", "requests a second", float, arrivals.RATES, above=0)
HEADS = Option("LABEL=DIR", "trained heads, by their labels", named, ())
TIMED = replace(count("N", "texts at a time; none to count only", packing.BATCHES), many="*")
LABELLED = {"model": COUNTING, "method": CHOSEN, "heads": HEADS}
TRAINED = count("N", "tokens that the head learned to predict", shape.TRAINED)
PACKED = {"length": packing.LENGTH, "wide": count("W", "the width to time", packing.WIDE), "batch": TIMED}
ITEMS = (
    Item("tasks", tasks.tasks, options(limit=1, width=WIDTH, draft_model=None, rivals=tasks.RIVALS)),
    Item("arrivals", arrivals.arrivals, options(*SUITE, limit=8, width=WIDTH, qps=QPS)),
    Item("beams", beams.beams, options(*SUITE, width=beams.WIDTHS, batch=beams.BATCHES, method=CHOSEN)),
    Item(
        "shape", shape.shape, options(*SUITE, width=shape.WIDTHS, length=shape.LENGTHS, trained=TRAINED, method=CHOSEN)
    ),
    Item("packing", packing.packing, options(*SUITE, width=packing.WIDTHS, **PACKED)),
    Item(
        "parallel",
        parallel.parallel,
        options(*SUITE[:3], temperature=1.0, width=parallel.WIDTH, length=parallel.LENGTH, method=CHOSEN),
    ),
    Item("labels", labels.labels, options(*SUITE[1:], suite=STAND_IN, width=(WIDTH,), **LABELLED)),
)

if __name__ == "__main__":
    run("redrafter", __doc__, ITEMS)
