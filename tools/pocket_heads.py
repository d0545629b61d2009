"""Makes heads that come with the package, for `pocket`, and streams of its draft model.

    python -m tools.pocket_heads eagle --text ../shared/data/text --work build/eagle

Half an hour on two CPU cores. A run that was stopped goes on where it last saved. ``--install`` then writes the head
and its card to where the package reads them. ``--labels``, ``--loss``, ``--positions``, ``--epochs`` and ``--language``
make heads to compare with; for streams also ``--form``, ``--tune`` and ``--target``, as `paceline train streaming` has
them.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline.api.model import load
from paceline.drafters.networks.heads import (
    BLOCK,
    CONFIG,
    EAGLE,
    HYDRA,
    MEDUSA,
    REDRAFTER,
    STREAMING,
    shipped_folder,
)
from paceline.files import terminable
from paceline_lab.bench.machine import instruction_sets
from paceline_make.cards import CARD
from paceline_make.commands.head_options import FORMS, LORA, RANK, TUNES
from paceline_make.heads.kinds.block import BlockKind
from paceline_make.heads.kinds.eagle import EagleKind
from paceline_make.heads.kinds.hydra import HydraKind
from paceline_make.heads.kinds.medusa import MedusaKind
from paceline_make.heads.kinds.streaming import StreamingKind
from paceline_make.heads.kinds.tuned import TunedKind
from paceline_make.heads.labels import KINDS, LabelSettings
from paceline_make.heads.loss import LOSSES
from paceline_make.heads.run import Recipe, Workshop
from paceline_make.heads.watch import watched
from tools.card import source_row
from tools.corpus import CorpusText, read

MODEL, DRAFT = "pocket", "pocket-draft"
SOFT = LabelSettings(kind="soft", ahead=5, temperature=0.8)
RECIPES: Mapping[str, Recipe] = {
    REDRAFTER: Recipe(labels=SOFT, positions=800_000, epochs=4.0, int8=True),
    MEDUSA: Recipe(
        head=MedusaKind(blocks=2, own_output=False),
        labels=SOFT,
        loss="race",
        batch=512,
        positions=400_000,
        epochs=4.0,
        decay=0.8,
        int8=True,
    ),
    HYDRA: Recipe(
        head=HydraKind(rank=64, kept=4096), labels=SOFT, loss="race", batch=512, positions=400_000, int8=True
    ),
    EAGLE: Recipe(
        head=EagleKind(),
        labels=SOFT,
        loss="race",
        batch=256,
        positions=400_000,
        epochs=8.0,
        decay=0.8,
        int8=True,
    ),
    BLOCK: Recipe(
        head=BlockKind(layers=2, units=512, markov=32, anchors=128),
        labels=SOFT,
        loss="race",
        batch=256,
        positions=400_000,
        decay=0.8,
        int8=True,
    ),
    STREAMING: Recipe(
        head=StreamingKind(rank=32),
        labels=replace(SOFT, ahead=3),
        loss="race",
        batch=256,
        positions=400_000,
        epochs=3.0,
        decay=0.8,
    ),
}
"""What the heads of the package are made by. Those that attend to the text learn a window in a step:
many small steps bring more a minute than few large ones."""
MOST_BYTES = {REDRAFTER: 3_000_000, STREAMING: 1_000_000}
MOST_OTHERS = 2_000_000


def model_of(method: str) -> str:
    """The bundled model that the method's head is for."""
    return DRAFT if method == STREAMING else MODEL


def passages_of(texts: Sequence[CorpusText], language: str | None = None) -> list[str]:
    """What the bundled models were trained on, every source as often as there."""
    return [
        passage
        for text in texts
        if language in (None, text.source.language)
        for passage in text.training * text.source.repeats
    ]


def origin(method: str, texts: Sequence[CorpusText]) -> list[str]:
    """The sources with their licences, as the card has them."""
    head = ["| file | language | characters | source | licence |", "|---|---|---:|---|---|"]
    rows = ["| " + " | ".join(source_row(text)) + " |" for text in texts]
    command = f"    python -m tools.pocket_heads {method} --text ../shared/data/text --work build/{method} --install"
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


def install(method: str, made: Path, folder: Path) -> None:
    weights, most = list(made.glob("*.safetensors")), MOST_BYTES.get(method, MOST_OTHERS)
    size = sum(file.stat().st_size for file in weights)
    assert size <= most, f"the head is {size:,} bytes, over the {most:,} of the package"
    folder.mkdir(parents=True, exist_ok=True)
    for name in (*(file.name for file in weights), CARD, CONFIG):
        shutil.copy(made / name, folder / name)


def recipe_of(options: argparse.Namespace) -> Recipe:
    recipe = RECIPES[options.method]
    if options.form == FORMS[1]:
        tuned = TunedKind(rank=RANK if options.tune == LORA else 0)
        recipe = replace(recipe, head=tuned, rate=tuned.usual_rate, decay=tuned.usual_decay)
    return replace(
        recipe,
        labels=replace(recipe.labels, kind=options.labels or recipe.labels.kind),
        loss=options.loss or recipe.loss,
        positions=options.positions or recipe.positions,
        epochs=options.epochs or recipe.epochs,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Makes a head that comes with the package.")
    parser.add_argument("method", choices=RECIPES, help="the method that drafts with it")
    parser.add_argument("--text", type=Path, required=True, help="the folder with the sources of tools/corpus.py")
    parser.add_argument("--work", type=Path, required=True, help="where to work, and to go on")
    parser.add_argument("--install", action="store_true", help="write the head to where the package reads it")
    parser.add_argument("--labels", choices=KINDS, help="other labels than those of the head of the package")
    parser.add_argument("--loss", choices=LOSSES, help="another loss")
    parser.add_argument("--epochs", type=float, help="another number of epochs")
    parser.add_argument("--positions", type=int, help="another number of positions")
    parser.add_argument("--form", choices=FORMS, default=FORMS[0], help="of streams: with the draft model or beside it")
    parser.add_argument("--tune", choices=TUNES, default=TUNES[0], help="of --form paper: what learns")
    parser.add_argument("--target", metavar="MODEL", help="of streams: the model whose continuations are learnt")
    parser.add_argument("--language", help="texts of one language only, as en")
    options = parser.parse_args(arguments)
    if options.positions is not None and options.positions < 1:
        parser.error(f"--positions must be at least 1, not {options.positions}")
    if options.method != STREAMING and (options.form != FORMS[0] or options.target):
        parser.error("--form and --target are for streams")
    recipe = recipe_of(options)
    if options.install and (recipe != RECIPES[options.method] or options.language or options.target):
        parser.error("--install is for the head of the package; leave the options of other heads out")
    try:
        with terminable():
            texts = read(options.text)
            passages = passages_of(texts, options.language)
            how: dict[str, Any] = {"dtype": fast_type(), "device": "cpu"}
            author = None if options.target is None else load(options.target, **how)
            workshop = Workshop(load(model_of(options.method), **how), passages, recipe, options.work, author=author)
            watched(workshop, origin(options.method, texts))
            if options.install:
                install(options.method, options.work, shipped_folder(options.method) / model_of(options.method))
    except (ValueError, OSError) as error:
        parser.exit(2, f"error: {error}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
