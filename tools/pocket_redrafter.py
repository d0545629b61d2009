"""Makes the head that comes with the package, for `pocket`.

    python -m tools.pocket_redrafter --text ../shared/data/text --work build/redrafter

Half an hour on two CPU cores. A run that was stopped goes on where it last saved. ``--install`` then writes the head
and its card to where the package reads them. ``--labels``, ``--positions`` and ``--language`` make heads to compare
with.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from paceline.api.model import load
from paceline.drafters.networks.checkpoint import WEIGHTS
from paceline.drafters.networks.heads import CONFIG, REDRAFTER, shipped_folder
from paceline.files import terminable
from paceline_lab.bench.machine import instruction_sets
from paceline_make.cards import CARD
from paceline_make.heads.labels import KINDS, LabelSettings
from paceline_make.heads.run import Recipe, Workshop
from paceline_make.heads.watch import watched
from tools.card import source_row
from tools.corpus import CorpusText, read

MODEL = "pocket"
RECIPE = Recipe(
    labels=LabelSettings(kind="soft", ahead=5, temperature=0.8),
    positions=800_000,
    epochs=4.0,
    int8=True,
)
MOST_BYTES = 3_000_000


def passages_of(texts: Sequence[CorpusText], language: str | None = None) -> list[str]:
    """What the bundled models were trained on, every source as often as there."""
    return [
        passage
        for text in texts
        if language in (None, text.source.language)
        for passage in text.training * text.source.repeats
    ]


def origin(texts: Sequence[CorpusText]) -> list[str]:
    """The sources with their licences, as the card has them."""
    head = ["| file | language | characters | source | licence |", "|---|---|---:|---|---|"]
    rows = ["| " + " | ".join(source_row(text)) + " |" for text in texts]
    command = "    python -m tools.pocket_redrafter --text ../shared/data/text --work build/redrafter --install"
    return [
        "Openly licensed text. The evaluation texts were left out of the head's training, not of the model's.",
        "",
        *head,
        *rows,
        "",
        command,
    ]


def fast_type() -> str:
    """Labels may be rounded: bfloat16 where the processor is fast in it."""
    return "bfloat16" if "amx_bf16" in instruction_sets() or "avx512_bf16" in instruction_sets() else "float32"


def install(made: Path, folder: Path) -> None:
    size = (made / WEIGHTS).stat().st_size
    assert size <= MOST_BYTES, f"the head is {size:,} bytes, over the {MOST_BYTES:,} of the package"
    folder.mkdir(parents=True, exist_ok=True)
    for name in (WEIGHTS, CARD, CONFIG):
        shutil.copy(made / name, folder / name)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Makes the head that comes with the package.")
    parser.add_argument("--text", type=Path, required=True, help="the folder with the sources of tools/corpus.py")
    parser.add_argument("--work", type=Path, required=True, help="where to work, and to go on")
    parser.add_argument("--install", action="store_true", help="write the head to where the package reads it")
    parser.add_argument("--labels", choices=KINDS, help="other labels than those of the head of the package")
    parser.add_argument("--positions", type=int, help="another number of positions")
    parser.add_argument("--language", help="texts of one language only, as en")
    options = parser.parse_args(arguments)
    recipe = replace(
        RECIPE,
        labels=replace(RECIPE.labels, kind=options.labels or RECIPE.labels.kind),
        positions=options.positions or RECIPE.positions,
    )
    if options.positions is not None and options.positions < 1:
        parser.error(f"--positions must be at least 1, not {options.positions}")
    if options.install and (recipe != RECIPE or options.language):
        parser.error("--install is for the head of the package; leave --labels, --positions and --language out")
    try:
        with terminable():
            texts = read(options.text)
            passages = passages_of(texts, options.language)
            workshop = Workshop(load(MODEL, dtype=fast_type(), device="cpu"), passages, recipe, options.work)
            watched(workshop, origin(texts))
            if options.install:
                install(options.work, shipped_folder(REDRAFTER) / MODEL)
    except (ValueError, OSError) as error:
        parser.exit(2, f"error: {error}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
