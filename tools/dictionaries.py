"""Makes the dictionaries that come with the package, for the bundled models' tokenizer, and their card.

    python -m tools.dictionaries --text ../shared/data/text --out build/dictionaries

A few minutes on two CPU cores. They are counted on what the bundled models were trained on, and tried on what was held
out. The same text gives the same bytes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from paceline.dictionary.header import DictionaryHeader
from paceline.dictionary.index import Dictionary
from paceline.dictionary.shipped import FOLDER
from paceline.files import terminable
from paceline.targets.replay import open_vocabulary
from paceline.vocabulary import Vocabulary
from paceline_lab.bench.tally import StepTally
from paceline_make import cards
from paceline_make.dictionary.build import DictionarySettings, build
from paceline_make.dictionary.counting import NgramCounts, count
from paceline_make.dictionary.emulator import Dictionaries, Script
from paceline_make.dictionary.running import spelled
from paceline_make.dictionary.statistics import statistics
from paceline_make.texts.corpus import Corpus
from tools import card
from tools.corpus import CorpusText, read

MODEL = "pocket"
RECIPE = DictionarySettings(order=3, entries=50_000, min_probability=0.3)
"""All three together take 0.6 MB. Drafters know the scores and take what is worth a row, so unlikely entries may stay
in."""
NGRAMS = 1_000_000
TRIED = 300_000
"""Characters of held-out text."""


def make(
    texts: Sequence[CorpusText], language: str, vocabulary: Vocabulary, out: Path
) -> tuple[DictionaryHeader, StepTally]:
    """One dictionary, and what it brings on text that it was not counted on."""
    mine = [text for text in texts if text.source.language == language]
    corpus = Corpus.of_lines([line for text in mine for passage in text.training for line in passage.split("\n")])
    counts = count(corpus, order=RECIPE.order, limit=NGRAMS)
    header = build(
        out,
        counts,
        vocabulary,
        RECIPE,
        corpus={"fingerprint": corpus.fingerprint, "words": counts.words, "bytes": corpus.bytes},
        language=language,
        licence="; ".join(sorted({text.source.licence for text in mine})),
        tokenizer_name=MODEL,
    )
    Dictionary.open(out)  # it can be read
    return header, _tried(mine, counts, vocabulary)


def _tried(texts: Sequence[CorpusText], counts: NgramCounts, vocabulary: Vocabulary) -> StepTally:
    """The dictionary on held-out passages from all over the sources."""
    passages = [passage for text in texts for passage in text.held_out]
    taken = max(1, TRIED * len(passages) // max(1, sum(map(len, passages))))
    script = Script(
        vocabulary.encode(passage, add_special=False) for passage in passages[:: -(-len(passages) // taken)]
    )
    found = statistics(spelled(counts.grams, vocabulary))
    ((_, tally),) = Dictionaries.over(script, found).tallies(RECIPE.min_probability, [RECIPE.entries])
    return tally


def write_card(made: dict[Path, tuple[DictionaryHeader, StepTally]], texts: Sequence[CorpusText], folder: Path) -> None:
    """Beside the dictionaries: what they are, what they bring, and what they are made of."""
    rows = [
        [
            f"`{path.name}`",
            header.language,
            f"{header.entries:,}",
            f"{path.stat().st_size:,}",
            f"{header.corpus['words']:,}",
            f"{tally.speed_up:.3f}",
            *(f"{share:.2f}" for share in (tally.coverage, tally.accepted_per_draft, tally.acceptance)),
        ]
        for path, (header, tally) in made.items()
    ]
    cards.write(
        folder,
        card.TEMPLATES / "dictionaries.md",
        order=RECIPE.order,
        min_probability=RECIPE.min_probability,
        characters=f"{TRIED:,}",
        dictionaries=rows,
        sources=[[text.source.file, text.source.origin, text.source.licence] for text in texts],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--text", type=Path, required=True, help="folder of the licensed text files")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--out", type=Path, help="folder to write to")
    where.add_argument("--install", action="store_true", help="write to where the package reads them")
    options = parser.parse_args()
    try:
        with terminable():
            _make_all(options.text, FOLDER if options.install else options.out)
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")


def _make_all(given: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    texts = read(given)
    vocabulary = open_vocabulary(MODEL)
    made = {}
    for language in sorted({text.source.language for text in texts}):
        path = folder / f"{MODEL}-{language}.dict"
        made[path] = make(texts, language, vocabulary, path)
        print(f"{path.name}: {made[path][0].entries} entries, {path.stat().st_size} bytes", flush=True)
    write_card(made, texts, folder)


if __name__ == "__main__":
    main()
