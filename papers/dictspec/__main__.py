"""Tables and figures of the DictSpec paper.

python -m papers.dictspec sweep --out runs/dictionaries
python -m papers.dictspec table4 runs/dictionaries
python -m papers.dictspec figure1 runs/dictionaries --svg figure1.svg
python -m papers.dictspec table3 --tokenizers pocket pocket-foreign --texts en=README.md
python -m papers.dictspec live --vllm DIR/bin/python --model FOLDER --dict uk=uk.dict crh-Cyrl=cyrl.dict
python -m papers.dictspec proposing --text uk.txt --method hybrid:file=uk.dict dictionary:file=uk.dict --batch 64
"""

import os
from dataclasses import replace
from pathlib import Path

from paceline_lab import EntryRule
from papers.dictspec.fertility import table3
from papers.dictspec.live import LANGUAGES, live
from papers.dictspec.numbers import MIN_PROBABILITIES, ORDERS, SIZES
from papers.dictspec.proposing import WARM, proposing
from papers.dictspec.sweep import BUDGET, NGRAMS, TEST_WORDS, sweep
from papers.dictspec.swept import figure1, figure2, figure3, table2, table4
from papers.driver import OPTIONS, Item, Option, asked, count, named, run

DATA = "tokenizers", "texts", "data"
RULES = tuple(map(str, EntryRule))
DRAFT, TEXTS = count("N", "tokens of a draft", 4), count("N", "texts at a time", 5)
SWEEP = {
    "out": replace(OPTIONS["out"], help="where results are kept", required=True),
    "parallel": Option("NAME=FILE", "parallel texts for Figure 1's fertility (those of the data folder)", named, ()),
    "entries": Option("RULE", "rules of entries", default=RULES, choices=RULES),
    "orders": count("N", "words of an n-gram, at most", ORDERS),
    "sizes": count("N", "entries", SIZES),
    "min_probs": Option("P", "least probability of an entry", float, MIN_PROBABILITIES),
    "test_words": count("N", "words kept apart", TEST_WORDS),
    "ngrams": count("N", "of each number of words, the most frequent", NGRAMS),
    "budget": count("N", "tokens of a draft, at most 8", BUDGET),
    "workers": count("N", "processes of up to 7 GB", os.cpu_count() or 1),
}
LIVE = {
    "vllm": Option("PYTHON", "(default: $PACELINE_VLLM)", default=os.environ.get("PACELINE_VLLM")),
    "dict": Option("LANG=FILE", "a dictionary for a language (shipped ones)", named, ()),
    "context": count("N", "vLLM's max_model_len", 4096),
    "draft": DRAFT,
}
USUAL = {"model": "pocket", "dtype": "float32", "langs": LANGUAGES, "limit": 5, "max_new_tokens": 2048}
PROPOSING = {
    "method": Option("METHOD", "what drafts", default=("dictionary", "hybrid", "lookup")),
    "text": Option("FILE", "a text of a megabyte or more, in UTF-8", Path, required=True),
    "context": count("N", "tokens of each text", (512, 8000)),
    "rounds": Option("N", "steps", int, 200, least=WARM + 1),
    "draft": replace(DRAFT, default=8),
    "lengths": Option("HOW", "how many of them", default="adaptive", choices=("adaptive", "fixed")),
}
SWEPT = asked(SWEEP=Option("DIR", "the folder of a sweep", Path))
ITEMS = (
    Item("sweep", sweep, asked(*DATA, **SWEEP)),
    Item("table2", table2, SWEPT),
    Item("table3", table3, asked(*DATA, base=Option("T", "the tokenizer that the others are compared with"))),
    Item("table4", table4, SWEPT),
    Item("figure1", figure1, SWEPT),
    Item("figure2", figure2, SWEPT),
    Item("figure3", figure3, SWEPT),
    Item("live", live, asked("data", batch=TEXTS, **USUAL, **LIVE)),
    Item("proposing", proposing, asked(model="pocket", batch=64, **PROPOSING)),
)

if __name__ == "__main__":
    run("dictspec", __doc__, ITEMS)
