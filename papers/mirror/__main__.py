"""Tables and figures of the Mirror-SD paper.

    python -m papers.mirror tasks --model M --draft D --draft-device cuda:1 --limit 80 --max-new-tokens 512
    python -m papers.mirror objectives --model M --draft D1 D2 --draft-device cuda:1 --gamma 2 4 8 16 --limit 80
    python -m papers.mirror batch --model M --draft D --draft-device cuda:1 --batch 1 8 16 32 64 --limit 64
    python -m papers.mirror fallback --model M --draft D --exit 0.25 0.5 0.75 --kappa 1 2 4 8 --tasks mt_bench qa
    python -m papers.mirror variants --model M --draft D --head FOLDER --draft-device cuda:1 --limit 80
    python -m papers.mirror streams --model M --draft D --head FOLDER --gamma 4 7 --limit 20
    torchrun --nproc-per-node 2 -m papers.mirror segments --tracks FOLDER --plain FOLDER --head FOLDER
    python -m papers.mirror round --svg FILE
    python -m papers.mirror places
    python -m papers.mirror law --waiting 150 --draft pocket-draft+ballast:30M --branches 16 --temperature 0

Races go on where they were interrupted. By default an item runs `pocket+ballast:300M` on very few prompts: the
direction at best.
"""

from papers.driver import Item, Option, asked, count, run
from papers.lab import BALLAST_DTYPE, CHAT
from papers.mirror.batch import BATCHES, batch
from papers.mirror.drafts import DRAFT, GAMMA, MODEL, SIZES_OF_DRAFTS, options
from papers.mirror.fallback import EXITS, KAPPAS, fallback
from papers.mirror.law import law
from papers.mirror.objectives import GAMMAS, objectives
from papers.mirror.places import places
from papers.mirror.round import one_round
from papers.mirror.segments import segments
from papers.mirror.streams import GAMMAS as WINDOWS
from papers.mirror.streams import SETTLE, STREAMS, streams
from papers.mirror.tasks import RIVALS, TEMPERATURES, tasks
from papers.mirror.variants import variants

FORESEEN = {"model": "pocket", "draft": "pocket-draft", "dtype": "float32", "exit": EXITS, "suite": CHAT, "limit": 4}
LAW = {
    "branches": count("N", "outcomes that get a draft", 4),
    "anew": Option("N", "tokens of a draft that nothing was drafted ahead for (as others have)", int),
    "waiting": Option("MS", "a target that waits for this many milliseconds", float, 0.0),
}
ADAPTER = Option("FOLDER", "an adapter of the draft model's streams (the one that comes with paceline)")
HOT = {"temperature": 0.8}
ITEMS = (
    Item("tasks", tasks, options("head", rivals=RIVALS, temperature=TEMPERATURES)),
    Item("variants", variants, options(head=ADAPTER, temperature=TEMPERATURES)),
    Item("objectives", objectives, options("temperature", draft=SIZES_OF_DRAFTS, gamma=GAMMAS)),
    Item("batch", batch, options("temperature", batch=BATCHES)),
    Item(
        "fallback",
        fallback,
        asked(
            *("tasks", "data", "max_new_tokens", "seed"),
            **FORESEEN | HOT,
            kappa=count("K", "numbers of proxies", KAPPAS),
            gamma=GAMMA,
        ),
    ),
    Item(
        "streams",
        streams,
        asked(
            *("tasks", "data", "device", "max_new_tokens", "seed", "repeat", "temperature"),
            model="pocket",
            draft=DRAFT,
            dtype=BALLAST_DTYPE,
            suite=CHAT,
            limit=1,
            head=ADAPTER,
            gamma=WINDOWS,
            streams=count("N", "streams of a row", STREAMS),
            settle=Option("N", "drafts that are made first, so that the best number of streams is found", int, SETTLE),
        ),
    ),
    Item(
        "segments",
        segments,
        asked(
            dtype="float32",
            max_new_tokens=256,
            tracks=Option("FOLDER", "a draft model in tracks", required=True),
            plain=Option("FOLDER", "one of the same size with one track", required=True),
            head=Option("FOLDER", "an adapter of streams for the one in tracks"),
        ),
    ),
    Item(
        "round",
        one_round,
        asked(
            model="pocket",
            draft="pocket-draft",
            gamma=3,
            kappa=count("K", "proxies behind each token of the draft", 1),
            exit=0.5,
            text=Option("TEXT", "the beginning of the text", default="The old house stood at the end of"),
            max_new_tokens=64,
            seed=1,
            **HOT,
        ),
    ),
    Item(
        "places",
        places,
        asked(
            gamma=7,
            anew=Option("SHARE", "rounds whose draft is begun only when the target has decided", float, 0.25, least=0),
            exit=0.5,
        ),
    ),
    Item(
        "law",
        law,
        asked(
            model=MODEL,
            dtype=BALLAST_DTYPE,
            draft=SIZES_OF_DRAFTS,
            gamma=(2, 4, 7),
            exit=0.5,
            **LAW | HOT,
            max_new_tokens=48,
            repeat=3,
        ),
    ),
)

if __name__ == "__main__":
    run("mirror", __doc__, ITEMS)
