"""Tables of the paper on cross-family drafting for Polish.

    python -m papers.bielik acceptance --model speakleash/Bielik-11B-v3.0-Instruct --draft-model \\
        Qwen/Qwen2.5-1.5B-Instruct meta-llama/Llama-3.2-1B-Instruct speakleash/Bielik-1.5B-v3.0-Instruct --limit 50 \\
        --max-new-tokens 128 --prompts Wikipedia=wiki.jsonl pl_alpaca=alpaca.jsonl Synthetic=questions.jsonl
    python -m papers.bielik speed --limit 12 --max-new-tokens 128 --out runs/papers/bielik
    python -m papers.bielik buckets runs/papers/bielik/*
    python -m papers.bielik breakeven runs/papers/bielik/* --ratio R --svg breakeven.svg
    python -m papers.bielik content --model M --draft-model D --prompts infoboxes=boxes.jsonl essays=essays.jsonl
    python -m papers.bielik rewind --tokenizers bielik-v2 llama3 --texts pl=news.txt --prefix 1 5 9
    python -m papers.bielik overlap --tokenizers bielik-v2 qwen2-2.5-3 --texts pl=news.txt
    python -m papers.bielik table12 --watts 30 --tokens-per-second 15
"""

from pathlib import Path

from papers.bielik.acceptance import accepted
from papers.bielik.breakeven import breakeven
from papers.bielik.buckets import buckets
from papers.bielik.content import content
from papers.bielik.energy import CONDITIONS, TEXTS, TOKENS, table12
from papers.bielik.measured import UNIT, options
from papers.bielik.overlap import CHARACTERS, overlaps
from papers.bielik.rewind import PREFIX, rewind
from papers.bielik.speed import MODELS, speed
from papers.driver import Item, Option, asked, count, run

RUNS = Option("RUN", "folders of speed or of 'paceline bench run'", Path, (), many="*")
RATIO = Option("R", "bytes of the draft model over those of the target", float, above=0)
BANDWIDTH = Option("GB/S", "of the machine's memory, for the table", float, above=0)
TOKENIZERS = "tokenizers", "texts", "data"
ENERGY = {
    "watts": Option("W", "the power of this machine while it writes", float, above=0),
    "tokens_per_second": Option("R", "how fast it writes", float, above=0),
    "texts": count("N", "how many texts", CONDITIONS * TEXTS),
    "tokens": count("N", "tokens of each", TOKENS),
}
ITEMS = (
    Item("acceptance", accepted, options()),
    Item("speed", speed, options(model=MODELS, k=(2, 4, 6), repeat=1, out=None)),
    Item("buckets", buckets, asked("quick", RUNS=RUNS, unit=UNIT)),
    Item("breakeven", breakeven, asked(RUNS=RUNS, ratio=RATIO, bandwidth=BANDWIDTH, unit=UNIT)),
    Item("content", content, options(k=(2,), unit=UNIT)),
    Item(
        "rewind",
        rewind,
        asked(*TOKENIZERS, "quick", k=(2, 4), limit=20, prefix=count("P", "tokens before a draft", (1, PREFIX))),
    ),
    Item(
        "overlap", overlaps, asked(*TOKENIZERS, characters=count("N", "of each text, from its beginning", CHARACTERS))
    ),
    Item("table12", table12, asked(**ENERGY)),
)

if __name__ == "__main__":
    run("bielik", __doc__, ITEMS)
